// Plans of precision: what is written is read as the same, and nothing else passes for a plan.
#include "kv/precision_plan.h"

#include "unit/kv/states.h"

using namespace hetero;
using namespace hetero::test;
using kv::PartId;

namespace {

quant::Spec spec(std::string_view text) { return quant::parse_spec(text).value(); }

kv::PrecisionPlan sample() {
    kv::PrecisionPlan plan;
    plan.tool = "kv-calibrate 0.1.0";
    plan.model_name = "a \"model\"\n\\ with \x01 bytes";
    plan.arch_digest = sha256("arch");
    plan.lineage = sha256("lineage");
    plan.weights_digest = sha256("weights");
    plan.sinks = 4;
    plan.window = 16;
    plan.k = {spec("wf4:g64"), spec("int4:channel:g32:asym")};
    plan.v = {spec("had:int4:token:g8"), spec("f16")};
    plan.bits_per_value = 5.1;
    plan.texts = {{"novel", sha256("novel"), 512, 192, false}, {"code", sha256("code"), 256, 64, true}};
    plan.calibration = kv::DriftFigures{768, 1.0 / 3, 1e-300, 0, 0.25, 1, 0.5};
    plan.held_out = kv::DriftFigures{64, 1e-5, 2, 0, 0, 0, 1};
    plan.floor = kv::DriftFigures{832, 1e-7, 1e-6, 0, 0, 0.0014, 1};
    plan.gate = kv::PlanGate{0.01, true, true};
    return plan;
}

std::string refusal(const std::string& text) {
    const auto plan = kv::parse_precision_plan(text, "p.toml");
    REQUIRE_FALSE(plan.has_value());
    CHECK(plan.error().code == Errc::bad_input);
    CHECK(plan.error().message.find('\n') == std::string::npos);
    return plan.error().message;
}

// The sample with one piece of text in place of another.
std::string with(std::string_view old, std::string_view replacement) {
    std::string text = kv::to_toml(sample());
    const std::size_t at = text.find(old);
    REQUIRE_MESSAGE(at != std::string::npos, old);
    return text.replace(at, old.size(), replacement);
}

bool has(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("a plan is read as it was written") {
    const auto plan = kv::parse_precision_plan(kv::to_toml(sample()), "p.toml");
    REQUIRE_MESSAGE(plan.has_value(), plan.error().message);
    CHECK(*plan == sample());
    kv::PrecisionPlan bare = sample();
    bare.calibration = bare.held_out = bare.floor = std::nullopt;
    bare.gate.reset();
    bare.texts.clear();
    CHECK(kv::parse_precision_plan(kv::to_toml(bare), "p.toml").value() == bare);
}

TEST_CASE("what is no plan is refused with the line and what was expected") {
    CHECK(has(refusal(""), "lacks 'precision_plan'"));
    CHECK(has(refusal("a = "), "p.toml:1"));
    CHECK(has(refusal("d = 2026-01-01"), "dates"));
    CHECK(has(refusal(with("precision_plan = 1", "precision_plan = 2")), "version 2"));
    CHECK(has(refusal(with("tool = ", "tools = ")), "nearest one is 'tool'"));
    CHECK(has(refusal(with("lineage = ", "lineages = ")), "[model]"));
    CHECK(has(refusal(with("sinks = 4", "sinks = -1")), "'sinks' is -1"));
    CHECK(has(refusal(with("sinks = 4", "sinks = 99999999999")), "0 to 4096"));
    CHECK(has(refusal(with("sinks = 4", "sinks = 4.5")), "whole number"));
    CHECK(has(refusal(with("bits_per_value = 5.1", "bits_per_value = nan")), "'bits_per_value' is nan"));
    CHECK(has(refusal(with("bits_per_value = 5.1", "bits_per_value = inf")), "'bits_per_value' is inf"));
    CHECK(has(refusal(with("wf4:channel:g64", "wf44")), "unknown codec"));
    CHECK(has(refusal(with("top1 = 0.5", "top1 = 1.5")), "'top1' is 1.5"));
    CHECK(has(refusal(with("strict = true", "strict = 1")), "true or false"));
    CHECK(has(refusal(with(to_hex(sha256("arch")), "12ab")), "64 hex digits"));
    CHECK(has(refusal(with("\n[gate]", "\n[gates]")), "nearest one is 'gate'"));
    CHECK(has(refusal(with("held_out = true}", "held_out = true, x = 1}")), "'x' is no key"));
    CHECK(has(refusal(with("[model]", "[[model]]")), "must be a table"));
    CHECK(has(refusal(std::string(5000, '[')), "p.toml:1"));
}

TEST_CASE("no beginning of a plan, and no byte changed in it, does harm") {
    const std::string text = kv::to_toml(sample());
    std::size_t accepted = 0;
    for (std::size_t n = 0; n < text.size(); ++n) {
        accepted += kv::parse_precision_plan(text.substr(0, n), "p.toml").has_value() ? 1 : 0;
    }
    CHECK(accepted <= 1);  // without the last newline
    for (std::size_t i = 0; i < text.size(); ++i) {
        for (const char byte : {'\0', '"', '9', '\xFF'}) {
            std::string changed = text;
            changed[i] = byte;
            const auto plan = kv::parse_precision_plan(changed, "p.toml");
            if (!plan) CHECK(plan.error().message.find('\n') == std::string::npos);
        }
    }
}

TEST_CASE("a plan holds for states of its model alone") {
    const kv::Header header = make_header(Plan{});
    CHECK(kv::check_plan(sample(), "p.toml", header.identity).has_value());
    CHECK(kv::same_weights(sample(), header.identity));
    kv::Identity other = header.identity;
    other.weights_digest = sha256("other precision");
    CHECK(kv::check_plan(sample(), "p.toml", other).has_value());
    CHECK_FALSE(kv::same_weights(sample(), other));

    const auto why = [&](const kv::PrecisionPlan& plan, const kv::Identity& identity) {
        const Status status = kv::check_plan(plan, "p.toml", identity);
        REQUIRE_FALSE(status.has_value());
        CHECK(status.error().code == Errc::bad_input);
        return status.error().message;
    };
    other = header.identity;
    other.arch_digest = sha256("another");
    CHECK(has(why(sample(), other), "arch_digest is " + to_hex(sha256("arch")).substr(0, 12)));
    other = header.identity;
    other.lineage = sha256("another");
    CHECK(has(why(sample(), other), "lineage"));
    kv::PrecisionPlan plan = sample();
    plan.k.pop_back();
    plan.v.pop_back();
    CHECK(has(why(plan, header.identity), "1 layers, the state 2"));
    plan = sample();
    plan.v[1] = spec("int8:g4096");
    CHECK(has(why(plan, header.identity), "layer 1, V"));
}

TEST_CASE("a state is converted layer by layer as the plan says") {
    const kv::Header header = make_header(Plan{});
    const kv::PrecisionPlan plan = sample();
    std::vector<kv::Scheme> k, v;
    for (std::size_t layer = 0; layer < 2; ++layer) {
        k.push_back(kv::scheme_from_spec(plan.k[layer], plan.sinks, plan.window, kv::DType::f16));
        v.push_back(kv::scheme_from_spec(plan.v[layer], plan.sinks, plan.window, kv::DType::f16));
    }
    CHECK(k[0].codec == "wf4");
    CHECK(k[0].sinks == 4);
    CHECK(k[0].window == 16);
    CHECK(v[1] == kv::Scheme{});  // floats keep no tokens apart

    Plan wide;
    wide.head_dim_k = wide.head_dim_v = 16;
    wide.lengths = {40};
    const auto state = std::make_shared<const kv::State>(make_state(wide));
    const auto source = kv::memory_source(state, "in.h5");
    TempDir folder;
    auto sink = kv::create_file(folder / "out.h5", io::Overwrite::refuse);
    REQUIRE(sink.has_value());
    const auto report = kv::convert_state(*source, **sink, k, v, false, {"kv-quantize", "1", "plan"}, 2);
    REQUIRE_MESSAGE(report.has_value(), report.error().message);
    CHECK_FALSE(kv::convert_state(*kv::memory_source(state, "in.h5"), **sink, std::vector(1, k[0]), v, false,
                                  {"kv-quantize", "1", "plan"}, 1)
                    .has_value());
}
