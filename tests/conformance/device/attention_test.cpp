// Attention over pages against kernels/ref, under the bounds of Ops::attention and TileOps::attention.
#include "kernels/ref/ref.h"
#include "kv_memory.h"

using namespace hetero;
using namespace hetero::kernels;
using namespace hetero::test;

namespace {

constexpr double u = 0x1p-24;

// Of a single head, instead of random numbers.
struct Values {
    std::vector<float> q;                  // of every query
    std::vector<std::vector<float>> k, v;  // [token]
};

struct Case {
    std::string storage = "f16";
    std::uint32_t heads = 2, kv_heads = 1, dim_k = 64, dim_v = 64;
    bool latent = false;
    std::size_t window = 0;
    float softcap = 0;
    float q_size = 1;
    const Values* values = nullptr;
};

// Sequences of some lengths, of which the last tokens are queries.
struct Sequence {
    std::size_t tokens, queries;
};

class Problem {
public:
    Problem(const Device& device, const Case& wanted, std::vector<Sequence> sequences, Random& random)
        : device_(device), case_(wanted), sequences_(std::move(sequences)) {
        layout_.n_kv_heads = wanted.kv_heads;
        layout_.head_dim_k = wanted.dim_k;
        layout_.head_dim_v = wanted.dim_v;
        if (wanted.latent) layout_.kind = model::KvLayout::Kind::latent;
        for (const Sequence& sequence : sequences_) max_tokens_ = std::max(max_tokens_, sequence.tokens);
        for (const Sequence& sequence : sequences_) {
            HostKv& kv = host_.emplace_back(layout_, storage_of(wanted.storage), max_tokens_);
            for (const PartId part : {PartId::k, PartId::v}) {
                const std::size_t row = wanted.kv_heads * (part == PartId::k ? wanted.dim_k : wanted.dim_v);
                std::vector<float> x(row);
                for (std::size_t t = 0; t < sequence.tokens; ++t) {
                    fill_normal(x, random);
                    if (wanted.values != nullptr) x = (part == PartId::k ? wanted.values->k : wanted.values->v)[t];
                    REQUIRE(kv.cache().store(0, part, t, x.data()));
                    double size = 0, v = 0;
                    for (const float value : x) {
                        size += static_cast<double>(value) * static_cast<double>(value);
                        v = std::max(v, std::fabs(static_cast<double>(value)));
                    }
                    if (part == PartId::k || wanted.latent) k_size_ = std::max(k_size_, std::sqrt(size));
                    if (part == PartId::v || wanted.latent) v_size_ = std::max(v_size_, v);
                }
            }
        }
        if (wanted.latent) k_size_ *= 2;  // of its two parts together
        if (host_[0].part(PartId::k, nullptr).zero_offset != 0)
            k_size_ *= 3;  // code * scale and zero are larger than their sum
        if (host_[0].part(PartId::v, nullptr).zero_offset != 0)
            v_size_ *= 3 * std::sqrt(static_cast<double>(wanted.dim_v));
        for (std::size_t s = 0; s < sequences_.size(); ++s)
            for (std::size_t i = 0; i < sequences_[s].queries; ++i) {
                sequence_.push_back(static_cast<std::int32_t>(s));
                position_.push_back(static_cast<std::int32_t>(sequences_[s].tokens - sequences_[s].queries + i));
            }
        q_.resize(sequence_.size() * q_stride());
        fill_normal(q_, random, wanted.q_size);
        if (wanted.values != nullptr)
            for (std::size_t t = 0; t < sequence_.size(); ++t)
                std::ranges::copy(wanted.values->q, q_.begin() + static_cast<std::ptrdiff_t>(t * q_stride()));
        spoil_gaps(q_, q_row(), q_stride());
    }

    [[nodiscard]] std::size_t query_dim() const { return layout_.query_dim(); }
    [[nodiscard]] std::size_t output_dim() const { return layout_.output_dim(); }
    [[nodiscard]] std::size_t q_row() const { return case_.heads * query_dim(); }
    [[nodiscard]] std::size_t q_stride() const { return q_row() + 5; }
    [[nodiscard]] std::size_t out_row() const { return case_.heads * output_dim(); }
    [[nodiscard]] std::size_t out_stride() const { return out_row() + 3; }

    // Of tokens [begin, end) of all there are. [token][out_stride]
    [[nodiscard]] std::vector<float> run(bool decode, std::size_t begin, std::size_t end) const {
        const std::size_t n = end - begin, n_pages = host_[0].pages(), page_bytes = host_[0].pool().page_bytes();
        std::vector<std::byte> all(device_pages(n_pages, host_.size()) * page_bytes, std::byte{0xFF});
        std::vector<std::uint32_t> table;
        const std::size_t group = host_[0].part(PartId::k, nullptr).group_tokens;
        std::vector<std::uint16_t> tail;
        for (std::size_t s = 0; s < host_.size(); ++s) {
            for (std::size_t i = 0; i < n_pages; ++i) {
                const std::uint32_t page = device_page(i, s, host_.size());
                table.push_back(page);
                if (i * kKvPageTokens < sequences_[s].tokens)
                    std::copy_n(host_[s].page(i).begin(), page_bytes,
                                all.begin() + static_cast<std::ptrdiff_t>(page * page_bytes));
            }
            for (std::uint32_t head = 0; group != 0 && head < case_.kv_heads; ++head) {
                const std::uint16_t* open = view(s, PartId::k, head).open;
                tail.insert(tail.end(), open, open + group * case_.dim_k);
            }
        }
        tail.push_back(0);
        const auto memory = device_.upload(all);
        const auto pages = device_.upload(table);
        const auto tail_memory = device_.upload(tail);
        std::vector<std::uint16_t*> tails;
        for (std::size_t s = 0; s < host_.size(); ++s)
            tails.push_back(tail_memory.get() + s * case_.kv_heads * group * case_.dim_k);
        const auto dtails = device_.upload(tails);
        const auto dq = device_.upload(q_);
        const auto ds = device_.upload(sequence_), dp = device_.upload(position_);
        const auto out = device_.upload(std::vector<float>(n * out_stride(), 77.0F));

        DeviceAttention a;
        a.q = {dq.get() + begin * q_stride(), q_stride(), query_dim()};
        a.k = host_[0].part(PartId::k, memory);
        a.v = host_[0].part(PartId::v, memory);
        a.out = {out, out_stride(), output_dim()};
        a.n_heads = case_.heads;
        a.query_dim = query_dim();
        a.output_dim = output_dim();
        a.scale = scale();
        a.window = case_.window;
        a.softcap = case_.softcap;
        const DeviceSequences sequences{
            pages, n_pages, group != 0 ? dtails.get() : nullptr, ds.get() + begin, dp.get() + begin, n};
        const auto scratch =
            device_.allocate<std::byte>(device_.ops.attention_scratch_bytes(a, n, max_tokens_, decode) + 1);
        check((decode ? device_.ops.attention_decode : device_.ops.attention_prefill)(device_.stream, a, sequences,
                                                                                      max_tokens_, scratch));
        check(device_.ops.synchronize(device_.stream));
        return out.read();
    }
    [[nodiscard]] std::vector<float> run(bool decode) const { return run(decode, 0, sequence_.size()); }

    [[nodiscard]] std::size_t beyond_bound(const std::vector<float>& got, bool decode) const {
        std::size_t far = 0;
        const bool rotated_k = host_[0].part(PartId::k, nullptr).rotated,
                   rotated_v = host_[0].part(PartId::v, nullptr).rotated;
        for (std::size_t t = 0; t < sequence_.size(); ++t)
            for (std::size_t head = 0; head < case_.heads; ++head) {
                const auto s = static_cast<std::size_t>(sequence_[t]);
                const auto kv_head = static_cast<std::uint32_t>(head / (case_.heads / case_.kv_heads));
                std::vector<float> q(
                    q_.begin() + static_cast<std::ptrdiff_t>(t * q_stride() + head * query_dim()),
                    q_.begin() + static_cast<std::ptrdiff_t>(t * q_stride() + (head + 1) * query_dim()));
                double q_size = 0;
                for (const float x : q) q_size += static_cast<double>(x) * static_cast<double>(x);
                q_size = std::sqrt(q_size);
                if (rotated_k) rotate(q);
                std::vector<float> expected(output_dim());
                AttentionArgs args;
                args.q = q.data();
                args.k = view(s, PartId::k, kv_head);
                args.v = view(s, PartId::v, kv_head);
                args.out = expected.data();
                args.n_queries = 1;
                args.first_position = static_cast<std::size_t>(position_[t]);
                args.kv_tokens = args.first_position + 1;
                args.window = case_.window;
                args.head_dim_k = query_dim();
                args.head_dim_v = output_dim();
                args.scale = scale();
                args.softcap = case_.softcap;
                ref::attention(args);
                if (rotated_v) rotate(expected);
                const double dims = static_cast<double>(query_dim()), keys = static_cast<double>(position_[t] + 1);
                const double product = q_size * k_size_ * static_cast<double>(scale());
                const double score = 4 * product * u + 8 * static_cast<double>(case_.softcap) * u;
                const double e = product * ((2 * std::sqrt(dims) + 8) * u + (decode ? 0 : 0x1p-14)) + score;
                const double bound = (2 * e + (decode ? (2 * std::sqrt(keys) + 64) * u : 0x1p-7)) * v_size_;
                for (std::size_t d = 0; d < output_dim(); ++d) {
                    const float y = got[t * out_stride() + head * output_dim() + d];
                    far += !(std::fabs(static_cast<double>(y) - static_cast<double>(expected[d])) <= bound);
                }
            }
        for (std::size_t i = 0; i < got.size(); ++i) far += i % out_stride() >= out_row() && got[i] != 77.0F;
        return far;
    }

private:
    [[nodiscard]] float scale() const { return 1 / std::sqrt(static_cast<float>(query_dim())); }
    [[nodiscard]] KvView view(std::size_t sequence, PartId part, std::uint32_t head) const {
        return const_cast<HostKv&>(host_[sequence]).cache().view(0, part, head);
    }
    static void rotate(std::vector<float>& x) {
        const std::size_t block = x.size() & (~x.size() + 1);
        scalar().hadamard(x.data(), x.data(), x.size() / block, block);
    }

    const Device& device_;
    Case case_;
    std::vector<Sequence> sequences_;
    model::KvLayout layout_;
    std::size_t max_tokens_ = 0;
    std::vector<HostKv> host_;
    std::vector<std::int32_t> sequence_, position_;
    std::vector<float> q_;
    double k_size_ = 0, v_size_ = 0;
};

void holds(const Device& device, const Case& wanted, const std::vector<Sequence>& sequences, bool decode) {
    CAPTURE(wanted.storage);
    CAPTURE(wanted.heads);
    CAPTURE(wanted.kv_heads);
    CAPTURE(wanted.dim_k);
    CAPTURE(wanted.dim_v);
    CAPTURE(wanted.window);
    CAPTURE(wanted.softcap);
    CAPTURE(decode);
    Random random(11);
    const Problem problem(device, wanted, sequences, random);
    CHECK(problem.beyond_bound(problem.run(decode), decode) == 0);
}

constexpr const char* storages[] = {"f32", "f16", "bf16", "int8", "int4", "fp8_e4m3fn", "int8-channel", "int4-channel"};

}  // namespace

TEST_CASE("a step of decode attends to what its sequences keep") {
    on_device([](const Device& device) {
        const std::vector<Sequence> three = {{150, 1}, {1, 1}, {64, 1}};
        for (const char* storage : storages) holds(device, {storage, 4, 2, 64, 64}, three, true);
        for (const std::uint32_t dim : {80U, 96U, 128U, 192U, 256U})
            holds(device, {"f16", 2, 1, dim, dim}, {{70, 1}}, true);
        for (const auto& [heads, kv_heads] : {std::pair{1U, 1U}, {3U, 1U}, {7U, 1U}, {18U, 2U}})
            holds(device, {"f16", heads, kv_heads, 32, 32}, {{70, 1}}, true);
        holds(device, {"f32", 2, 1, 20, 13}, {{70, 1}}, true);
        holds(device, {"int8", 2, 1, 20, 12}, {{70, 1}}, true);
        holds(device, {"f16", 4, 1, 512, 64, true}, {{70, 1}}, true);
    });
}

TEST_CASE("decode: windows, soft caps and long contexts") {
    on_device([](const Device& device) {
        for (const std::size_t window : {1, 63, 64, 200})
            holds(device, {"f16", 2, 1, 32, 32, false, window}, {{300, 1}, {30, 1}}, true);
        holds(device, {"f16", 2, 1, 32, 32, false, 0, 5.0F}, {{300, 1}}, true);
        holds(device, {"int8", 1, 1, 16, 16}, {{8300, 1}, {8191, 1}}, true);  // 65 spans and 64
        holds(device, {"int8", 8, 8, 16, 16}, {{8300, 1}, {8191, 1}}, true);  // of 256 keys, and 64 of 128
    });
}

TEST_CASE("prefill attends to the tokens before, in chunks and after a prefix") {
    on_device([](const Device& device) {
        for (const char* storage : {"f32", "f16", "bf16", "int8", "int4", "fp8_e4m3fn"})
            holds(device, {storage, 2, 1, 64, 64}, {{90, 90}, {100, 20}}, false);
        for (const char* storage : {"int8-channel", "int4-channel"})  // of one group: see kv_store
            holds(device, {storage, 2, 1, 64, 64}, {{90, 26}, {20, 20}, {97, 1}}, false);
        for (const std::uint32_t dim : {80U, 128U, 192U, 256U})
            holds(device, {"f16", 1, 1, dim, dim}, {{70, 10}}, false);
        holds(device, {"f32", 2, 1, 20, 13}, {{70, 30}}, false);
        holds(device, {"f16", 1, 1, 64, 48, false, 0, 0, 1e6F}, {{70, 5}}, false);
        holds(device, {"f16", 2, 1, 64, 64, false, 0, 5.0F}, {{70, 40}}, false);
        for (const std::size_t window : {1, 40, 64})
            holds(device, {"f16", 1, 1, 32, 32, false, window}, {{150, 150}}, false);
        // Tiles of 32 keys, and of 16; rows that are no whole chunks of 16 bytes.
        holds(device, {"f32", 2, 1, 128, 128}, {{150, 70}, {40, 40}}, false);
        holds(device, {"bf16", 2, 1, 256, 256}, {{150, 70}, {40, 40}}, false);
        holds(device, {"bf16", 1, 1, 256, 256, false, 40}, {{150, 150}}, false);
        holds(device, {"f16", 2, 1, 20, 13}, {{70, 30}}, false);
    });
}

// Two keys of scores that are large and nearly the same, with opposite values: the output is the hyperbolic tangent of
// half their difference, which is lost where Q or K counts as its rounding to one half.
TEST_CASE("prefill tells apart two keys that the rounding of Q or of K would not") {
    constexpr std::size_t dims = 64;
    const auto alternating = [](float even, float odd) {
        std::vector<float> x(dims);
        for (std::size_t i = 0; i < dims; ++i) x[i] = i % 2 == 0 ? even : odd;
        return x;
    };
    const std::vector<std::vector<float>> v = {alternating(1, 1), alternating(-1, -1)};
    on_device([&](const Device& device) {
        // Below and above the middle of 8 and the next half: bf16 (8 + 2^-4), or f16 (8 + 2^-7). Each key sees half of
        // the dims.
        for (const char* storage : {"f32", "f16", "bf16", "int8"}) {
            const bool is_f16 = storage == std::string("f16");
            const float k = is_f16 ? 32 : 4, middle = is_f16 ? 0x1p-8F : 0x1p-5F;
            const Values values{
                alternating(8 + 0.9F * middle, 8 + 1.1F * middle), {alternating(k, 0), alternating(0, k)}, v};
            holds(device, {storage, 1, 1, dims, dims, false, 0, 0, 1, &values}, {{2, 1}}, false);
        }
        // Likewise the keys, around 4 + 2^-6, and far enough from there for the codes.
        const float below = 4 + 0x1p-7F, above = 4 + 3 * 0x1p-7F;
        const Values values{alternating(8, 8), {alternating(below, below), alternating(above, above)}, v};
        for (const char* storage : {"f32", "int8"})
            holds(device, {storage, 1, 1, dims, dims, false, 0, 0, 1, &values}, {{2, 1}}, false);
    });
}

TEST_CASE("prefill of latents, and of heads too large for a block's shared memory") {
    on_device([](const Device& device) {
        holds(device, {"f16", 2, 1, 128, 32, true}, {{70, 10}}, false);
        holds(device, {"f32", 2, 1, 128, 32, true}, {{70, 10}, {130, 9}}, false);
        holds(device, {"bf16", 2, 1, 512, 64, true}, {{70, 3}}, false);
        holds(device, {"f32", 1, 1, 512, 512}, {{70, 3}}, false);  // two slices of the output
        holds(device, {"f16", 2, 1, 576, 64, true}, {{200, 40}}, false);
        holds(device, {"f32", 1, 1, 1024, 1024}, {{70, 3}}, false);
    });
}

TEST_CASE("a token has the same bits beside others and alone") {
    on_device([](const Device& device) {
        for (const char* storage : {"f16", "int8"})
            for (const bool decode : {true, false}) {
                Random random(5);
                const Problem problem(device, {storage, 2, 1, 64, 64}, {{200, 70}, {130, 9}}, random);
                const std::vector<float> all = problem.run(decode);
                for (const auto& [begin, end] :
                     {std::pair<std::size_t, std::size_t>{0, 1}, {13, 40}, {60, 79}, {78, 79}}) {
                    const std::vector<float> some = problem.run(decode, begin, end);
                    CHECK(std::equal(some.begin(), some.end(),
                                     all.begin() + static_cast<std::ptrdiff_t>(begin * problem.out_stride())));
                }
            }
    });
}

TEST_CASE("attention that no kernel is for is refused") {
    on_device([](const Device& device) {
        DeviceAttention a;
        a.n_heads = 3;
        a.k.n_heads = 2;
        a.query_dim = a.output_dim = a.k.head_dim = a.v.head_dim = 64;
        DeviceSequences sequences;
        sequences.n_tokens = 1;
        const auto refused = [&](const char* reason) {
            const DeviceFault fault = device.ops.attention_decode(device.stream, a, sequences, 1, nullptr);
            CHECK(fault.kind == DeviceFault::Kind::unsupported);
            CHECK(fault.message().find(reason) != std::string::npos);
            CHECK(fault.message().find("attention_decode") != std::string::npos);
        };
        refused("no multiple of KV heads");
        a.n_heads = 4;
        a.v.dtype = DType::bf16;
        refused("of one type");
        a.k.codes = KvCodes::i8;
        refused("both codes");
        a.v.codes = KvCodes::u8;
        refused("groups of dims");
        a.k.group = a.v.group_tokens = 64;
        refused("of K alone");
        a.v.group_tokens = 0;
        a.v.group = 64;
        a.query_dim = 2000;
        refused("1 to 1024 dims");
    });
}
