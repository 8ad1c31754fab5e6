// Files made wrong on purpose: every metadata checksum is right, and one byte under it is not.
#include "io/hdf5_internal.h"
#include "kinds.h"

using namespace hetero;
using namespace hetero::test;

namespace {

struct Block {
    std::size_t begin, bytes;  // its checksum follows
};

// The superblock, and every object header and continuation, found by signature and checksum.
std::vector<Block> metadata_blocks(std::span<const std::byte> image) {
    std::vector<Block> blocks = {{0, 44}};
    for (std::size_t at = 48; at + 8 < image.size(); ++at) {
        if (std::memcmp(image.data() + at, "OHDR", 4) != 0 && std::memcmp(image.data() + at, "OCHK", 4) != 0) continue;
        for (std::size_t bytes = 8; at + bytes + 4 <= image.size() && bytes < 8192; ++bytes) {
            std::uint32_t stored = 0;
            std::memcpy(&stored, image.data() + at + bytes, sizeof stored);
            if (stored != io::h5::metadata_checksum(image.subspan(at, bytes))) continue;
            blocks.push_back({at, bytes});
            break;
        }
    }
    return blocks;
}

void check_metadata(const kv::State& state, std::size_t step) {
    const auto image = image_of(state);
    const auto blocks = metadata_blocks(image);
    REQUIRE(blocks.size() > 10);
    std::size_t refused = 0, without_effect = 0;
    for (const Block& block : blocks) {
        for (std::size_t i = 0; i < block.bytes; i += step) {
            // Sizes and addresses that become huge, and ones that change a little.
            for (const int mask : {0xFF, 1 << (i / step % 8)}) {
                auto changed = image;
                changed[block.begin + i] ^= static_cast<std::byte>(mask);
                const std::uint32_t checksum =
                    io::h5::metadata_checksum(std::span(changed).subspan(block.begin, block.bytes));
                std::memcpy(changed.data() + block.begin + block.bytes, &checksum, sizeof checksum);
                const auto back = load_image(std::move(changed));
                if (!back) {
                    ++refused;
                    if (back.error().code != Errc::bad_input)
                        FAIL_CHECK("byte ", block.begin + i, " xor ", mask, ": ", back.error().message);
                } else {
                    ++without_effect;
                    if (const std::string what = difference(state, *back); !what.empty())
                        FAIL_CHECK("byte ", block.begin + i, " xor ", mask, " changes ", what, " unseen");
                }
            }
        }
    }
    MESSAGE(blocks.size(), " blocks; ", refused, " refused, ", without_effect, " without effect");
    CHECK(refused > without_effect);
}

}  // namespace

TEST_CASE("metadata that lie under right checksums: refused, or read as what they were") {
    Plan plan;
    plan.n_layers = 1;
    plan.lengths = {3};
    plan.vocab_size = 20;
    plan.k = int8_scheme(quant::Axis::channel, 2, false);
    check_metadata(make_state(plan), 1);
}

TEST_CASE("those of a shard with a window and a latent, likewise") { check_metadata(small_kinds(), 3); }
