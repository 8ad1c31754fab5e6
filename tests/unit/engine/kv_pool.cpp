// Pages: taken when needed, shared by forks, copied on the first store, given back.
#include <algorithm>
#include <numeric>
#include <utility>

#include "engine/kv_cache.h"
#include "support.h"

using namespace hetero;
using namespace hetero::test;
using engine::KvCache;
using engine::KvPool;
using kv::PartId;

namespace {

const std::vector<model::KvLayout> layers(2, {2, 8, 4});  // 2 layers of 2 KV heads, K of 8 and V of 4

std::shared_ptr<KvPool> make_pool(std::uint64_t pages) { return must(KvPool::create(layers, DType::f32, pages)); }
KvCache make_cache(const std::shared_ptr<KvPool>& pool) { return must(KvCache::create(pool, 1000)); }

float value_of(std::uint64_t token, float seed) { return static_cast<float>(token) + seed; }

void fill(KvCache& cache, std::uint64_t first, std::uint64_t end, float seed) {
    must(cache.prepare(first, end));
    for (std::uint64_t token = first; token < end; ++token)
        for (std::size_t layer = 0; layer < layers.size(); ++layer)
            for (const PartId part : {PartId::k, PartId::v}) {
                std::vector<float> values(std::size_t{2} * cache.head_dim(layer, part));
                std::iota(values.begin(), values.end(), value_of(token, seed) * 100);
                must(cache.store(layer, part, token, values.data()));
            }
}

// Tokens [first, end) that do not hold what fill() stored.
std::size_t differing(const KvCache& cache, std::uint64_t first, std::uint64_t end, float seed) {
    std::size_t count = 0;
    for (std::size_t layer = 0; layer < layers.size(); ++layer)
        for (const PartId part : {PartId::k, PartId::v}) {
            const std::size_t row = std::size_t{2} * cache.head_dim(layer, part);
            std::vector<float> values(row * (end - first)), expected(row);
            cache.save(layer, part, first, end, std::as_writable_bytes(std::span(values)));
            for (std::uint64_t token = first; token < end; ++token) {
                std::iota(expected.begin(), expected.end(), value_of(token, seed) * 100);
                count += !std::equal(expected.begin(), expected.end(),
                                     values.begin() + static_cast<std::ptrdiff_t>(row * (token - first)));
            }
        }
    return count;
}

}  // namespace

TEST_CASE("a page is as large as its tokens, and a pool as its pages") {
    CHECK(KvPool::page_bytes(layers, DType::f16) == std::size_t{2} * 2 * (8 + 4) * 64 * 2);
    const engine::Range one[] = {{1, 2}, {0, 1}};
    CHECK(KvPool::page_bytes(layers, DType::f16, one) == std::size_t{2} * (8 + 4) * 64 * 2);
    CHECK(KvPool::bytes_needed(layers, DType::f32, ~std::uint64_t{0}) == ~std::uint64_t{0});
    CHECK(KvPool::pages_for(0) == 0);
    CHECK(KvPool::pages_for(64) == 1);
    CHECK(KvPool::pages_for(65) == 2);
    CHECK(KvPool::pages_for(~std::uint64_t{0}) == 1ULL << 58U);
    CHECK(has(error_of(KvPool::create(layers, DType::f16, ~std::uint64_t{0})), "out of memory"));
}

TEST_CASE("tiles of all pages, layers and heads lie apart, wherever pages are interleaved") {
    std::vector<model::KvLayout> unlike = layers;
    unlike[1].head_dim_v = 6;
    for (const auto& some : {layers, unlike})
        for (const std::uint64_t pages : {1, 7, 3000}) {  // 3,000 lie in three runs where layers are alike
            const auto pool = must(KvPool::create(some, DType::f32, pages));
            std::vector<std::pair<const std::byte*, std::size_t>> tiles;
            for (KvPool::Page page = 0; page < pages; ++page)
                for (std::size_t layer = 0; layer < some.size(); ++layer)
                    for (const PartId part : {PartId::k, PartId::v})
                        for (std::uint32_t head = 0; head < 2; ++head)
                            tiles.emplace_back(pool->memory(page) + pool->tile_offset(layer, part, head),
                                               std::size_t{64} * pool->head_dim(layer, part) * sizeof(float));
            std::sort(tiles.begin(), tiles.end());
            std::size_t wrong = tiles.front().first != pool->memory(0);
            for (std::size_t i = 1; i < tiles.size(); ++i)
                wrong += tiles[i - 1].first + tiles[i - 1].second > tiles[i].first;
            CHECK(wrong == 0);
            CHECK(tiles.back().first + tiles.back().second <= pool->memory(0) + pool->memory_bytes());
            CHECK(pool->memory_bytes() == KvPool::bytes_needed(some, DType::f32, pages));
            CHECK(pool->memory_bytes() < (pages + 3) * pool->page_bytes());
        }
}

TEST_CASE("a cache takes pages as tokens come, and gives them back") {
    const auto pool = make_pool(4);
    {
        KvCache cache = make_cache(pool);
        CHECK(pool->free_pages() == 4);
        fill(cache, 0, 64, 0);
        CHECK(pool->free_pages() == 3);
        fill(cache, 64, 150, 0);
        CHECK(pool->free_pages() == 1);
        CHECK(differing(cache, 0, 150, 0) == 0);
        cache.truncate(65);
        CHECK(pool->free_pages() == 2);
        cache.truncate(64);
        CHECK(pool->free_pages() == 3);
        CHECK(differing(cache, 0, 64, 0) == 0);
        KvCache moved = std::move(cache);
        CHECK(differing(moved, 0, 64, 0) == 0);
        moved = make_cache(pool);
    }
    CHECK(pool->free_pages() == 4);
}

TEST_CASE("a pool that is used up says so, and the cache keeps what it has") {
    const auto pool = make_pool(2);
    KvCache cache = make_cache(pool);
    fill(cache, 0, 100, 0);
    const Error error = error_of(cache.prepare(100, 200));
    CHECK(error.code == Errc::resource);
    CHECK(has(error, "2 pages of 64 tokens"));
    CHECK(differing(cache, 0, 100, 0) == 0);
}

TEST_CASE("forks share pages until one of them stores") {
    const auto pool = make_pool(6);
    KvCache first = make_cache(pool);
    fill(first, 0, 100, 0);
    KvCache second = must(first.fork(100)), third = must(first.fork(64));
    CHECK(pool->free_pages() == 4);
    fill(second, 100, 110, 5);  // in the shared page 1
    CHECK(pool->free_pages() == 3);
    fill(first, 100, 110, 7);  // now its own
    CHECK(pool->free_pages() == 3);
    fill(third, 64, 70, 9);
    CHECK(pool->free_pages() == 2);
    CHECK(differing(first, 0, 100, 0) == 0);
    CHECK(differing(first, 100, 110, 7) == 0);
    CHECK(differing(second, 0, 100, 0) == 0);
    CHECK(differing(second, 100, 110, 5) == 0);
    CHECK(differing(third, 0, 64, 0) == 0);
    CHECK(differing(third, 64, 70, 9) == 0);
    first.truncate(0);
    CHECK(pool->free_pages() == 3);  // page 0 has two users yet
    CHECK(differing(third, 0, 64, 0) == 0);
    second.truncate(0);
    third.truncate(0);
    CHECK(pool->free_pages() == 6);
}

TEST_CASE("a fork reads the pages of its origin") {
    const auto pool = make_pool(3);
    KvCache first = make_cache(pool);
    fill(first, 0, 70, 0);
    const KvCache second = must(first.fork(70));
    const kernels::KvView a = first.view(1, PartId::v, 1), b = second.view(1, PartId::v, 1);
    CHECK(a.pages[0] == b.pages[0]);
    CHECK(a.pages[1] == b.pages[1]);
    CHECK(a.offset == b.offset);
    CHECK(a.offset % 64 == 0);
}
