// A model with its tokenizer, ready to run on the device that was asked for.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/devices.h"
#include "common/tool.h"
#include "engine/session.h"
#include "kv/state.h"
#include "model/model.h"
#include "tokenizer/tokenizer.h"

namespace hetero::tool {

struct ModelOptions {
    std::string path;
    DeviceOptions device = {};
    std::uint64_t threads = 0;  // 0: as many as this process may use
    engine::KvTiers kv_tiers = {};
    std::string kv_tier_text = "device";
    bool precise = false;  // products in f32
    std::string exec = "graph";
    bool warm = false;       // keep packed weights
    std::string cache = {};  // where; empty: ~/.cache/hetero

    [[nodiscard]] engine::Precision precision() const {
        return precise ? engine::Precision::precise : engine::Precision::fast;
    }
    // Those asked for, but never more than affinity mask and cgroup leave: beyond that each waits for another.
    [[nodiscard]] int thread_count() const;
    [[nodiscard]] engine::WarmFolder warm_folder() const;
    [[nodiscard]] const char* precision_name() const { return precise ? "precise" : "fast"; }  // in reports and states
};
void add_model_options(OptionTable& table, ModelOptions& options);  // all but the precision
void add_precise_option(OptionTable& table, ModelOptions& options);
void add_exec_option(OptionTable& table, ModelOptions& options);
void add_tier_option(OptionTable& table, ModelOptions& options);
void add_warm_options(OptionTable& table, ModelOptions& options);
void add_thread_option(OptionTable& table, std::uint64_t* threads);
// --warm and --precise do not go together: usage where the command line asks for --warm, else that setting is dropped.
Status check_warm(const OptionTable& table, ModelOptions& options);

struct LoadedModel {
    std::shared_ptr<const model::Model> model;
    std::shared_ptr<const Tokenizer> tokenizer;  // null where the model comes without one
    kv::Identity identity;
    std::vector<kv::LayerShape> layer_shapes;  // of the states it makes and reads; empty: all gqa
    double load_ms = 0;
};
// Of this rank, before it meets the others.
Result<LoadedModel> load_alone(const ModelOptions& options);
// In a group: fails everywhere where it fails on one rank, or the ranks have different weights. `own`: loaded already.
Result<LoadedModel> load_model(const ModelOptions& options, std::optional<LoadedModel> own = std::nullopt);

// What this process has taken so far, and the weights that `session` runs on.
void report_memory(Tool& tool, const engine::Session& session);

// "layer counts differ": refusal of a state that belongs to another model, with the fields and both values; of one
// whose layers store something else than the model's do; and of a shard.
Status check_state(const LoadedModel& model, const std::string& model_path, const kv::Header& state,
                   const std::string& state_name);

// States of one model may come from different precisions of its weights: says so in the report (same_weights) and,
// where they differ, in a note that begins with `who`.
void report_weights(Tool& tool, const std::string& who, const kv::Identity& a, const kv::Identity& b);

// How a session keeps KV: `choice` is f16, bf16, f32, a name of engine::resident_codecs(), or auto (the type that the
// state's numbers came from).
inline const std::vector<std::string> resident_types{"auto", "f16",        "bf16",         "f32",         "int8",
                                                     "int4", "fp8_e4m3fn", "int8-channel", "int4-channel"};
Result<engine::KvStorage> resident_storage(const std::string& choice, const kv::Header* state);

// Sessions as the options ask for them, one in each rank of the group. With ranks that compute together, "auto" is the
// CPU.
[[nodiscard]] engine::Options session_options(const ModelOptions& options, const engine::KvStorage& storage,
                                              std::uint64_t chunk_tokens);
// Where memory lacks, for fewer sequences, down to `least_sequences`; where "auto" found a device that cannot take the
// session, on the CPU, and says so. options.sequences is what it was made for.
Result<std::unique_ptr<engine::Session>> make_session(Tool& tool, const ModelOptions& model_options,
                                                      const LoadedModel& loaded, engine::Options& options,
                                                      std::uint64_t capacity, std::uint32_t least_sequences = 1);

}  // namespace hetero::tool
