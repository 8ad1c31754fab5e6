// States whose logits come after the layers: sources bring them with finish(), sinks get them with complete().
#include "kv/compare.h"
#include "kv/convert.h"
#include "kv/reshard_plan.h"
#include "kv/shards.h"
#include "unit/kv/states.h"

using namespace hetero;
using namespace hetero::test;

namespace {

Plan two_sequences() {
    Plan plan;
    plan.lengths = {6, 3};
    plan.tokens_per_chunk = 4;
    return plan;
}

// A state whose logits and pending tokens are not known before its end.
class Late final : public kv::Source {
public:
    explicit Late(const kv::State& state)
        : inner_(kv::memory_source(std::make_shared<kv::State>(state), "late")), header_(state.header) {
        header_.late_logits = true;
        for (kv::Sequence& sequence : header_.sequences) {
            sequence.logits.clear();
            sequence.pending_token = -1;
        }
    }
    [[nodiscard]] const kv::Header& header() const noexcept override { return header_; }
    [[nodiscard]] const std::string& name() const noexcept override { return inner_->name(); }
    Result<kv::Layer> read_layer() override { return inner_->read_layer(); }
    Status finish() override {
        HETERO_CHECK(inner_->finish());
        header_.take_logits_of(inner_->header());
        return {};
    }

private:
    std::unique_ptr<kv::Source> inner_;
    kv::Header header_;
};

struct Image {
    std::vector<std::byte> bytes;
    std::unique_ptr<kv::Sink> sink() {
        return kv::create_image(
            [this](std::span<const std::byte> all) -> Status {
                bytes.assign(all.begin(), all.end());
                return {};
            },
            "image");
    }
    kv::State state() const {
        auto loaded = load_image(bytes);
        REQUIRE_MESSAGE(loaded.has_value(), loaded.error().message);
        return std::move(*loaded);
    }
};

Status convert(kv::Source& from, kv::Sink& to, const std::string& codec) {
    const auto done = kv::convert_state(from, to, spec_scheme(codec), spec_scheme(codec), false, {"test", "1", "x"}, 1);
    return done ? Status{} : Status(tl::unexpected<Error>(done.error()));
}

}  // namespace

TEST_CASE("a state in memory has the logits that came late") {
    const kv::State state = make_state(two_sequences());
    Late late(state);
    const auto read = kv::read_all(late);
    REQUIRE_MESSAGE(read.has_value(), read.error().message);
    CHECK(difference(state, *read).empty());
    CHECK_FALSE(read->header.late_logits);
}

TEST_CASE("a file has them, converted or not") {
    const kv::State state = make_state(two_sequences());
    for (const std::string codec : {"f16", "int8"}) {
        CAPTURE(codec);
        Image early, image;
        REQUIRE(convert(*kv::memory_source(std::make_shared<kv::State>(state), "early"), *early.sink(), codec));
        Late late(state);
        const Status done = convert(late, *image.sink(), codec);
        REQUIRE_MESSAGE(done.has_value(), done.error().message);
        CHECK(difference(early.state(), image.state()).empty());
    }
}

TEST_CASE("of several shards the first gets the logits, and all the pending tokens") {
    const kv::State state = make_state(two_sequences());
    Image images[2];
    std::vector<std::unique_ptr<kv::Sink>> sinks;
    for (Image& image : images) sinks.push_back(image.sink());
    const auto split = kv::split_heads(std::move(sinks), kv::cuts_for_ranks(2), "shards");
    Late late(state);
    REQUIRE(convert(late, *split, "f16"));
    const kv::State first = images[0].state(), second = images[1].state();
    for (std::size_t s = 0; s < 2; ++s) {
        CHECK(first.header.sequences[s].logits == state.header.sequences[s].logits);
        CHECK(second.header.sequences[s].logits.empty());
        CHECK(first.header.sequences[s].pending_token == state.header.sequences[s].pending_token);
        CHECK(second.header.sequences[s].pending_token == state.header.sequences[s].pending_token);
    }
}

TEST_CASE("slices and comparisons wait for them") {
    const kv::State state = make_state(two_sequences());
    auto sliced = kv::slice_heads(std::make_unique<Late>(state), {2, 1, 1, 1});
    REQUIRE_MESSAGE(sliced.has_value(), sliced.error().message);
    const auto half = kv::read_all(**sliced);
    REQUIRE(half.has_value());
    CHECK(half->header.sequences[1].logits == state.header.sequences[1].logits);

    kv::State other = state;
    other.header.sequences[1].pending_token = 7;
    other.header.sequences[0].logits[3] += 1;
    Late a(state), b(other);
    const auto compared = kv::compare_states(a, b, false, {});
    REQUIRE_MESSAGE(compared.has_value(), compared.error().message);
    REQUIRE(compared->mismatches.size() == 1);
    CHECK(compared->mismatches.front().field == "sequence prompt 1: pending_token");
    CHECK(compared->logits_max_abs == 1);
}

TEST_CASE("a file is not published without them, nor gets them twice") {
    const kv::State state = make_state(two_sequences());
    Late late(state);
    const auto write = [&](kv::Sink& sink, const kv::Header& header) {
        REQUIRE(sink.begin(header));
        for (const auto& layers : state.layers)
            for (const kv::Layer& layer : layers) REQUIRE(sink.write_layer(layer));
    };
    Image without, twice, wrong;
    const auto first = without.sink();
    write(*first, late.header());
    CHECK_FALSE(first->commit());
    CHECK(without.bytes.empty());
    const auto second = twice.sink();
    write(*second, state.header);
    CHECK_FALSE(second->complete(state.header));
    const auto third = wrong.sink();
    write(*third, late.header());
    kv::Header odd = state.header;
    odd.sequences[0].logits.resize(3);
    CHECK_FALSE(third->complete(odd));
    CHECK_FALSE(third->commit());
    CHECK(wrong.bytes.empty());
}
