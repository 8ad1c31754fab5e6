// Whole models on a device: the CPU's results, whichever way the ops are run and the tokens come.
#include <numeric>

#include "support.h"

using namespace hetero;
using namespace hetero::test;
using engine::Exec;
using engine::Precision;

namespace {

constexpr double tolerance = 1e-3;  // of logits: two correct f32 programs differ by up to 1e-4 here

// The emulated device; its call of `gemv` that many calls from now fails, < 0: none.
int gemv_fails_after = -1;
const kernels::DeviceOps& failing_ops() {
    static const kernels::DeviceOps made = [] {
        kernels::DeviceOps ops = kernels::emulated_ops();
        ops.gemv = [](auto... args) -> kernels::DeviceFault {
            if (gemv_fails_after < 0 || gemv_fails_after-- != 0) return kernels::emulated_ops().gemv(args...);
            kernels::DeviceFault fault;
            fault.kind = kernels::DeviceFault::Kind::failed;
            fault.where = "gemv";
            return fault;
        };
        return ops;
    }();
    return made;
}

}  // namespace

TEST_CASE("a model of every family has the CPU's logits, and continues with the same tokens") {
    for (const std::string& name : all_tiny_models()) {
        CAPTURE(name);
        const auto model = tiny_model(name);
        const auto here = session_of(model, {.on_device = false}), there = session_of(model);
        CHECK(here->device() == "cpu");
        CHECK(there->device() == "emulated:1");
        const auto prompt = some_tokens(21);
        const Continued expected = run(*here, prompt, 3), got = run(*there, prompt, 3);
        CHECK(got.tokens == expected.tokens);
        for (std::size_t i = 0; i < got.logits.size(); ++i)
            CHECK(largest_difference(got.logits[i], expected.logits[i]) <= tolerance);
    }
}

TEST_CASE("products in bf16 move the logits by their rounding only") {
    for (const std::string& name : all_tiny_models()) {
        CAPTURE(name);
        const auto model = tiny_model(name);
        const auto there = session_of(model, {.precision = Precision::fast}),
                   here = session_of(model, {.on_device = false});
        const auto expected = prefill(*here, some_tokens(21)), got = prefill(*there, some_tokens(21));
        float most = 0;
        for (const float value : expected) most = std::max(most, std::fabs(value));
        CHECK(largest_difference(got, expected) <= 0.1 * most);
        CHECK(engine::argmax(got) == engine::argmax(expected));
    }
}

TEST_CASE("graphs, ops one by one, chunks and layers give the same bits") {
    for (const std::string name :
         {"llama/f32", "mistral_swa/bf16", "gemma2/bf16", "qwen3_moe/bf16", "deepseek_v2/f32"}) {
        CAPTURE(name);
        const auto model = tiny_model(name);
        const auto prompt = some_tokens(name == "llama/f32" ? 75 : 20);
        const auto whole = session_of(model, {.kv_dtype = DType::f16, .chunk_tokens = 128});
        const Continued expected = run(*whole, prompt, 4);
        const auto state = state_of(*whole);
        const Wanted others[] = {{.exec = Exec::eager, .kv_dtype = DType::f16, .chunk_tokens = 128},
                                 {.kv_dtype = DType::f16, .chunk_tokens = 7},
                                 {.kv_dtype = DType::f16, .chunk_tokens = 9, .block_tokens = 90}};
        for (const Wanted& wanted : others) {
            const auto session = session_of(model, wanted);
            std::uint32_t layers = 0;
            if (wanted.block_tokens != 0)
                session->observe_layers([&](std::uint32_t layer, std::uint64_t end) -> Status {
                    CHECK(layer == layers++);
                    CHECK(end == prompt.size());
                    return {};
                });
            CHECK((run(*session, prompt, 4) == expected));
            CHECK(same_bytes(state_of(*session), state));
            CHECK(layers == (wanted.block_tokens != 0 ? model->config.n_layers : 0));
        }
    }
}

TEST_CASE("a decode step is launched as a graph from its second time on") {
    const auto model = tiny_model();
    for (const Exec exec : {Exec::graph, Exec::eager}) {
        const auto session = session_of(model, {.exec = exec});
        prefill(*session, some_tokens(5));
        std::vector<std::size_t> graphs;
        for (TokenId token = 0; token < 4; ++token) {
            const std::size_t before = emulation::usage().graph_launches;
            step(*session, token);
            graphs.push_back(emulation::usage().graph_launches - before);
        }
        CHECK(graphs == (exec == Exec::graph ? std::vector<std::size_t>{0, 1, 1, 1} : std::vector<std::size_t>(4, 0)));
    }
}

TEST_CASE("a step tells the likeliest tokens, and all logits where they are not enough") {
    const auto model = tiny_model();
    const std::size_t vocab = model->config.vocab_size;
    for (const Exec exec : {Exec::graph, Exec::eager}) {
        CAPTURE(static_cast<int>(exec));
        const auto plain = session_of(model, {.exec = exec}), session = session_of(model, {.exec = exec});
        prefill(*plain, some_tokens(5));
        prefill(*session, some_tokens(5));
        for (TokenId token = 0; token < 9; ++token) {
            const std::vector<float> expected = step(*plain, token);
            const engine::LikeliestWanted wanted{token < 4 ? 1U : token < 8 ? 40U : 0U, token % 2 == 0 ? 0 : 0.7};
            bool enough = token % 4 != 3;
            std::size_t told = 0, given = 0;
            const Session::Step one{session.get(), token};
            must(Session::decode_together(
                {&one, 1}, wanted,
                [&](std::size_t index, const engine::Likeliest& likeliest) -> Result<bool> {
                    CHECK(index == 0);
                    ++told;
                    std::vector<std::int32_t> order(vocab);
                    std::iota(order.begin(), order.end(), 0);
                    std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
                        return expected[static_cast<std::size_t>(a)] > expected[static_cast<std::size_t>(b)];
                    });
                    REQUIRE(likeliest.tokens.size() == wanted.count);
                    for (std::size_t i = 0; i < wanted.count; ++i) {
                        CHECK(likeliest.tokens[i].id == order[i]);
                        CHECK(likeliest.tokens[i].logit == expected[static_cast<std::size_t>(order[i])]);
                    }
                    double total = 0;
                    for (const float value : expected)
                        if (wanted.temperature != 0)
                            total +=
                                std::exp((static_cast<double>(value) - static_cast<double>(likeliest.tokens[0].logit)) /
                                         wanted.temperature);
                    CHECK(likeliest.total == doctest::Approx(total).epsilon(1e-9));
                    return enough;
                },
                [&](std::size_t, std::span<const float> logits) -> Status {
                    ++given;
                    CHECK(std::ranges::equal(logits, expected));
                    return {};
                }));
            CHECK(told == (wanted.count == 0 ? 0 : 1));
            CHECK(given == (wanted.count == 0 || !enough ? 1 : 0));
        }
    }
}

TEST_CASE("a step that failed counts neither as a first run nor as a graph") {
    const auto model = tiny_model();
    const auto expected = session_of(model), session = session_of(model, {.ops = &failing_ops()});
    prefill(*expected, some_tokens(5));
    prefill(*session, some_tokens(5));
    const auto graphs_of = [&](TokenId token, bool fails) {
        const std::size_t before = emulation::usage().graph_launches;
        const auto position = session->position();
        gemv_fails_after = fails ? 2 : -1;
        auto logits = session->decode(token);
        gemv_fails_after = -1;
        CHECK(logits.has_value() != fails);
        CHECK(session->position() == position + !fails);
        const std::size_t launched = emulation::usage().graph_launches - before;
        if (!fails) CHECK(std::ranges::equal(*logits, step(*expected, token)));
        return launched;
    };
    CHECK(graphs_of(3, true) == 0);
    CHECK(graphs_of(3, false) == 0);  // the first run
    CHECK(graphs_of(4, true) == 0);   // while it was recorded
    CHECK(graphs_of(4, false) == 1);
    CHECK(graphs_of(5, false) == 1);
}

TEST_CASE("a step has one launch for q, k and v, one for what follows up to attention, and one for gate and up") {
    static std::vector<std::size_t> together;  // products of a launch; 0: what follows q, k and v
    kernels::DeviceOps ops = kernels::emulated_ops();
    ops.gemv_together = [](kernels::DeviceStream stream, const kernels::DeviceProduct* products, std::size_t n,
                           auto... rest) {
        together.push_back(n);
        return kernels::emulated_ops().gemv_together(stream, products, n, rest...);
    };
    ops.finish_qkv = [](auto... all) {
        together.push_back(0);
        return kernels::emulated_ops().finish_qkv(all...);
    };
    ops.rope = nullptr;
    ops.kv_store = nullptr;
    const auto model = tiny_model();
    const auto session = session_of(model, {.exec = Exec::eager, .ops = &ops});
    prefill(*session, some_tokens(5));
    together.clear();
    step(*session, 3);
    std::vector<std::size_t> expected;
    for (std::uint32_t layer = 0; layer < model->config.n_layers; ++layer) expected.insert(expected.end(), {3, 0, 2});
    CHECK(together == expected);
}

TEST_CASE("work that runs as late as it may changes nothing") {
    const auto model = tiny_model("qwen3/bf16");
    const auto prompt = some_tokens(40);
    const auto expected = run(*session_of(model, {.chunk_tokens = 16}), prompt, 4);
    for (const auto order : {emulation::Order::backward, emulation::Order::shuffled}) {
        emulation::Settings settings = emulation::settings();
        settings.late = true;
        settings.order = order;
        const emulation::Configured configured(settings);
        for (const std::string tiers : {"device", "host", "0.k=host"}) {
            CAPTURE(tiers);
            CHECK((run(*session_of(model, {.tiers = tiers, .chunk_tokens = 16}), prompt, 4) == expected));
        }
    }
}

TEST_CASE("sequences together have the bits of each alone, on shared pages") {
    const std::pair<std::string, Precision> cases[] = {{"gguf/llama-q8_0.gguf", Precision::precise},
                                                       {"gguf/llama-q8_0.gguf", Precision::fast},
                                                       {"deepseek_v3/bf16", Precision::precise}};
    for (const auto& [name, precision] : cases) {
        CAPTURE(name);
        const auto first = session_of(tiny_model(name), {.precision = precision, .sequences = 6});
        prefill(*first, some_tokens(70));
        const auto second = must(first->fork(70)), third = must(first->fork(66));
        const std::unique_ptr<Session> alone[] = {must(first->fork(70)), must(first->fork(70)), must(first->fork(66))};
        std::vector<std::vector<float>> together(3), expected(3);
        for (int i = 0; i < 4; ++i) {
            const Session::Step steps[] = {{first.get(), 3 + i}, {second.get(), 40 + i}, {third.get(), 77 + i}};
            must(Session::decode_together(steps, [&](std::size_t index, std::span<const float> logits) -> Status {
                together[index].assign(logits.begin(), logits.end());
                return {};
            }));
            for (std::size_t s = 0; s < 3; ++s) expected[s] = step(*alone[s], steps[s].token);
            CHECK((together == expected));
        }
    }
}

TEST_CASE("many sequences of a step are multiplied on matrix units, and move by their rounding only") {
    constexpr std::size_t n = 11;
    const auto first = session_of(tiny_model("qwen2/bf16"), {.precision = Precision::fast, .sequences = n});
    prefill(*first, some_tokens(20));
    std::vector<std::unique_ptr<Session>> others;
    std::vector<Session::Step> steps = {{first.get(), 0}};
    for (std::size_t i = 1; i < n; ++i) {
        others.push_back(must(first->fork(20)));
        steps.push_back({others.back().get(), static_cast<TokenId>(i)});
    }
    std::vector<std::vector<float>> together(n);
    must(Session::decode_together(steps, [&](std::size_t index, std::span<const float> logits) -> Status {
        together[index].assign(logits.begin(), logits.end());
        return {};
    }));
    for (std::size_t i = 0; i < n; ++i) {
        must(steps[i].session->truncate(20));
        const auto alone = step(*steps[i].session, steps[i].token);
        float most = 0;
        for (const float value : alone) most = std::max(most, std::fabs(value));
        const double moved = largest_difference(together[i], alone);
        CHECK(moved <= 0.1 * most);
        CHECK(moved > 0);
    }
}

TEST_CASE("a truncated session computes the same bits again") {
    for (const std::string name : {"llama3_rope/bf16", "deepseek_v3/bf16"}) {
        const auto session = session_of(tiny_model(name));
        const auto first = prefill(*session, some_tokens(65));
        const auto after = step(*session, 17);
        must(session->truncate(65));
        CHECK((step(*session, 17) == after));
        must(session->truncate(63));
        must(session->truncate(0));
        CHECK((prefill(*session, some_tokens(65)) == first));
    }
}

TEST_CASE("queries are shown as the CPU shows them") {
    const auto model = tiny_model("qwen2/bf16");
    std::vector<float> seen[2];
    for (const bool on_device : {false, true}) {
        const auto session = session_of(model, {.on_device = on_device, .chunk_tokens = 16});
        session->observe_queries([&](const engine::Queries& queries) -> Status {
            const std::size_t dim = queries.attention.n_heads * model->program.kv.front().query_dim();
            for (std::size_t token = 0; token < queries.n_tokens; ++token)
                seen[on_device].insert(seen[on_device].end(), queries.values + token * queries.stride,
                                       queries.values + token * queries.stride + dim);
            return {};
        });
        prefill(*session, some_tokens(20));
        step(*session, 3);
    }
    CHECK(seen[0].size() == 21 * model->config.n_layers * model->config.n_heads * model->config.head_dim);
    CHECK(largest_difference(seen[0], seen[1]) <= 1e-3);
}
