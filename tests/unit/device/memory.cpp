// What a session takes of a device is known before, and given back.
#include <thread>

#include "engine/kv_pool.h"
#include "support.h"

using namespace hetero;
using namespace hetero::test;

TEST_CASE("a session that does not fit is refused before it takes anything, with all figures") {
    const auto model = tiny_model();
    const std::size_t before = emulation::usage().bytes;
    const Error error = error_of(try_session(model, {.device_memory = 1000}));
    CHECK(error.code == Errc::resource);
    for (const char* part : {"emulated:1", "of weights", "of KV cache", "but 1000 are allowed", "--kv-tier host"})
        CHECK(has(error, part));
    CHECK(emulation::usage().bytes == before);
    emulation::Settings settings = emulation::settings();
    settings.total_bytes = 2000;
    const emulation::Configured configured(settings);
    CHECK(has(error_of(try_session(model, {})), "but 2000 are free"));
}

TEST_CASE("a session takes no more than it has said") {
    for (const std::string name : {"llama/f32", "qwen3_moe/bf16", "deepseek_v3/bf16"})
        for (const std::string tiers : {"device", "host"}) {
            const auto model = tiny_model(name);
            // The figure of the refusal.
            const Error error = error_of(try_session(model, {.tiers = tiers, .sequences = 2, .device_memory = 1}));
            const std::size_t at = error.message.find("needs ") + 6;
            const std::uint64_t said = std::stoull(error.message.substr(at));
            const std::size_t before = emulation::usage().bytes;
            const auto session = session_of(model, {.tiers = tiers, .sequences = 2, .device_memory = said});
            prefill(*session, some_tokens(40));
            step(*session, 1);
            CHECK(emulation::usage().bytes - before <= said);
            CHECK_FALSE(try_session(tiny_model(name), {.tiers = tiers, .sequences = 2, .device_memory = said - 1}));
        }
}

TEST_CASE("all memory is given back, also after a failure at any point") {
    const auto model = tiny_model();
    {
        const auto session = session_of(model);
        prefill(*session, some_tokens(20));
    }
    CHECK(emulation::usage().allocations == 0);
    int failures = 0;
    for (int after = 0;; ++after) {
        emulation::fail_allocation(after);
        auto made = try_session(model, {});
        emulation::fail_allocation(-1);
        if (made) break;
        ++failures;
        CHECK(made.error().code == Errc::resource);
        CHECK(emulation::usage().allocations == 0);
    }
    CHECK(failures > 5);
}

TEST_CASE("sessions of one model share its weights on a device") {
    const auto model = tiny_model("qwen2/bf16");
    const std::size_t before = emulation::usage().bytes;
    const auto first = session_of(model);
    const std::size_t one = emulation::usage().bytes - before;
    const auto second = session_of(model);
    CHECK(emulation::usage().bytes - before - one < one);
    CHECK((prefill(*first, some_tokens(9)) == prefill(*second, some_tokens(9))));
}

TEST_CASE("the copying of weights is told, to its end") {
    const auto model = tiny_model();
    engine::Options options;
    options.device = {&kernels::emulated_ops(), 0, 0};
    std::uint64_t last = 0, all = 0;
    options.on_weights = [&](std::uint64_t done, std::uint64_t total) {
        CHECK(done >= last);
        last = done;
        all = total;
    };
    must(Session::create(model, options, 10));
    CHECK(all > 0);
    CHECK(last == all);
}

namespace {

// Page-locked of the host's memory by a session that has prefilled, while it exists.
std::size_t locked_by(const std::shared_ptr<const model::Model>& model, const Wanted& wanted, bool observed) {
    const std::size_t before = emulation::usage().locked_bytes;
    const auto session = session_of(model, wanted);
    if (observed) session->observe_layers([](std::uint32_t, std::uint64_t) -> Status { return {}; });
    prefill(*session, some_tokens(70));
    step(*session, 3);
    (void)state_of(*session);
    return emulation::usage().locked_bytes - before;
}

}  // namespace

TEST_CASE("of the pool's memory is page-locked what is copied while the device computes") {
    const auto model = tiny_model();
    const std::size_t before = emulation::usage().locked_bytes;
    const auto pool_bytes = [&](std::uint64_t capacity) {
        return engine::KvPool::bytes_needed(model->program.kv, DType::f32, engine::KvPool::pages_for(capacity));
    };
    const std::size_t alone = locked_by(model, {}, false);
    CHECK(locked_by(model, {.tiers = "file"}, true) == alone);
    for (const auto& [tiers, observed] : {std::pair("device", true), {"host", false}, {"0.k=host", false}})
        CHECK(locked_by(model, {.tiers = tiers}, observed) == alone + pool_bytes(160));
    // Of a large pool, that part which is used.
    constexpr std::uint32_t capacity = 512, sequences = 64;
    Wanted wanted{.capacity = capacity, .sequences = sequences};
    const std::size_t without = locked_by(model, wanted, false);
    wanted.tiers = "host";
    const std::size_t large = locked_by(model, wanted, false) - without;
    CHECK(large >= pool_bytes(71));
    CHECK(large <= pool_bytes(capacity * sequences) / 2);
    CHECK(emulation::usage().locked_bytes == before);
}

TEST_CASE("nothing that is copied while the device computes is pageable") {
    const auto model = tiny_model("qwen3/bf16");
    const engine::KvCodecs by_channel{must(quant::parse_spec("int8:channel:g32:asym")),
                                      must(quant::parse_spec("int8:token"))};
    for (const std::optional<engine::KvCodecs>& codecs : {std::optional<engine::KvCodecs>(), {by_channel}})
        for (const std::string tiers : {"device", "host", "v=host"})
            for (const std::uint64_t block : {0, 1000}) {
                CAPTURE(codecs.has_value());
                CAPTURE(tiers);
                const auto session = session_of(model, {.kv_dtype = DType::f16,
                                                        .codecs = codecs,
                                                        .tiers = tiers,
                                                        .chunk_tokens = 16,
                                                        .block_tokens = block});
                std::uint32_t layers = 0;
                session->observe_layers([&](std::uint32_t, std::uint64_t) -> Status { return ++layers, Status{}; });
                const std::size_t before = emulation::usage().pageable_copies;
                prefill(*session, some_tokens(70));
                step(*session, 3);
                CHECK(layers == model->config.n_layers);
                CHECK(emulation::usage().pageable_copies == before);
            }
}

TEST_CASE("a call of any thread opens no other device than its own") {
    const kernels::DeviceOps& ops = kernels::emulated_ops();
    const std::size_t before = emulation::usage().unchosen_calls;
    // Each in a thread that has made no call before.
    const auto call = [](const auto& body) {
        kernels::DeviceFault fault;
        std::thread([&] { fault = body(); }).join();
        INFO(fault.message());
        CHECK_FALSE(static_cast<bool>(fault));
    };
    using kernels::DeviceEventUse;
    void *memory = nullptr, *host = nullptr;
    std::vector<std::byte> own(64);
    kernels::DeviceStream stream = nullptr;
    kernels::DeviceEvent begin = nullptr, end = nullptr;
    kernels::DeviceGraph graph = nullptr;
    float ms = 0;
    call([&] { return ops.allocate(1, 64, &memory); });
    call([&] { return ops.allocate_host(1, 64, &host); });
    call([&] { return ops.register_host(1, own.data(), 64); });
    call([&] { return ops.create_stream(1, &stream); });
    for (kernels::DeviceEvent* event : {&begin, &end})
        call([&] { return ops.create_event(1, DeviceEventUse::time, event); });
    call([&] { return ops.record(begin, stream); });
    call([&] { return ops.fill(stream, memory, 0, 64); });
    call([&] { return ops.copy(stream, host, memory, 64); });
    call([&] { return ops.copy_2d(stream, own.data(), 8, memory, 8, 8, 8); });
    call([&] { return ops.scale(stream, static_cast<float*>(memory), 16, 1, 16, 3); });
    call([&] { return ops.record(end, stream); });
    call([&] { return ops.wait(stream, end); });
    call([&] { return ops.synchronize_event(end); });
    call([&] { return ops.elapsed_ms(begin, end, &ms); });
    call([&] {  // a capture ends in the thread where it began
        if (kernels::DeviceFault fault = ops.begin_capture(stream)) return fault;
        if (kernels::DeviceFault fault = ops.fill(stream, memory, 0, 64)) return fault;
        return ops.end_capture(stream, &graph);
    });
    call([&] { return ops.launch_graph(graph, stream); });
    call([&] { return ops.synchronize(stream); });
    call([&] { return ops.destroy_graph(graph); });
    for (const kernels::DeviceEvent event : {begin, end}) call([&] { return ops.destroy_event(event); });
    call([&] { return ops.destroy_stream(stream); });
    call([&] { return ops.unregister_host(1, own.data()); });
    call([&] { return ops.free_host(1, host); });
    call([&] { return ops.free(1, memory); });
    CHECK(emulation::usage().unchosen_calls == before);
}
