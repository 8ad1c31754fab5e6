#include "common/delivery.h"

#include <algorithm>
#include <chrono>

#include "base/clock.h"
#include "common/endpoints.h"
#include "kv/codec_cost.h"
#include "quant/codec.h"
#include "transport/wire_choice.h"

namespace hetero::tool {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double giga = 1e9;

// Gives its first layer before it is asked for the others, and knows since when it is read.
class PreviewSource final : public kv::Source {
public:
    explicit PreviewSource(kv::Source& inner) : inner_(inner) {}

    Result<const kv::Layer*> first_layer() {
        HETERO_TRY(first_, inner_.read_layer());
        return &*first_;
    }
    [[nodiscard]] double seconds() const { return began_ ? seconds_since(*began_) : 0; }

    [[nodiscard]] const kv::Header& header() const noexcept override { return inner_.header(); }
    [[nodiscard]] const std::string& name() const noexcept override { return inner_.name(); }
    Result<kv::Layer> read_layer() override {
        kv::Layer layer;
        HETERO_CHECK(read_into(layer));
        return layer;
    }
    Status read_into(kv::Layer& layer) override {
        if (!began_) began_ = Clock::now();
        if (!first_) return inner_.read_into(layer);
        layer = std::move(*first_);
        first_.reset();
        return {};
    }
    Result<std::shared_ptr<const kv::RemoteLayer>> read_remote() override {
        if (!began_) began_ = Clock::now();
        if (first_) return nullptr;
        return inner_.read_remote();
    }
    Status finish() override { return inner_.finish(); }

private:
    kv::Source& inner_;
    std::optional<kv::Layer> first_;
    std::optional<Clock::time_point> began_;
};

// Why a plan is no certificate for a state; empty: it is one.
std::string objection(const Specs& specs, const kv::Identity& identity) {
    const kv::PrecisionPlan& plan = *specs.plan;
    if (const Status fits = kv::check_plan(plan, specs.plan_path, identity); !fits) return fits.error().message;
    if (!kv::same_weights(plan, identity)) return "it was calibrated with other weights of the same source";
    if (!plan.gate) return "it holds no gate: calibrate with --epsilon";
    if (!plan.gate->passed) return fmt::format("it did not pass its gate of epsilon {}", plan.gate->epsilon);
    if (!plan.held_out) return "it was checked on no held-out text";
    return "";
}

// The choice of --wire-dtype auto, and its reasons.
class WireChooser {
public:
    WireChooser(Tool& tool, const Delivery& delivery, PreviewSource& source, const transport::Endpoint& endpoint,
                std::uint64_t threads)
        : tool_(tool), delivery_(delivery), source_(source), endpoint_(endpoint), threads_(static_cast<int>(threads)) {}

    Result<std::optional<Specs>> run() {
        wire_["candidates"] = Json::array();
        HETERO_TRY(const std::size_t choice, choose());
        const std::string name = name_of(choice);
        wire_["choice"] = name;
        wire_["reason"] = reason_;
        tool_.report()["wire"] = wire_;
        say(fmt::format("chosen: {}, for {}", name, reason_));
        if (choice == 0) return std::nullopt;
        return *certified_[choice - 1];
    }

private:
    Result<std::size_t> choose() {
        const kv::Header& header = source_.header();
        if (is_quantized(header)) {
            reason_ = "it is quantized already";
            return 0;
        }
        for (const Specs& specs : delivery_.plans) {
            if (const std::string why = objection(specs, header.identity); why.empty()) {
                certified_.push_back(&specs);
            } else {
                wire_["candidates"].push_back({{"name", specs.plan_path}, {"certified", false}, {"reason", why}});
                tool_.note("{} is no candidate: {}", specs.plan_path, why);
            }
        }
        if (certified_.empty()) {
            reason_ = delivery_.plans.empty() ? "no plan is given to choose from" : "no plan is certified for it";
            return 0;
        }
        HETERO_TRY(const auto link, transport::measure_link(endpoint_));
        if (!link) {
            reason_ = fmt::format("{} is no link", transport::to_string(endpoint_));
            return 0;
        }
        report_link(*link);
        HETERO_CHECK(measure_forms(header));
        const std::uint64_t layers = header.sequences.size() * header.identity.n_layers;
        const std::size_t choice = transport::fastest_form(forms_, layers, link->bytes_per_s);
        for (std::size_t i = 0; i < forms_.size(); ++i) report_form(i, layers, link->bytes_per_s);
        const std::size_t gains = choice == 0 ? best_break_even(layers) : choice;
        reason_ =
            fmt::format("the link carries {:.3f} GB/s, and {} is faster below {:.3f} GB/s", link->bytes_per_s / giga,
                        certified_[gains - 1]->plan_path, break_even_of(gains, layers) / giga);
        return choice;
    }

    // [0]: as it is; then the certified plans.
    Status measure_forms(const kv::Header& header) {
        HETERO_TRY(const kv::Layer* first, source_.first_layer());
        const std::uint64_t bytes = header.payload_bytes();
        forms_.push_back({bytes, 0, 0});
        for (const Specs* specs : certified_) {
            const Schemes schemes = schemes_of(*specs, header);
            HETERO_TRY(const kv::CodecCost cost,
                       kv::measure_codec_cost(header, *first, schemes.k.front(), schemes.v.front(), threads_));
            const double layers = static_cast<double>(bytes) / static_cast<double>(cost.bytes_in);
            forms_.push_back(
                {with_schemes(header, schemes).payload_bytes(), cost.encode_s * layers, cost.decode_s * layers});
        }
        return {};
    }

    [[nodiscard]] double break_even_of(std::size_t form, std::uint64_t layers) const {
        return transport::break_even_bytes_per_s(forms_.front(), forms_[form], layers);
    }
    [[nodiscard]] std::size_t best_break_even(std::uint64_t layers) const {
        std::size_t best = 1;
        for (std::size_t i = 2; i < forms_.size(); ++i)
            if (break_even_of(i, layers) > break_even_of(best, layers)) best = i;
        return best;
    }

    void report_link(const transport::LinkRate& link) {
        wire_["link_gb_per_s"] = number(link.bytes_per_s / giga);
        wire_["latency_us"] = number(link.latency_s * 1e6);
        say(fmt::format("the link to {}: {:.3f} GB/s, latency {:.1f} us", transport::to_string(endpoint_),
                        link.bytes_per_s / giga, link.latency_s * 1e6));
    }

    void report_form(std::size_t i, std::uint64_t layers, double bytes_per_s) {
        const transport::WireForm& form = forms_[i];
        const double seconds = transport::wire_seconds(form, layers, bytes_per_s);
        const std::string name = name_of(i);
        Json entry = {{"name", name},
                      {"bytes", form.bytes},
                      {"encode_ms", number(form.encode_s * 1e3)},
                      {"decode_ms", number(form.decode_s * 1e3)},
                      {"total_ms", number(seconds * 1e3)}};
        std::string text = fmt::format("{}: {} bytes, quantize {:.2f} ms, dequantize {:.2f} ms, in all {:.2f} ms", name,
                                       form.bytes, form.encode_s * 1e3, form.decode_s * 1e3, seconds * 1e3);
        if (i != 0) {
            entry["certified"] = true;
            entry["break_even_gb_per_s"] = number(break_even_of(i, layers) / giga);
            text += fmt::format("; faster below {:.3f} GB/s", break_even_of(i, layers) / giga);
        }
        wire_["candidates"].push_back(std::move(entry));
        say(text);
    }

    // [0]: the type that the state is in.
    [[nodiscard]] std::string name_of(std::size_t form) const {
        return form == 0 ? source_.header().k_schemes.front().codec : certified_[form - 1]->plan_path;
    }

    void say(const std::string& line) {
        if (tool_.verbose()) tool_.note("{}", line);
    }

    Tool& tool_;
    const Delivery& delivery_;
    PreviewSource& source_;
    const transport::Endpoint& endpoint_;
    int threads_;
    std::vector<const Specs*> certified_;
    std::vector<transport::WireForm> forms_;
    Json wire_ = Json::object();
    std::string reason_;
};

}  // namespace

void add_delivery_options(OptionTable& table, DeliveryOptions& options) {
    table
        .text("--wire-dtype", "CODEC|PRESET|auto", &options.wire_dtype,
              "quantize what goes to mpi:RANK on its way; auto: as the link asks for, by --plan")
        .setting = true;
    Option& plan = table.texts("--plan", "FILE", &options.plans,
                               "quantize as a plan of kv-calibrate says; with --wire-dtype auto: one to choose from");
    plan.setting = true;
    plan.completion = Completion::file;
}

Result<Delivery> read_delivery(const OptionTable& table, const DeliveryOptions& options, const std::string& output) {
    bool to_link = false;
    if (!output.empty()) {
        HETERO_TRY(const transport::Endpoint endpoint, transport::parse_endpoint(output));
        to_link = endpoint.is_link();
    }
    std::string wire = options.wire_dtype;
    if (!to_link && table.on_command_line("wire-dtype")) {
        return fail(Errc::usage, "--wire-dtype is of what goes to mpi:RANK; --plan and kv-quantize store a state");
    }
    if (!to_link) wire.clear();
    std::vector<std::string> plans = options.plans;
    if (!wire.empty() && wire != "auto" && !plans.empty()) {
        const Origin wire_origin = table.origin("wire-dtype"), plan_origin = table.origin("plan");
        if (wire_origin == plan_origin) return fail(Errc::usage, "--wire-dtype {} and --plan exclude each other", wire);
        if (wire_origin > plan_origin) {
            plans.clear();
        } else {
            wire.clear();
        }
    }
    Delivery delivery;
    delivery.automatic = wire == "auto";
    if (!wire.empty() && !delivery.automatic) {
        auto specs = specs_of_name(wire);
        if (!specs) {
            return fail(Errc::usage, "--wire-dtype: {}; presets are {}, and auto", specs.error().message,
                        quant::preset_names());
        }
        delivery.specs = std::move(*specs);
    }
    if (plans.size() > 1 && !delivery.automatic) {
        return fail(Errc::usage, "several plans: --wire-dtype auto chooses among them, for mpi:RANK");
    }
    for (const std::string& path : plans) {
        HETERO_TRY(Specs specs, read_plan(path));
        if (delivery.automatic) {
            delivery.plans.push_back(std::move(specs));
        } else {
            delivery.specs = std::move(specs);
        }
    }
    return delivery;
}

kv::ProvenanceEntry quantize_entry(const Tool& tool, const Schemes& schemes) {
    return tool.provenance("quantize " + describe(schemes));
}

void report_quantized(Tool& tool, const Specs& specs, const kv::Header& quantized, double bits_per_value,
                      double max_abs_error) {
    Json& report = tool.report();
    report_schemes(report, specs, schemes_of(quantized), quantized.identity);
    report["bits_per_value"] = number(bits_per_value);
    report["max_abs_error"] = number(max_abs_error);
}

Result<Delivered> deliver(Tool& tool, const Delivery& delivery, kv::Source& source, kv::Sink& sink,
                          const transport::Endpoint& endpoint, std::uint64_t threads) {
    PreviewSource preview(source);
    std::optional<Specs> specs = delivery.specs;
    if (delivery.automatic) {
        WireChooser chooser(tool, delivery, preview, endpoint, threads);
        auto chosen = chooser.run();
        if (!chosen) {
            sink.abort(chosen.error());
            return tl::unexpected(chosen.error());
        }
        specs = std::move(*chosen);
    }
    Delivered delivered;
    delivered.header = source.header();
    if (!specs) {
        HETERO_TRY(delivered.seconds, copy_state(preview, sink));
        return delivered;
    }
    const Schemes schemes = schemes_of(*specs, source.header());
    const auto converted = kv::convert_state(preview, sink, schemes.k, schemes.v, delivery.requantize,
                                             quantize_entry(tool, schemes), static_cast<int>(threads));
    if (!converted) {
        sink.abort(converted.error());
        return tl::unexpected(converted.error());
    }
    delivered.seconds = preview.seconds();
    delivered.header = with_schemes(source.header(), schemes);
    report_quantized(tool, *specs, delivered.header, converted->bits_per_value, converted->max_abs_error);
    tool.report()["quantize_ms"] = number(converted->seconds * 1e3);
    tool.report()["conversion"] = converted->parts.text();
    return delivered;
}

}  // namespace hetero::tool
