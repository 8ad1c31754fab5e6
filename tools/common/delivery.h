// In which representation a state is written or sent: as it is, quantized as asked for, or as the link asks for.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "common/schemes.h"
#include "kv/stream.h"
#include "transport/endpoint.h"

namespace hetero::tool {

struct DeliveryOptions {
    std::string wire_dtype;  // empty: not given
    std::vector<std::string> plans;
};
void add_delivery_options(OptionTable& table, DeliveryOptions& options);

struct Delivery {
    std::optional<Specs> specs;  // nothing: as it is, unless
    bool requantize = false;     // allow quantized to quantized
    bool automatic = false;      // the link chooses among `plans`
    std::vector<Specs> plans;
    [[nodiscard]] bool converts() const noexcept { return specs || automatic; }
};
// Reads the plans. usage: options that do not go together, and --wire-dtype where nothing goes to mpi:RANK; a setting
// that does not apply is ignored.
Result<Delivery> read_delivery(const OptionTable& table, const DeliveryOptions& options, const std::string& output);

// Copies or converts all layers from `source` to `sink`, which is that of `endpoint`, and says in the report how.
// `delivery.specs` are for the state (check_specs); the plans of an automatic choice that are not are left out of it.
struct Delivered {
    kv::Header header;   // as it was written
    double seconds = 0;  // since the other side was ready
};
Result<Delivered> deliver(Tool& tool, const Delivery& delivery, kv::Source& source, kv::Sink& sink,
                          const transport::Endpoint& endpoint, std::uint64_t threads);

// What the provenance of a state has of its quantization, and what a report has.
[[nodiscard]] kv::ProvenanceEntry quantize_entry(const Tool& tool, const Schemes& schemes);
void report_quantized(Tool& tool, const Specs& specs, const kv::Header& quantized, double bits_per_value,
                      double max_abs_error);

}  // namespace hetero::tool
