// Transfers into a file that break off and go on.
#include "transport/resume.h"

#include <doctest/doctest.h>

#include <cstring>
#include <filesystem>
#include <random>

#include "support/temp_dir.h"
#include "synthetic_state.h"
#include "transport/resume_journal.h"

using namespace hetero;
using namespace hetero::transport;

namespace {

constexpr Resume::Pace at_once{1, 0.001};

kv::State state_of(std::uint32_t seed = 1) {
    test::StateShape shape;
    shape.layers = 4;
    shape.tokens = {40, 7};
    shape.k_codec = "int8";
    shape.k_params = {quant::Axis::token, 0, false, kv::DType::f16};
    shape.sinks = 2;
    auto state = test::synthetic_state(shape, seed);
    REQUIRE_MESSAGE(state, state.error().message);
    return std::move(*state);
}

std::string bytes_of(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
}

std::string unbroken(const kv::State& state, const test::TempDir& folder) {
    const std::string path = folder / "unbroken.h5";
    const auto sink = kv::create_file(path, io::Overwrite::replace);
    REQUIRE(sink);
    const Status done = kv::write_all(state, **sink);
    REQUIRE_MESSAGE(done, done.error().message);
    std::string bytes = bytes_of(path);
    std::filesystem::remove(path);
    return bytes;
}

const kv::Layer& layer_of(const kv::State& state, std::uint64_t index) {
    const std::uint32_t n = state.header.identity.n_layers;
    return state.layers[index / n][index % n];
}

// A transfer of `state` that ends after so many layers by `reason`.
void break_off(const kv::State& state, const std::string& path, std::uint64_t layers,
               const Error& reason = {Errc::peer, "rank 0: no sign of life"}) {
    Resume resume(path, at_once);
    (void)resume.look_for(state.header, state_key(state.header));
    const auto sink = resume.create_sink(io::Overwrite::refuse);
    REQUIRE_MESSAGE(sink, sink.error().message);
    REQUIRE((*sink)->begin(state.header));
    for (std::uint64_t i = 0; i < layers; ++i) REQUIRE((*sink)->write_layer(layer_of(state, i)));
    (*sink)->abort(reason);
}

std::uint64_t held_pieces(const std::vector<HeldPieces>& held) {
    std::uint64_t n = 0;
    for (const HeldPieces& range : held) n += range.crcs.size();
    return n;
}

// Goes on: what is held has the bytes of `state`, and the file becomes `expected`. Returns how many pieces were held.
std::uint64_t go_on(const kv::State& state, const std::string& path, const std::string& expected) {
    Resume resume(path, at_once);
    const auto held = resume.look_for(state.header, state_key(state.header));
    const std::uint64_t pieces = held_pieces(held);
    std::uint64_t piece = 0;
    for (ChunkWalk walk(state.header); !walk.done() && piece < pieces; walk.advance(), ++piece) {
        const ChunkPlace& place = walk.place();
        const auto& array = array_of(state.layers[place.sequence][place.layer].part(place.part), place.array).bytes;
        CHECK(held[0].crcs[piece] == crc32c(std::span(array).subspan(place.offset, place.length)));
    }
    const auto sink = resume.create_sink(io::Overwrite::refuse);
    REQUIRE(sink);
    REQUIRE((*sink)->begin(state.header));
    piece = 0;
    ChunkWalk walk(state.header);
    for (std::uint64_t i = 0; i < total_layers(state.header); ++i) {
        bool held_here = false;
        for (; !walk.done() && walk.place().layer_index == i; walk.advance(), ++piece) held_here = piece < pieces;
        const auto layer = allocate_layer(state.header, i);
        REQUIRE(layer);
        const Status filled = resume.fill(i, **layer);
        REQUIRE_MESSAGE(filled, filled.error().message);
        if (held_here) CHECK(test::same_bytes(**layer, layer_of(state, i)));
        REQUIRE((*sink)->write_layer(held_here ? **layer : layer_of(state, i)));
    }
    const Status done = (*sink)->commit();
    REQUIRE_MESSAGE(done, done.error().message);
    CHECK(bytes_of(path) == expected);
    return pieces;
}

std::string only_file(const test::TempDir& folder, std::string_view suffix) {
    for (const std::string& name : folder.names())
        if (name.ends_with(suffix)) return folder / name;
    return {};
}

Journal read_journal(const std::string& path) {
    const std::string bytes = bytes_of(path);
    auto journal = decode_journal(std::as_bytes(std::span(bytes)));
    REQUIRE_MESSAGE(journal, journal.error().message);
    return std::move(*journal);
}

void overwrite(const std::string& path, std::uint64_t offset, char flip) {
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    file.seekg(static_cast<std::streamoff>(offset));
    const char old = static_cast<char>(file.get());
    file.seekp(static_cast<std::streamoff>(offset));
    file.put(static_cast<char>(old ^ flip));
    REQUIRE(file.good());
}

}  // namespace

TEST_CASE("a journal comes back, and a cut or damaged one never says more than it did") {
    Digest key{};
    key[3] = 7;
    kv::WrittenLayer first, second;
    first.offsets[0][0] = 4096;
    first.checksums.k.values = {1, 2, 3};
    first.checksums.v.tail = {9};
    second.offsets[1][4] = 1ULL << 40;
    second.checksums.v.zero = {0xFFFFFFFF};
    std::vector<std::byte> bytes = encode_journal_head(key, 0x01020304);
    std::vector<std::size_t> ends = {bytes.size()};
    for (const kv::WrittenLayer& layer : {first, second}) {
        const auto record = encode(layer);
        bytes.insert(bytes.end(), record.begin(), record.end());
        ends.push_back(bytes.size());
    }
    const auto decoded = decode_journal(bytes);
    REQUIRE_MESSAGE(decoded, decoded.error().message);
    CHECK(decoded->state_key == key);
    CHECK(decoded->tokens_per_chunk == 0x01020304);
    REQUIRE(decoded->layers.size() == 2);
    CHECK(decoded->layers[0].offsets == first.offsets);
    CHECK(decoded->layers[0].checksums == first.checksums);
    CHECK(decoded->layers[1].offsets == second.offsets);
    CHECK(decoded->layers[1].checksums == second.checksums);

    // As hetero-transports(7) gives the head.
    const std::uint8_t head[8] = {'H', 'K', 'V', 'J', 1, 0, 0, 0};
    CHECK(std::memcmp(bytes.data(), head, sizeof head) == 0);
    CHECK(ends[0] == 48);

    for (std::size_t n = 0; n < bytes.size(); ++n) {
        const auto cut = decode_journal(std::span(bytes).first(n));
        CHECK(cut.has_value() == (n >= ends[0]));
        if (cut) CHECK(cut->layers.size() == static_cast<std::size_t>(n >= ends[1]));
    }
    for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
        auto damaged = bytes;
        damaged[bit / 8] ^= static_cast<std::byte>(1U << bit % 8);
        const auto read = decode_journal(damaged);
        if (!read) continue;
        CHECK(bit / 8 >= ends[0]);
        CHECK(read->layers.size() < 2);  // a longer length: it reads as cut off
        if (!read->layers.empty()) CHECK(read->layers[0].checksums == first.checksums);
    }
}

TEST_CASE("after any number of layers: what is there is left out, and the file is the same") {
    const kv::State state = state_of();
    const test::TempDir folder;
    const std::string path = folder / "out.h5", expected = unbroken(state, folder);
    for (std::uint64_t layers = 0; layers <= total_layers(state.header); ++layers) {
        CAPTURE(layers);
        break_off(state, path, layers);
        CHECK_FALSE(std::filesystem::exists(path));
        CHECK(folder.names().size() == (layers == 0 ? 0 : 2));
        std::uint64_t pieces = 0;
        for (ChunkWalk walk(state.header); !walk.done() && walk.place().layer_index < layers; walk.advance()) ++pieces;
        CHECK(go_on(state, path, expected) == pieces);
        CHECK(folder.names() == std::vector<std::string>{"out.h5"});
        std::filesystem::remove(path);
    }
}

TEST_CASE("a state that is sent in other chunks goes on too") {
    kv::State state = state_of();
    const test::TempDir folder;
    const std::string path = folder / "out.h5";
    const std::uint32_t first = state.header.tokens_per_chunk;
    for (const std::uint32_t next : {first / 2, 2 * first, 1U << 20}) {
        CAPTURE(next);
        state.header.tokens_per_chunk = first;
        break_off(state, path, 5);
        state.header.tokens_per_chunk = next;
        std::uint64_t pieces = 0;
        for (ChunkWalk walk(state.header); !walk.done() && walk.place().layer_index < 5; walk.advance()) ++pieces;
        CHECK(go_on(state, path, unbroken(state, folder)) == pieces);
        std::filesystem::remove(path);
    }
}

TEST_CASE("broken off again and again: never less is held, and two files at most lie there") {
    const kv::State state = state_of();
    const test::TempDir folder;
    const std::string path = folder / "out.h5", expected = unbroken(state, folder);
    std::uint64_t before = 0;
    for (const std::uint64_t layers : {2, 1, 5, 3, 6, 6, 2}) {
        break_off(state, path, layers);
        CHECK(folder.names().size() <= 4);
        Resume resume(path, at_once);
        const std::uint64_t held = held_pieces(resume.look_for(state.header, state_key(state.header)));
        CHECK(held >= before);
        before = held;
        CHECK(folder.names().size() == 2);
    }
    CHECK(go_on(state, path, expected) == before);
    CHECK(folder.names() == std::vector<std::string>{"out.h5"});
}

TEST_CASE("what cannot be used is discarded, and the transfer starts anew") {
    const kv::State state = state_of(), other = state_of(2);
    const test::TempDir folder;
    const std::string path = folder / "out.h5", expected = unbroken(state, folder);
    break_off(state, path, 5);
    const std::string journal = only_file(folder, ".journal"), part = only_file(folder, ".part");
    REQUIRE_FALSE(journal.empty());
    REQUIRE_FALSE(part.empty());
    const auto records = read_journal(journal);
    SUBCASE("another state") { CHECK(go_on(other, path, unbroken(other, folder)) == 0); }
    SUBCASE("a damaged journal") {
        overwrite(journal, 60, 1);
        CHECK(go_on(state, path, expected) == 0);
    }
    SUBCASE("a damaged head") {
        overwrite(journal, 9, 1);
        CHECK(go_on(state, path, expected) == 0);
    }
    SUBCASE("a journal of chunks that cannot be") {
        const auto head = encode_journal_head(records.state_key, 0);
        std::fstream file(journal, std::ios::binary | std::ios::in | std::ios::out);
        file.write(reinterpret_cast<const char*>(head.data()), static_cast<std::streamsize>(head.size()));
        file.close();
        CHECK(go_on(state, path, expected) == 0);
    }
    SUBCASE("an empty journal") {
        std::filesystem::resize_file(journal, 0);
        CHECK(go_on(state, path, expected) == 0);
    }
    SUBCASE("a journal that is cut off has less") {
        std::filesystem::resize_file(journal, std::filesystem::file_size(journal) - 1);
        CHECK(go_on(state, path, expected) > 0);
    }
    SUBCASE("one byte of the file") {
        overwrite(part, records.layers[3].offsets[1][0] + 5, 0x10);
        CHECK(go_on(state, path, expected) == 0);
    }
    SUBCASE("a shorter file") {
        std::filesystem::resize_file(part, records.layers[4].offsets[1][0] + 1);
        CHECK(go_on(state, path, expected) == 0);
    }
    SUBCASE("no file") {
        std::filesystem::remove(part);
        CHECK(go_on(state, path, expected) == 0);
    }
    SUBCASE("a file that others may write") {
        std::filesystem::permissions(journal, std::filesystem::perms(0666));
        CHECK(Resume(path).look_for(state.header, state_key(state.header)).empty());
        std::filesystem::remove(journal);
        std::filesystem::remove(part);
        std::ofstream(path) << "x";
    }
    CHECK(folder.names() == std::vector<std::string>{"out.h5"});
}

TEST_CASE("a file that changes after it was looked through is an error, not a wrong layer") {
    const kv::State state = state_of();
    const test::TempDir folder;
    const std::string path = folder / "out.h5";
    break_off(state, path, 3);
    const auto records = read_journal(only_file(folder, ".journal"));
    Resume resume(path, at_once);
    REQUIRE_FALSE(resume.look_for(state.header, state_key(state.header)).empty());
    overwrite(only_file(folder, ".part"), records.layers[1].offsets[0][0], 1);
    const auto layer = allocate_layer(state.header, 0);
    REQUIRE(layer);
    CHECK(resume.fill(0, **layer));
    const Status changed = resume.fill(1, **layer);
    REQUIRE_FALSE(changed);
    CHECK(changed.error().message.find("run again") != std::string::npos);
    CHECK(folder.names().empty());
}

TEST_CASE("logits that come late reach a file that can be resumed") {
    const kv::State state = state_of();
    kv::Header before = state.header;
    before.late_logits = true;
    for (kv::Sequence& sequence : before.sequences) {
        sequence.logits.clear();
        sequence.pending_token = -1;
    }
    const test::TempDir folder;
    const auto write = [&](kv::Sink& sink, std::uint64_t layers) {
        REQUIRE(sink.begin(before));
        for (std::uint64_t i = 0; i < layers; ++i) REQUIRE(sink.write_layer(layer_of(state, i)));
        if (layers < total_layers(before)) return sink.abort({Errc::peer, "rank 0: no sign of life"});
        REQUIRE(sink.complete(state.header));
        const Status done = sink.commit();
        REQUIRE_MESSAGE(done, done.error().message);
    };
    const auto plain = kv::create_file(folder / "whole.h5", io::Overwrite::refuse);
    REQUIRE(plain);
    write(**plain, total_layers(before));
    for (const std::uint64_t layers : {std::uint64_t{3}, total_layers(before)}) {
        Resume resume(folder / "out.h5", at_once);
        CHECK(resume.look_for(before, state_key(before)).empty() == (layers == 3));
        const auto sink = resume.create_sink(io::Overwrite::refuse);
        REQUIRE(sink);
        write(**sink, layers);
    }
    CHECK(bytes_of(folder / "out.h5") == bytes_of(folder / "whole.h5"));
    CHECK(folder.names() == std::vector<std::string>{"out.h5", "whole.h5"});
}

TEST_CASE("nothing is kept where the end is no matter of the peer, and where the sender's states have no key") {
    const kv::State state = state_of();
    const test::TempDir folder;
    const std::string path = folder / "out.h5";
    break_off(state, path, 3, {Errc::resource, "no space"});
    CHECK(folder.names().empty());
    {
        Resume resume(path, at_once);
        CHECK(resume.look_for(state.header, Digest{}).empty());
        const auto sink = resume.create_sink(io::Overwrite::refuse);
        REQUIRE(sink);
        REQUIRE((*sink)->begin(state.header));
        REQUIRE((*sink)->write_layer(state.layers[0][0]));
        (*sink)->abort({Errc::peer, "rank 0: no sign of life"});
    }
    CHECK(folder.names().empty());
}

TEST_CASE("a thousand broken transfers leave no descriptor, thread or file behind") {
    const kv::State state = state_of();
    const test::TempDir folder;
    const std::string path = folder / "out.h5", expected = unbroken(state, folder);
    const auto count = [](const char* in) {
        return std::distance(std::filesystem::directory_iterator(in), std::filesystem::directory_iterator());
    };
    break_off(state, path, 1);
    const auto descriptors = count("/proc/self/fd"), threads = count("/proc/self/task");
    for (int i = 0; i < 1000; ++i) break_off(state, path, i % 3 == 0 ? 0 : i % 2 + 1);
    CHECK(count("/proc/self/fd") == descriptors);
    CHECK(count("/proc/self/task") == threads);
    CHECK(folder.names().size() <= 4);
    CHECK(go_on(state, path, expected) > 0);
    CHECK(folder.names() == std::vector<std::string>{"out.h5"});
}

TEST_CASE("two transfers to the same file keep apart") {
    const kv::State state = state_of();
    const test::TempDir folder;
    const std::string path = folder / "out.h5";
    break_off(state, path, 3);
    Resume one(path, at_once), two(path, at_once);
    CHECK_FALSE(one.look_for(state.header, state_key(state.header)).empty());
    CHECK(two.look_for(state.header, state_key(state.header)).empty());
    discard_unfinished(path);
    CHECK(folder.names().size() == 2);
}

TEST_CASE("what was left is found by its name alone, and discarded on demand") {
    const kv::State state = state_of();
    const test::TempDir folder;
    const std::string path = folder / "out.h5";
    break_off(state, path, 3);
    folder.write(".out.h5.0123456789abcdef.part", "of a writer that was killed, without a journal");
    folder.write(".out.h5.0123456789abcdeX.journal", "not one of ours");
    folder.write(".out.h5.gz.0123456789abcdef.journal", "of another output");
    discard_unfinished(path);
    CHECK(folder.names().size() == 3);
}
