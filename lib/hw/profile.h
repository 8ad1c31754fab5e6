// Hardware profiles (hetero-hw(5)) as plain values, for whoever plans from them: of one machine or of a fleet, measured
// by hw-probe or recorded from published figures.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace hetero::hw {

inline constexpr int profile_schema = 2;

// Where a figure comes from. A plan from specifications alone is not verified.
enum class Origin : std::uint8_t { measured, published, specification };

// Products of matrices with weights of one type.
struct ProductRate {
    std::string dtype;    // of the weights: f32, f16, bf16, fp8_e4m3fn, int8, int4
    std::string weights;  // as the file stores them: "q4_1"; may be empty
    std::string path;     // fast, precise (hetero-prefill(1)); another library's name; may be empty
    int threads = 0;      // 0: not a CPU
    Origin origin = Origin::measured;
    std::string unsupported;                 // why there is no executable path; empty: there is one
    std::optional<double> bytes_per_weight;  // in memory, while they are multiplied
    std::optional<double> gemm_gflop_per_s;  // of gemm_tokens at once: prefill
    int gemm_tokens = 0;
    std::optional<double> gemv_gb_per_s;  // one token: bytes of weights a second, as bytes_per_weight counts them
    struct Batch {
        int tokens = 0;
        double gflop_per_s = 0;
    };
    std::vector<Batch> batches;  // a step of decode for so many sequences; ascending
};

struct AttentionRate {
    std::string kv_dtype;  // as resident: f16, int8, int4 ...
    int head_dim = 0, threads = 0;
    Origin origin = Origin::measured;
    std::string unsupported;
    std::optional<double> prefill_gflop_per_s;  // of visible products: 4 * head_dim operations a query and key
    std::optional<double> decode_gb_per_s;      // bytes of K and V that one token reads, as they lie in memory
};

struct CodecRate {
    std::string codec;  // int8, int4, fp8_e4m3fn ... (hetero-quant(7))
    int threads = 0;
    Origin origin = Origin::measured;
    std::string unsupported;
    std::optional<double> encode_gb_per_s, decode_gb_per_s;  // bytes of 16-bit values in, and out
    std::optional<double> stored_ratio;                      // bytes of codes and scales by those of 16-bit values
};

struct BandwidthRate {
    int threads = 0;
    std::optional<int> cpu_node, memory_node;  // NUMA nodes, where both were chosen
    Origin origin = Origin::measured;
    std::optional<double> read_gb_per_s, triad_gb_per_s;
};

// Of pinned host memory, one direction at a time.
struct CopyRates {
    Origin origin = Origin::measured;
    std::optional<double> host_to_device_gb_per_s, device_to_host_gb_per_s;
};

// What prefill and decode of one model took on a device, end to end, at some lengths.
struct StageTimes {
    std::string model, machine;  // for people
    std::string weights_digest;  // of the weights that were run, in hex; empty: not known
    std::string dtype;           // of most of them: "int4"; empty: not known
    int threads = 0;             // 0: not known
    double chunk_tokens = 0;     // that prefill computed at once; 0: whole prompts
    struct Prefill {
        double tokens = 0, cached_tokens = 0, seconds = 0;
    };
    struct Decode {
        double context_tokens = 0;  // of all sequences together
        double sequences = 1, step_seconds = 0;
    };
    std::vector<Prefill> prefill;
    std::vector<Decode> decode;
};

// What a stage of inference can run on: the CPUs of a machine, or a kind of GPU in it.
struct Device {
    std::string name;
    bool gpu = false;
    int count = 1;                              // alike
    std::optional<std::uint64_t> memory_bytes;  // of one; of a CPU what the process may use
    std::string compute_capability;             // of a GPU: "9.0"; may be empty
    int threads = 0;                            // of a CPU: by default
    std::vector<BandwidthRate> bandwidth;       // of a CPU by threads, ascending
    std::vector<ProductRate> products;
    std::vector<AttentionRate> attention;
    std::vector<CodecRate> codecs;
    std::vector<StageTimes> stages;  // of models that ran on one of it
    CopyRates copies;                // of a GPU
    std::optional<double> power_limit_w;
};

struct StorageRate {
    std::string path, file_system;
    Origin origin = Origin::measured;
    std::optional<std::uint64_t> free_bytes;
    std::optional<double> write_gb_per_s, read_gb_per_s;
};

struct Machine {
    std::string name;        // unique in the fleet
    int count = 1;           // alike
    std::vector<int> ranks;  // of the job that measured it
    Device cpu;
    std::vector<Device> gpus;
    StorageRate disk, shm;
    std::optional<std::uint64_t> memlock_bytes;  // none: no limit, or not known (memlock_unlimited)
    std::optional<bool> memlock_unlimited, clock_synchronized, cma_allowed;
    std::optional<std::uint64_t> memory_available_bytes, huge_pages_free;
    std::string transparent_huge_pages;             // always, madvise, never; may be empty
    std::string driver_version;                     // may be empty
    std::string driver_cuda_version, cuda_version;  // as NVML and as CUDA have it; may be empty
    std::string gpus_unknown;                       // why no GPU is known
    std::optional<int> cpus_online, cpus_allowed;
    int rdma_ports_active = 0;
};

// One direction, between two machines or two places in one (then `from` is `to`).
struct Link {
    std::string from, to;  // names of machines
    std::optional<int> from_rank, to_rank;
    std::string via;  // "mpi", "nvlink" ...; may be empty
    Origin origin = Origin::measured;
    std::optional<double> latency_us;          // of a small message
    std::optional<double> gb_per_s;            // of the largest messages
    std::optional<double> both_ways_gb_per_s;  // of both directions at once, their sum
    struct Size {
        std::uint64_t message_bytes = 0;
        double gb_per_s = 0;
    };
    std::vector<Size> sizes;  // ascending
    bool asymmetric = false;  // the other direction differs by more than the measurement's noise
};

struct Profile {
    Origin origin = Origin::measured;  // of what does not say it itself
    bool quick = false;                // measured in little time: rates are rough
    std::string note;                  // who measured or published it
    std::vector<Machine> machines;     // at least one
    std::vector<Link> links;

    [[nodiscard]] const Machine* find(std::string_view name) const noexcept;
};

// TOML or JSON, as hw-probe writes them. A key that profiles do not have is an error that names the nearest one, so is
// a figure that is 0 (what is not known is left out) or not finite. `name` stands in messages.
// Errors: bad_input, resource (no memory).
Result<Profile> parse_profile(std::string_view text, const std::string& name);
Result<Profile> read_profile(const std::string& path);

// "measured", "published", "specification"
[[nodiscard]] std::string_view to_string(Origin origin) noexcept;

}  // namespace hetero::hw
