// Conversion from file to file holds a layer, not the state; and what is read of a file is bounded too.
#include <malloc.h>

#include <fstream>
#include <string>

#include "kv/convert.h"
#include "support/results.h"
#include "support/skip.h"
#include "unit/kv/states.h"

using namespace hetero;
using namespace hetero::test;

namespace {

std::uint64_t status_kib(const std::string& field) {
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);) {
        if (line.rfind(field + ":", 0) == 0) return std::stoull(line.substr(field.size() + 1));
    }
    return 0;
}

// Layers that are made as they are read.
class Generated final : public kv::Source {
public:
    explicit Generated(const Plan& plan) : state_(make_state(plan)), header_(state_.header) {}
    void repeat(std::uint32_t n_layers) {
        header_.identity.n_layers = n_layers;
        header_.k_schemes.assign(n_layers, state_.header.k_schemes.front());
        header_.v_schemes.assign(n_layers, state_.header.v_schemes.front());
    }
    [[nodiscard]] const kv::Header& header() const noexcept override { return header_; }
    Result<kv::Layer> read_layer() override { return state_.layers[0][0]; }
    Status finish() override { return {}; }
    [[nodiscard]] const std::string& name() const noexcept override { return name_; }

private:
    kv::State state_;
    kv::Header header_;
    std::string name_ = "a test";
};

Status convert(kv::Source& source, const std::string& path, const kv::Scheme& scheme,
               kv::Handing handing = kv::Handing::shared) {
    HETERO_TRY(auto sink, kv::create_file(path, io::Overwrite::refuse));
    const std::vector<kv::Scheme> schemes(source.header().k_schemes.size(), scheme);
    return kv::convert_state(source, *sink, schemes, schemes, false, {"test", "1", "convert"}, 2, handing)
        .map([](const auto&) {});
}

bool reset_peak() {
#ifdef __GLIBC__
    malloc_trim(0);  // what was freed before is not to be had for nothing
#endif
    std::ofstream reset("/proc/self/clear_refs");
    return static_cast<bool>(reset << "5" << std::flush);
}
constexpr const char* no_peak = "the peak of this process's memory cannot be reset";

#ifdef __SANITIZE_ADDRESS__
constexpr bool sanitized = true;
#else
constexpr bool sanitized = false;
#endif

}  // namespace

TEST_CASE("converting a file needs memory for a few of its layers") {
    if (sanitized) return note_skip("AddressSanitizer keeps what was freed");
    Plan plan;
    plan.n_layers = 1;
    plan.head_dim_k = plan.head_dim_v = 64;
    plan.lengths = {2048};  // 512 KiB of K and of V
    constexpr std::uint32_t n_layers = 64;
    const TempDir folder;
    const std::string from = folder.path() + "/a.h5", to = folder.path() + "/q.h5";
    {
        Generated source(plan);
        source.repeat(n_layers);
        REQUIRE(convert(source, from, plain_scheme("f16")));
    }
    if (!reset_peak()) return note_skip(no_peak);
    const std::uint64_t before = status_kib("VmRSS");
    {
        auto source = kv::open_file(from, kv::Verify::checksums);
        REQUIRE(source.has_value());
        REQUIRE(convert(**source, to, spec_scheme("int8:channel:g32:asym")));
    }
    const std::uint64_t peak = status_kib("VmHWM"), state = n_layers * 1024;
    CHECK(peak > 0);
    CHECK_MESSAGE(peak < before + state / 4, "grew by ", peak - before, " KiB; the state has ", state);
}

TEST_CASE("what a conversion is said to hold at once is what it takes") {
    if (sanitized) return note_skip("AddressSanitizer keeps what was freed");
    Plan plan;
    plan.n_layers = 1;
    plan.head_dim_k = plan.head_dim_v = 64;
    plan.lengths = {65536};  // 16 MiB of K and of V
    constexpr std::uint32_t n_layers = 3;
    const TempDir folder;
    const std::string from = folder.path() + "/a.h5";
    {
        Generated source(plan);
        source.repeat(n_layers);
        REQUIRE(convert(source, from, plain_scheme("f16")));
    }
    for (const std::string spec : {"int8:token", "wf4:channel:g64", "had:int4:token:asym"}) {
        CAPTURE(spec);
        if (!reset_peak()) return note_skip(no_peak);
        const std::uint64_t before = status_kib("VmRSS");
        auto source = kv::open_file(from, kv::Verify::checksums);
        REQUIRE(source.has_value());
        const std::vector<kv::Scheme> schemes(n_layers, spec_scheme(spec));
        const std::uint64_t said = kv::convert_memory((*source)->header(), schemes, schemes, 2).bytes / 1024;
        const std::string to = folder.path() + "/" + spec.substr(0, spec.find(':')) + ".h5";
        const Status done = convert(**source, to, schemes.front(), kv::Handing::written);
        REQUIRE_MESSAGE(done.has_value(), done.error().message);
        const std::uint64_t peak = status_kib("VmHWM");
        CHECK_MESSAGE(peak < before + said + 2048, "grew by ", peak - before, " KiB; ", said, " were said");
        CHECK_MESSAGE(peak + 4096 > before + said, "grew by ", peak - before, " KiB; ", said, " were said");
    }
}

TEST_CASE("to read one of many sequences is not to read the links of all") {
    constexpr std::size_t n = 800, least_link_bytes = 16;
    Plan plan;
    plan.n_layers = 1;
    plan.vocab_size = 2 * n;
    plan.logits = false;
    plan.lengths.assign(n, 2);
    const auto read_by_this_process = [] {
        std::ifstream counters("/proc/self/io");
        std::uint64_t bytes = 0;
        for (std::string field; counters >> field >> bytes;)
            if (field == "rchar:") return bytes;
        return std::uint64_t{0};
    };
    const TempDir folder;
    save(make_state(plan), folder / "a.h5");
    const auto source = must(kv::open_file(folder / "a.h5"));
    const std::uint64_t before = read_by_this_process();
    if (before == 0) return note_skip("no /proc/self/io");
    for (std::size_t i = 0; i < n; ++i) must(source->read_layer());
    const std::uint64_t of_each = (read_by_this_process() - before) / n;
    CHECK(of_each > 0);
    CHECK(of_each < n * least_link_bytes);
}
