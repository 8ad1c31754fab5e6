// Tiny random models of every family, from every container and weight type, against fp32 goldens; and what must not
// change the result: chunks, threads, a trip through a state.
#include "golden/tiny.h"

#include "support/temp_dir.h"

using namespace hetero;
using namespace hetero::test;

namespace {

// Half the distance between neighbours of `value` in a type with `mantissa_bits` and normal numbers from
// 2^min_exponent.
double half_ulp(double value, int mantissa_bits, int min_exponent) {
    const int exponent = value == 0 ? min_exponent : std::max(min_exponent, std::ilogb(value));
    return std::ldexp(0.5, exponent - mantissa_bits);
}

double relative_l2(std::span<const float> got, std::span<const float> expected) {
    double error2 = 0, norm2 = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
        const double error = static_cast<double>(got[i]) - expected[i];
        error2 += error * error;
        norm2 += static_cast<double>(expected[i]) * expected[i];
    }
    return std::sqrt(error2 / norm2);
}

// Of the relative L2 errors of tokens, `row` values each.
double median_error(std::span<const float> got, std::span<const float> expected, std::size_t row) {
    std::vector<double> errors;
    for (std::size_t at = 0; at < got.size(); at += row) {
        errors.push_back(relative_l2(got.subspan(at, row), expected.subspan(at, row)));
    }
    std::nth_element(errors.begin(), errors.begin() + static_cast<std::ptrdiff_t>(errors.size() / 2), errors.end());
    return errors[errors.size() / 2];
}

}  // namespace

TEST_CASE("logits, K and V of every position, and greedy continuations") {
    for (const Case& one : testdata_cases()) {
        CAPTURE(one.model);
        const Errors worst = check_case(one);
        MESSAGE(one.model, ": max |d logit| ", worst.logit, ", K and V ", worst.kv);
    }
}

TEST_CASE("K and V in 16 bits are the goldens, rounded") {
    struct Type {
        DType dtype;
        int mantissa_bits, min_exponent;
    };
    constexpr int length = 129;
    for (const Type type : {Type{DType::f16, 10, -14}, Type{DType::bf16, 7, -126}}) {
        double largest = 0;  // relative L2, in units of the largest rounding
        for (const Case& one : testdata_cases()) {
            if (!one.has_kv) continue;
            const auto model = load(one.model);
            const Golden golden(one.golden);
            const auto prompt = golden.get<std::int32_t>(key(length, "input_ids"));
            const auto session = make_session(model, type.dtype, prompt.size());
            must(session->prefill(prompt, engine::Logits::none, {}));
            for (std::uint32_t layer = 0; layer < model->config.n_layers; ++layer) {
                const kv::Layer exported = must(session->export_layer(layer));
                for (const kv::PartId id : {kv::PartId::k, kv::PartId::v}) {
                    CAPTURE(one.model);
                    CAPTURE(layer);
                    CAPTURE(std::string(kv::part_name(id)));
                    const auto expected = expected_part(golden, *model, length, layer, id);
                    const auto got = part_values(exported.part(id));
                    REQUIRE(got.size() == expected.size());
                    double worst_excess = 0;
                    for (std::size_t i = 0; i < got.size(); ++i) {
                        const double error = std::fabs(static_cast<double>(got[i]) - expected[i]);
                        worst_excess = std::max(worst_excess,
                                                error - half_ulp(expected[i], type.mantissa_bits, type.min_exponent));
                    }
                    if (layer == 0) {
                        // Nothing before it was rounded: half an ulp and fp32 noise.
                        CHECK(worst_excess <= kv_tolerance);
                    }
                    // Deeper layers are computed from rounded K and V: their own rounding, and what the
                    // roundings before them leave after the softmax. Where a router is close to a tie, they may send a
                    // token to another expert, and so move it by any amount; the median token shows the rest.
                    const std::size_t row = got.size() / exported.part(id).values.shape.at(0);
                    const double relative =
                        (model->config.moe ? median_error(got, expected, row) : relative_l2(got, expected)) *
                        std::ldexp(1.0, type.mantissa_bits + 1);
                    CHECK(relative <= (layer == 0 ? 1.0 : 4.0));
                    largest = std::max(largest, relative);
                }
            }
        }
        MESSAGE(std::string(kernels::dtype_info(type.dtype).name), ": relative L2 up to ", largest, " half ulps");
    }
}

TEST_CASE("chunk sizes of prefill do not change a bit") {
    for (const Case& one : testdata_cases()) {
        CAPTURE(one.model);
        const auto model = load(one.model);
        const auto prompt = Golden(one.golden).get<std::int32_t>(key(129, "input_ids"));
        const Run whole = run(model, prompt, DType::f16, 256, 0, 2);
        for (const std::uint32_t chunk_tokens : {1U, 5U, 32U}) {
            CAPTURE(chunk_tokens);
            CHECK((run(model, prompt, DType::f16, chunk_tokens, 0, 2) == whole));
        }
    }
}

TEST_CASE("the number of threads does not change a bit") {
    for (const Case& one : testdata_cases()) {
        CAPTURE(one.model);
        const auto model = load(one.model);
        const auto prompt = Golden(one.golden).get<std::int32_t>(key(129, "input_ids"));
        for (const std::uint32_t chunk_tokens : {1U, 50U}) {
            const Run single = run(model, prompt, DType::f16, chunk_tokens, 1, 8);
            for (const int threads : {2, 3}) {
                CAPTURE(threads);
                CHECK((run(model, prompt, DType::f16, chunk_tokens, threads, 8) == single));
            }
        }
    }
}

TEST_CASE("decoding from an imported state gives the bits of the session that prefilled") {
    for (const Case& one : testdata_cases()) {
        if (!one.has_kv) continue;  // the GGUFs: the same programs
        CAPTURE(one.model);
        const auto model = load(one.model);
        const Golden golden(one.golden);
        const kv::Header header = header_of(*model);
        const auto prompt = golden.get<std::int32_t>(key(33, "input_ids"));  // beyond every window
        const auto greedy = golden.get<std::int32_t>(key(33, "greedy_ids"));
        for (const DType dtype : {DType::f16, DType::bf16, DType::f32}) {
            const auto source = make_session(model, dtype, 64), target = make_session(model, dtype, 57, 7);
            TokenId next = engine::argmax(prefill_last(*source, prompt));
            for (std::uint32_t layer = model->config.n_layers; layer-- > 0;) {
                const kv::Layer exported = must(source->export_layer(layer));
                CHECK(exported.k.values.shape.at(0) == header.layer_shape(layer).stored_tokens(prompt.size()));
                must(target->import_layer(header, layer, exported, prompt.size()));
            }
            CHECK(target->position() == prompt.size());
            CHECK((state_bytes(*target) == state_bytes(*source)));
            for (const TokenId expected_id : greedy) {
                if (dtype == DType::f32) CHECK(next == expected_id);
                const std::span<const float> expected = must(source->decode(next));
                const std::span<const float> got = must(target->decode(next));
                REQUIRE(std::memcmp(expected.data(), got.data(), expected.size_bytes()) == 0);
                next = engine::argmax(got);
            }
            CHECK((state_bytes(*target) == state_bytes(*source)));
        }
    }
}

TEST_CASE("both styles of config.json describe the same model") {
    namespace fs = std::filesystem;
    for (const Case& one : testdata_cases()) {
        if (one.model.ends_with(".gguf")) continue;
        CAPTURE(one.model);
        const TempDir folder;
        for (const auto& entry : fs::directory_iterator(testdata(one.model))) {
            const std::string file = entry.path().filename().string();
            if (file == "config.json") continue;
            fs::create_symlink(entry.path(), folder / (file == "config.v5.json" ? "config.json" : file));
        }
        const auto published = load(one.model), rewritten = must(model::Model::load(folder.path()));
        CHECK(rewritten->arch_digest == published->arch_digest);
        CHECK(rewritten->lineage == published->lineage);
        CHECK(prompt_error(rewritten, Golden(one.golden), 129) <= logit_tolerance);
    }
}

TEST_CASE("a truncated session computes the same bits again") {
    for (const std::string name : {"llama3_rope/bf16", "deepseek_v3/bf16"}) {
        const auto model = load("golden/tiny/" + name);
        const auto prompt =
            Golden("golden/tiny/" + name + "/golden.safetensors").get<std::int32_t>(key(33, "input_ids"));
        const auto session = make_session(model, DType::f32, 64);
        const auto first = prefill_last(*session, prompt);
        const std::span<const float> step = must(session->decode(17));
        const std::vector<float> after(step.begin(), step.end());
        must(session->truncate(prompt.size()));
        const std::span<const float> again = must(session->decode(17));
        CHECK((std::vector<float>(again.begin(), again.end()) == after));
        must(session->truncate(0));
        CHECK((prefill_last(*session, prompt) == first));
    }
}
