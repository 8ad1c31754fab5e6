// K and V that a device stores are, byte for byte, what engine::KvCache stores.
#include "kv_memory.h"

using namespace hetero;
using namespace hetero::kernels;
using namespace hetero::test;

namespace {

struct Shape {
    std::uint32_t heads, dim_k, dim_v;
};

// Floats come out of the pages as the engine takes them out.
void collect_on_both(const Device& device, const std::vector<HostKv>& host, std::byte* memory,
                     const DeviceSequences& sequences, std::size_t n_tokens) {
    for (const PartId part : {PartId::k, PartId::v})
        for (std::size_t s = 0; s < host.size(); ++s)
            for (const auto& [first, end] :
                 {std::pair<std::size_t, std::size_t>{0, n_tokens}, {63, 66}, {65, n_tokens}}) {
                const DeviceKv kv = host[s].part(part, memory);
                const std::size_t row = kv.n_heads * kv.head_dim * (kv.dtype == DType::f32 ? 4 : 2), n = end - first;
                const auto got = device.allocate<std::byte>(n * row);
                const DeviceFault fault = device.ops.kv_collect(device.stream, kv, sequences, s, first, n, got);
                if (kv.codes != KvCodes::floats) {
                    CHECK(fault.kind == DeviceFault::Kind::unsupported);
                    continue;
                }
                check(fault);
                std::vector<std::byte> expected(n * row);
                host[s].cache().save(0, part, first, end, expected);
                CHECK(got.read() == expected);
            }
}

void store_on_both(const Device& device, const std::string& storage, const Shape& shape, std::size_t n_tokens) {
    CAPTURE(storage);
    CAPTURE(shape.dim_k);
    model::KvLayout layout;
    layout.n_kv_heads = shape.heads;
    layout.head_dim_k = shape.dim_k;
    layout.head_dim_v = shape.dim_v;
    constexpr std::size_t n_sequences = 2;
    Random random(7);
    std::vector<HostKv> host;
    for (std::size_t i = 0; i < n_sequences; ++i) host.emplace_back(layout, storage_of(storage), n_tokens);
    const std::size_t n_pages = host[0].pages(), page_bytes = host[0].pool().page_bytes();
    std::vector<std::uint32_t> table;
    for (std::size_t s = 0; s < n_sequences; ++s)
        for (std::size_t i = 0; i < n_pages; ++i) table.push_back(device_page(i, s, n_sequences));
    const auto memory =
        device.upload(std::vector<std::byte>(device_pages(n_pages, n_sequences) * page_bytes, std::byte{0x5A}));
    const auto pages = device.upload(table);
    const auto error = device.upload(std::vector<unsigned long long>(1, ~0ULL));

    for (const PartId part : {PartId::k, PartId::v}) {
        const DeviceKv kv = host[0].part(part, memory);
        const std::size_t dim = kv.head_dim, group = kv.group_tokens, row = shape.heads * dim, stride = row + 3;
        const auto tail =
            device.allocate<std::uint16_t>(n_sequences * std::max<std::size_t>(1, shape.heads * group * dim));
        const auto tails =
            device.upload(std::vector<std::uint16_t*>{tail.get(), tail.get() + shape.heads * group * dim});
        // Tokens of the two sequences side by side, a piece at a time, which ends where a group does.
        for (std::size_t first = 0, n = 0; first < n_tokens; first += n) {
            n = std::min(n_tokens - first, group != 0 ? group - first % group : 37);
            if (group != 0 && n > 5 && first % group == 0) n = 5;
            std::vector<float> x(n_sequences * n * stride, NAN);
            std::vector<std::int32_t> sequence, position;
            for (std::size_t s = 0; s < n_sequences; ++s)
                for (std::size_t t = 0; t < n; ++t) {
                    float* values = x.data() + (s * n + t) * stride;
                    for (std::size_t i = 0; i < row; ++i) values[i] = random.normal() * (i % 11 == 0 ? 40.0F : 1.0F);
                    if (t == 1) std::fill_n(values, dim, t % 2 == 0 ? 0.0F : -0.0F);  // no range at all
                    if (t == 2) values[dim - 1] = 1e-6F;                              // subnormal
                    sequence.push_back(static_cast<std::int32_t>(s));
                    position.push_back(static_cast<std::int32_t>(first + t));
                    REQUIRE(host[s].cache().store(0, part, first + t, values));
                }
            const auto dx = device.upload(x);
            const auto ds = device.upload(sequence), dp = device.upload(position);
            const DeviceSequences sequences{pages, n_pages, group != 0 ? tails.get() : nullptr,
                                            ds,    dp,      n_sequences * n};
            check(device.ops.kv_store(device.stream, kv, sequences, {dx, stride, dim}, error));
            check(device.ops.synchronize(device.stream));
        }
        for (std::size_t s = 0; group != 0 && s < n_sequences; ++s)  // what is left of the last group
            for (std::uint32_t head = 0; head < shape.heads; ++head) {
                const KvView view = host[s].cache().view(0, part, head);
                const std::vector<std::uint16_t> all = tail.read();
                CHECK(std::equal(view.open, view.open + n_tokens % group * dim,
                                 all.data() + (s * shape.heads + head) * group * dim));
            }
    }
    CHECK(error.read()[0] == ~0ULL);
    collect_on_both(device, host, memory, DeviceSequences{pages, n_pages, nullptr, nullptr, nullptr, 0}, n_tokens);
    const std::vector<std::byte> all = memory.read();
    for (std::size_t s = 0; s < n_sequences; ++s)
        for (std::size_t i = 0; i < n_pages; ++i) {
            const std::byte* page = all.data() + device_page(i, s, n_sequences) * page_bytes;
            CHECK(std::equal(page, page + page_bytes, host[s].page(i).begin()));
        }
}

}  // namespace

TEST_CASE("K and V are stored as the engine stores them") {
    on_device([](const Device& device) {
        for (const char* storage : {"f32", "f16", "bf16", "int8", "int4", "fp8_e4m3fn", "int8-channel", "int4-channel"})
            for (const Shape& shape : {Shape{2, 64, 64}, Shape{1, 128, 96}, Shape{3, 96, 32}})
                store_on_both(device, storage, shape, 131);
        for (const char* storage : {"f32", "f16", "int8", "fp8_e4m3fn"})
            store_on_both(device, storage, {2, 20, 13}, 70);
    });
}

TEST_CASE("latents lie beside their keys") {
    on_device([](const Device& device) {
        model::KvLayout layout;
        layout.n_kv_heads = 1;
        layout.head_dim_k = 32;
        layout.head_dim_v = 8;
        layout.kind = model::KvLayout::Kind::latent;
        HostKv host(layout, DType::f16, 64);
        Random random(3);
        const auto memory = device.upload(std::vector<std::byte>(host.pool().page_bytes(), std::byte{0x5A}));
        const auto pages = device.upload(std::vector<std::uint32_t>{0});
        const auto error = device.upload(std::vector<unsigned long long>(1, ~0ULL));
        std::vector<float> x(64 * 40);
        fill_normal(x, random);
        std::vector<std::int32_t> position;
        for (std::int32_t t = 0; t < 64; ++t) {
            position.push_back(t);
            REQUIRE(host.cache().store(0, PartId::k, static_cast<std::uint64_t>(t), x.data() + t * 40));
            REQUIRE(host.cache().store(0, PartId::v, static_cast<std::uint64_t>(t), x.data() + t * 40 + 32));
        }
        const auto dx = device.upload(x);
        const auto dp = device.upload(position), ds = device.upload(std::vector<std::int32_t>(64, 0));
        const DeviceSequences sequences{pages, 1, nullptr, ds, dp, 64};
        DeviceKv k = host.part(PartId::k, memory), v = host.part(PartId::v, memory);
        check(device.ops.kv_store(device.stream, k, sequences, {dx, 40, 32}, error));
        check(device.ops.kv_store(device.stream, v, sequences, {dx.get() + 32, 40, 8}, error));
        const std::vector<std::byte> all = memory.read();
        CHECK(std::equal(all.begin(), all.end(), host.page(0).begin()));
    });
}

TEST_CASE("the first value that cannot be stored is named") {
    on_device([](const Device& device) {
        for (const char* storage : {"f32", "f16", "bf16", "int8", "int4", "int8-channel"}) {
            CAPTURE(storage);
            model::KvLayout layout;
            layout.n_kv_heads = 2;
            layout.head_dim_k = layout.head_dim_v = 32;
            HostKv host(layout, storage_of(storage), 64);
            const auto memory = device.allocate<std::byte>(host.pool().page_bytes());
            const auto tail = device.allocate<std::uint16_t>(2 * 32 * 32);
            const auto tails = device.upload(std::vector<std::uint16_t*>{tail});
            const auto pages = device.upload(std::vector<std::uint32_t>{0});
            const auto ds = device.upload(std::vector<std::int32_t>(3, 0));
            const auto dp = device.upload(std::vector<std::int32_t>{5, 6, 7});
            const DeviceSequences sequences{pages, 1, tails, ds, dp, 3};
            const DeviceKv k = host.part(PartId::k, memory);
            const bool wide = k.codes == KvCodes::floats && k.dtype != DType::f16;
            for (const float bad : {NAN, INFINITY, wide ? -INFINITY : -65520.0F}) {
                std::vector<float> x(3 * 64, 1.0F);
                x[1 * 64 + 32 + 9] = bad;
                x[1 * 64 + 32 + 11] = bad;
                x[2 * 64] = bad;
                const auto dx = device.upload(x);
                const auto error = device.upload(std::vector<unsigned long long>(1, ~0ULL));
                check(device.ops.kv_store(device.stream, k, sequences, {dx, 64, 32}, error));
                CHECK(error.read()[0] == 6 * 64 + 32 + 9);
            }
        }
    });
}

// Against the ops that it stands for. Those are exact but for the norm, whose order of summation may differ where a
// head has more than 128 dims; there is none of those here.
TEST_CASE("what follows the products of q, k and v at once is norm, rope and kv_store one by one") {
    on_device([](const Device& device) {
        Random random(12);
        constexpr std::size_t tokens = 5, heads = 6, kv_heads = 2;
        for (const char* storage : {"f32", "f16", "bf16", "int8", "int4", "fp8_e4m3fn", "int8-channel"})
            for (const RopePairing pairing : {RopePairing::half_split, RopePairing::interleaved})
                for (const int normed : {0, 1, 2}) {  // not, rms, layer
                    CAPTURE(storage);
                    CAPTURE(normed);
                    model::KvLayout layout;
                    layout.n_kv_heads = kv_heads;
                    layout.head_dim_k = 96;
                    layout.head_dim_v = 32;
                    HostKv host(layout, storage_of(storage), 128);
                    const std::size_t dim_k = 96, dim_v = 32, pairs = 16;
                    const std::size_t q_stride = heads * dim_k + 4, k_stride = kv_heads * dim_k,
                                      v_stride = kv_heads * dim_v + 1;
                    std::vector<float> q(tokens * q_stride), k(tokens * k_stride), v(tokens * v_stride), weight(dim_k);
                    for (auto* x : {&q, &k, &v, &weight}) fill_normal(*x, random);
                    const auto df = device.upload(std::vector<double>(pairs, 0.3));
                    const auto dp = device.upload(std::vector<std::int32_t>{62, 63, 64, -1, 3});
                    const auto ds = device.upload(std::vector<std::int32_t>(tokens, 0));
                    const auto pages = device.upload(std::vector<std::uint32_t>{1, 0});
                    const auto dw = device.upload(weight);
                    const auto cos = device.allocate<float>(tokens * pairs),
                               sin = device.allocate<float>(tokens * pairs);
                    check(device.ops.rope_angles(device.stream, df, pairs, 1, dp, tokens, cos, sin));
                    const DeviceSequences sequences{pages, 2, nullptr, ds, dp, tokens};
                    DeviceNorm norm;
                    if (normed == 2) norm.kind = DeviceNorm::Kind::layer;
                    if (normed != 0) norm.weight = dw;
                    if (normed == 2) norm.bias = dw;
                    norm.eps = 1e-5F;

                    const auto fill = [&] {
                        return device.upload(std::vector<std::byte>(2 * host.pool().page_bytes(), std::byte{0x5A}));
                    };
                    const auto expected_memory = fill(), memory = fill();
                    const auto error = device.upload(std::vector<unsigned long long>(2, ~0ULL));
                    const auto eq = device.upload(q), ek = device.upload(k), gq = device.upload(q),
                               gk = device.upload(k), dv = device.upload(v);
                    for (const auto& [x, stride, n] :
                         {std::tuple{eq.get(), q_stride, heads}, {ek.get(), k_stride, kv_heads}}) {
                        if (normed != 0)
                            check(device.ops.norm(device.stream, norm, {x, stride, dim_k}, tokens, n, dim_k, false,
                                                  {x, stride}));
                        check(device.ops.rope(device.stream, {x, stride, dim_k}, {x, stride, dim_k}, tokens, n, dim_k,
                                              cos, sin, pairs, pairing));
                    }
                    const DeviceKv k_part = host.part(PartId::k, expected_memory);
                    if (k_part.group_tokens == 0)
                        check(device.ops.kv_store(device.stream, k_part, sequences, {ek, k_stride, dim_k}, error));
                    check(device.ops.kv_store(device.stream, host.part(PartId::v, expected_memory), sequences,
                                              {dv, v_stride, dim_v}, error.get() + 1));

                    DeviceQkv qkv;
                    qkv.q = {gq, q_stride, dim_k};
                    qkv.k = {gk, k_stride, dim_k};
                    qkv.v = {dv, v_stride, dim_v};
                    qkv.n_heads = heads;
                    if (normed != 0) qkv.q_norm = qkv.k_norm = norm;
                    qkv.cos = cos;
                    qkv.sin = sin;
                    qkv.n_pairs = pairs;
                    qkv.pairing = pairing;
                    check(device.ops.finish_qkv(device.stream, qkv, host.part(PartId::k, memory),
                                                host.part(PartId::v, memory), sequences,
                                                reinterpret_cast<DeviceKvError*>(error.get())));
                    CHECK(count_differing(gq.read(), eq.read()) == 0);
                    if (k_part.group_tokens != 0) CHECK(count_differing(gk.read(), ek.read()) == 0);
                    CHECK(memory.read() == expected_memory.read());
                    CHECK(error.read() == std::vector<unsigned long long>(2, ~0ULL));
                }
    });
}
