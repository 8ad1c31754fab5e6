// Profiles as planners read them.
#include "hw/profile.h"

#include "support/golden.h"
#include "unit/hw/support.h"

using namespace hetero;
using namespace hetero::test;

namespace {

hw::Profile parsed(const std::string& text) {
    auto profile = hw::parse_profile(text, "node.toml");
    REQUIRE_MESSAGE(profile.has_value(), profile.error().message);
    return std::move(*profile);
}

// The message of a refusal.
std::string refusal(const std::string& text) {
    const auto profile = hw::parse_profile(text, "node.toml");
    REQUIRE_FALSE(profile.has_value());
    CHECK(profile.error().code == Errc::bad_input);
    return profile.error().message;
}

const std::string two_machines = R"(
profile_schema = 2
[source]
kind = "specification"
[[machines]]
name = "a"
ranks = [0, 1]
[machines.cpu]
model = "A CPU"
threads_default = 8
[[machines.compute.rates]]
dtype = "int4"
weights = "q4_1"
path = "fast"
threads = 8
origin = "measured"
bytes_per_weight = 0.625
gemm_tokens = 512
gemm_gflop_per_s = 1500
gemv_gb_per_s = 90.5
batch_tokens = [1, 4]
batch_gflop_per_s = [280.0, 900.0]
[[machines.compute.rates]]
dtype = "fp8_e4m3fn"
executable = false
unsupported = "no kernel"
[[machines.memory_bandwidth.rates]]
threads = 8
read_gb_per_s = 100
[[machines]]
name = "b"
[[machines.gpus.nvml.devices]]
name = "G"
power_limit_w = 700
[[machines.gpus.cuda.devices]]
name = "G"
count = 8
memory_total_bytes = 150000000000
compute_capability = "9.0"
[machines.gpus.cuda.devices.copies]
host_to_device_gb_per_s = 55
[[links]]
from = "a"
to = "b"
latency_us = 3.5
gb_per_s = 24
message_bytes = [4096, 1048576]
message_gb_per_s = [1.5, 20]
)";

}  // namespace

TEST_CASE("a fleet is read with the origin of each figure") {
    const hw::Profile fleet = parsed(two_machines);
    REQUIRE(fleet.machines.size() == 2);
    CHECK(fleet.origin == hw::Origin::specification);
    const hw::Machine& a = fleet.machines[0];
    CHECK(a.ranks == std::vector<int>{0, 1});
    CHECK(a.cpu.name == "A CPU");
    CHECK(a.cpu.threads == 8);
    REQUIRE(a.cpu.products.size() == 2);
    const hw::ProductRate& int4 = a.cpu.products[0];
    CHECK(int4.origin == hw::Origin::measured);
    CHECK(int4.weights == "q4_1");
    CHECK(int4.bytes_per_weight == 0.625);
    CHECK(int4.gemm_tokens == 512);
    CHECK(int4.gemm_gflop_per_s == 1500);
    CHECK(int4.gemv_gb_per_s == 90.5);
    REQUIRE(int4.batches.size() == 2);
    CHECK(int4.batches[1].tokens == 4);
    CHECK(int4.batches[1].gflop_per_s == 900);
    CHECK(int4.unsupported.empty());
    CHECK(a.cpu.products[1].unsupported == "no kernel");
    CHECK(a.cpu.products[1].origin == hw::Origin::specification);
    CHECK_FALSE(a.cpu.products[1].gemm_gflop_per_s.has_value());
    REQUIRE(a.cpu.bandwidth.size() == 1);
    CHECK(a.cpu.bandwidth[0].read_gb_per_s == 100);
    CHECK_FALSE(a.cpu.bandwidth[0].triad_gb_per_s.has_value());
    const hw::Machine& b = fleet.machines[1];
    REQUIRE(b.gpus.size() == 1);
    CHECK(b.gpus[0].count == 8);
    CHECK(b.gpus[0].memory_bytes == 150000000000);
    CHECK(b.gpus[0].copies.host_to_device_gb_per_s == 55);
    CHECK(b.gpus[0].power_limit_w == 700);
    REQUIRE(fleet.links.size() == 1);
    CHECK(fleet.links[0].latency_us == 3.5);
    REQUIRE(fleet.links[0].sizes.size() == 2);
    CHECK(fleet.links[0].sizes[1].message_bytes == 1048576);
    CHECK(fleet.links[0].sizes[1].gb_per_s == 20);
    CHECK_FALSE(fleet.links[0].asymmetric);
}

TEST_CASE("what hw-probe writes is read, as JSON and as TOML, and says the same") {
    hw::ProbeOptions options;
    options.seconds_each = 0.01;
    options.quick = true;
    const hw::ProfileTexts texts = profile(options);
    const hw::Profile json = parsed(texts.json), toml = parsed(texts.toml);
    REQUIRE(json.machines.size() == 1);
    REQUIRE(toml.machines.size() == 1);
    const hw::Device &a = json.machines[0].cpu, &b = toml.machines[0].cpu;
    CHECK(json.machines[0].name == toml.machines[0].name);
    CHECK(json.origin == hw::Origin::measured);
    CHECK(a.memory_bytes == b.memory_bytes);
    REQUIRE_FALSE(a.products.empty());
    REQUIRE(a.products.size() == b.products.size());
    for (std::size_t i = 0; i < a.products.size(); ++i) {
        CAPTURE(a.products[i].weights);
        CHECK(a.products[i].gemm_gflop_per_s.has_value() == a.products[i].unsupported.empty());
        CHECK(a.products[i].gemm_gflop_per_s == b.products[i].gemm_gflop_per_s);
    }
    REQUIRE_FALSE(a.bandwidth.empty());
    CHECK(a.bandwidth[0].triad_gb_per_s == b.bandwidth[0].triad_gb_per_s);
}

TEST_CASE("a key that profiles do not have is refused, and the nearest one named") {
    const std::string message = refusal("profile_schema = 2\n[memory]\nmemory_totl_bytes = 1\n");
    CHECK(message ==
          "node.toml: memory.memory_totl_bytes: profiles have no such key; the nearest one is 'memory_total_bytes'");
    CHECK(refusal(R"({"profile_schema": 2, "compute": {"rates": [{"dtype": "f32", "gemm_gflops_per_s": 5}]}})") ==
          "node.toml: compute.rates[0].gemm_gflops_per_s: profiles have no such key; the nearest one is "
          "'gemm_gflop_per_s'");
    CHECK(refusal("profile_schema = 2\nmemroy_unknown = \"?\"\n").find("'memory_unknown'") != std::string::npos);
}

TEST_CASE("what is not known is no figure, and no figure is 0") {
    CHECK(refusal("profile_schema = 2\n[disk]\nread_gb_per_s = 0\n").find("must be a number above 0") !=
          std::string::npos);
    CHECK(refusal(R"({"profile_schema": 2, "disk": {"read_gb_per_s": null}})").find("no read_gb_per_s_unknown") !=
          std::string::npos);
    CHECK(refusal("profile_schema = 2\n[disk]\nread_gb_per_s = 1\nread_gb_per_s_unknown = \"?\"\n").find("is known") !=
          std::string::npos);
    CHECK(refusal("profile_schema = 2\n[disk]\nread_gb_per_s = nan\n").find("above 0") != std::string::npos);
    const hw::Profile one =
        parsed(R"({"profile_schema": 2, "disk": {"read_gb_per_s": null, "read_gb_per_s_unknown": "no disk"}})");
    CHECK_FALSE(one.machines.at(0).disk.read_gb_per_s.has_value());
}

TEST_CASE("values that make no sense are refused by their place") {
    struct Case {
        const char *text, *part;
    };
    for (const auto& [text, part] : {
             Case{"", "empty"},
             Case{"profile_schema = 1", "profile_schema is 1, expected 2"},
             Case{"[memory]\n", "profile_schema is missing"},
             Case{"profile_schema = -1", "whole number"},
             Case{"profile_schema = 2\nlinks = 3", "links: must be a list of tables"},
             Case{"profile_schema = 2\nmachines = [1]", "machines: must be a list of tables"},
             Case{"profile_schema = 2\n[[machines]]\nname = \"a\"\n[[machines]]\nname = \"a\"", "another machine"},
             Case{"profile_schema = 2\n[[machines]]\nranks = []", "machines[0]: lacks 'name'"},
             Case{"profile_schema = 2\n[[machines]]\nname = \"a\"\ncount = 0", "machines[0].count: is 0"},
             Case{"profile_schema = 2\n[host]\nhostname = \"a\"\n[[links]]\nfrom = \"a\"\nto = \"b\"",
                  "links[0].to: no machine has the name 'b'"},
             Case{"profile_schema = 2\n[host]\nhostname = \"a\"\n[[links]]\nfrom = \"a\"\nto = \"a\"\nmessage_bytes = "
                  "[1]",
                  "message_gb_per_s has 0"},
             Case{"profile_schema = 2\n[source]\nkind = \"guess\"", "'guess' is none of measured"},
             Case{"profile_schema = 2\nthreads_measured = 99999999999\n[[memory_bandwidth.rates]]\nthreads = "
                  "99999999999",
                  "memory_bandwidth.rates[0].threads: is 99999999999"},
             Case{"profile_schema = 2\n[[compute.rates]]\nthreads = 1", "compute.rates[0]: lacks 'dtype'"},
             Case{"profile_schema = 2\n[[compute.rates]]\ndtype = \"f32\"\nexecutable = true\nunsupported = \"?\"",
                  "'executable' is true"},
             Case{"profile_schema = 2\n[[compute.rates]]\ndtype = \"f32\"\nbatch_tokens = [2, 2]\nbatch_gflop_per_s = "
                  "[1, 1]",
                  "must ascend"},
             Case{"profile_schema = 2\n[[machines]]\nname = \"a\"\ncount = 4097",
                  "machines[0].count: is 4097, at most"},
             Case{"profile_schema = 2\n[[gpus.cuda.devices]]\nname = \"g\"\ncount = 257", "count: is 257, at most"},
             Case{"profile_schema = 2\n[disk]\nread_gb_per_s = 1e300", "above 0, at most"},
             Case{"profile_schema = 2\n[disk]\nread_gb_per_s = 1e-300", "above 0, at most"},
             Case{"profile_schema = 2\nwhen = 2026-01-01", "dates"},
             Case{"{\"profile_schema\": 2", "is not JSON"},
         }) {
        CAPTURE(text);
        CHECK(refusal(text).find(part) != std::string::npos);
    }
}

TEST_CASE("names out of a profile cannot steer a terminal") {
    const hw::Profile profile = parsed("profile_schema = 2\n[[machines]]\nname = \"a\\u001b[2J\\nb\"\n");
    CHECK(profile.machines.at(0).name == "a?[2J?b");
}

TEST_CASE("what a model took is read, and so is what makes rates rough and processors warm") {
    const std::string text = R"(
profile_schema = 2
[source]
kind = "measured"
quick = true
[cpu]
model = "A CPU"
[[energy.rapl_domains]]
domain = "intel-rapl:0"
label = "package-0"
power_limit_w = 150
[[energy.rapl_domains]]
domain = "intel-rapl:1"
label = "package-1"
power_limit_w = 200.5
[[energy.rapl_domains]]
domain = "intel-rapl:0:0"
label = "dram"
power_limit_w = 30
[[stages]]
model = "m"
weights_digest = "abc"
dtype = "int4"
threads = 2
chunk_tokens = 512
[[stages.prefill]]
tokens = 48
seconds = 0.02
[[stages.prefill]]
tokens = 640
cached_tokens = 128
seconds = 0.2
[[stages.decode]]
context_tokens = 400
sequences = 2
step_seconds = 0.005
[[stages.decode]]
context_tokens = 60
step_seconds = 0.004
)";
    const hw::Profile profile = parsed(text);
    CHECK(profile.quick);
    CHECK(profile.machines.at(0).cpu.power_limit_w == 350.5);
    REQUIRE(profile.machines[0].cpu.stages.size() == 1);
    const hw::StageTimes& stages = profile.machines[0].cpu.stages[0];
    CHECK(stages.model == "m");
    CHECK(stages.machine == "A CPU");
    CHECK(stages.weights_digest == "abc");
    CHECK(stages.dtype == "int4");
    CHECK(stages.threads == 2);
    CHECK(stages.chunk_tokens == 512);
    REQUIRE(stages.prefill.size() == 2);
    CHECK(stages.prefill[1].cached_tokens == 128);
    CHECK(stages.prefill[1].seconds == 0.2);
    REQUIRE(stages.decode.size() == 2);
    CHECK(stages.decode[0].sequences == 2);
    CHECK(stages.decode[1].sequences == 1);
    // A GPU's are its own.
    const hw::Profile gpu = parsed(
        "profile_schema = 2\n[[gpus.cuda.devices]]\nname = \"G\"\n"
        "[[gpus.cuda.devices.stages]]\nmodel = \"m\"\n[[gpus.cuda.devices.stages.decode]]\n"
        "context_tokens = 9\nstep_seconds = 0.01\n");
    REQUIRE(gpu.machines.at(0).gpus.at(0).stages.size() == 1);
    CHECK(gpu.machines[0].gpus[0].stages[0].decode.at(0).step_seconds == 0.01);
    CHECK(gpu.machines[0].cpu.stages.empty());
    const auto with = [&](const std::string& from, const std::string& to) {
        std::string changed = text;
        const std::size_t at = changed.find(from);
        REQUIRE(at != std::string::npos);
        return refusal(changed.replace(at, from.size(), to));
    };
    CHECK(with("step_seconds = 0.005", "step_second = 0.005").find("nearest one is 'step_seconds'") !=
          std::string::npos);
    CHECK(with("seconds = 0.2", "seconds = 0").find("above 0") != std::string::npos);
    CHECK(with("cached_tokens = 128", "cached_tokens = 640").find("cached_tokens") != std::string::npos);
    CHECK(with("sequences = 2", "sequences = 0").find("is 0") != std::string::npos);
    CHECK(with("seconds = 0.02\n", "").find("lacks 'seconds'") != std::string::npos);
}

TEST_CASE("a file that is not there is refused by its name") {
    const auto profile = hw::read_profile("/nonexistent/node.toml");
    REQUIRE_FALSE(profile.has_value());
    CHECK(profile.error().message.find("/nonexistent/node.toml") != std::string::npos);
}

TEST_CASE("the recorded machines are read, and say where their figures come from") {
    const auto read = [](const char* name) {
        auto profile = hw::read_profile(testdata(std::string("hw/") + name));
        REQUIRE_MESSAGE(profile.has_value(), profile.error().message);
        CHECK(profile->origin == hw::Origin::specification);
        CHECK_FALSE(profile->note.empty());
        return std::move(*profile);
    };
    CHECK(read("laptop-cpu.toml").machines.at(0).cpu.products.size() == 5);
    const hw::Profile server = read("two-socket-server.toml");
    CHECK(server.machines.at(0).cpu.bandwidth.size() == 5);
    CHECK(server.machines.at(0).cpu.bandwidth.front().read_gb_per_s == 614.4);
    CHECK(server.machines.at(0).cpu.bandwidth.back().cpu_node == 1);
    const hw::Profile node = read("h200-node.toml");
    REQUIRE(node.machines.at(0).gpus.size() == 1);
    const hw::Device& gpu = node.machines[0].gpus[0];
    CHECK(gpu.count == 8);
    CHECK(gpu.power_limit_w == 700);
    REQUIRE(gpu.bandwidth.size() == 1);
    CHECK(gpu.bandwidth[0].origin == hw::Origin::published);
    CHECK(gpu.products.at(0).origin == hw::Origin::specification);
    CHECK(node.links.size() == 2);
    const hw::Profile fleet = read("mixed-fleet.toml");
    CHECK(fleet.machines.size() == 3);
    REQUIRE(fleet.find("cpu") != nullptr);
    CHECK(fleet.find("cpu")->gpus.empty());
}
