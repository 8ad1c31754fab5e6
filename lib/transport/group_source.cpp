#include "transport/group_source.h"

#include <algorithm>
#include <new>

#include "base/hash.h"
#include "kv/integrity.h"
#include "transport/chunk_plan.h"
#include "transport/messages.h"
#include "transport/wire_bytes.h"

namespace hetero::transport {
namespace {

class GroupSource final : public kv::Source {
public:
    GroupSource(Communicator& group, std::unique_ptr<kv::Source> inner, kv::Header header, std::string name)
        : group_(group), inner_(std::move(inner)), header_(std::move(header)), name_(std::move(name)) {}

    [[nodiscard]] const kv::Header& header() const noexcept override { return header_; }
    [[nodiscard]] const std::string& name() const noexcept override { return name_; }

    Result<kv::Layer> read_layer() override {
        if (read_ == total_layers(header_)) return fail(Errc::internal, "{}: read beyond the last layer", name_);
        const std::uint64_t index = read_++;
        kv::Layer layer;
        if (inner_) {
            HETERO_TRY(layer, inner_->read_layer());
        } else {
            HETERO_TRY(const auto allocated, allocate_layer(header_, index));
            layer = std::move(*allocated);
        }
        for (const kv::PartId id : {kv::PartId::k, kv::PartId::v}) {
            kv::Part& part = layer.part(id);
            for (const auto array : kv::part_arrays) {
                std::vector<std::byte>& bytes = (part.*array).bytes;
                const std::size_t expected = bytes.size();
                HETERO_CHECK(group_.broadcast(bytes));
                if (bytes.size() != expected)
                    return fail(Errc::internal, "{}: layer {}: {} bytes handed out, expected {}", name_,
                                index % header_.identity.n_layers, bytes.size(), expected);
            }
        }
        return layer;
    }

    Status finish() override {
        HETERO_CHECK(group_.agree(inner_ ? inner_->finish() : Status{}));
        if (!header_.late_logits) return {};
        std::vector<std::byte> bytes;
        if (inner_) bytes = encode(commit_of({}, inner_->header()));
        HETERO_CHECK(group_.broadcast(bytes));
        HETERO_TRY(Commit late, decode_commit(bytes, header_.sequences.size()));
        take_late(std::move(late), header_);
        return {};
    }

private:
    Communicator& group_;
    std::unique_ptr<kv::Source> inner_;  // rank 0 alone
    kv::Header header_;
    std::string name_;
    std::uint64_t read_ = 0;
};

}  // namespace

Result<std::unique_ptr<kv::Source>> hand_out(Communicator& group, Result<std::unique_ptr<kv::Source>> opened) {
    HETERO_CHECK(group.agree(opened ? Status{} : Status(tl::unexpected<Error>(opened.error()))));
    try {
        std::vector<std::byte> offer, about;  // about: the version of the offer's layout, the name
        if (group.is_root()) {
            kv::Header header = (*opened)->header();
            if (header.tokens_per_chunk == 0) header.tokens_per_chunk = kv::choose_tokens_per_chunk(header);
            offer = encode(Offer{header.payload_bytes(), header});
            ByteWriter out;
            out.number(protocol_version_of(header));
            out.text((*opened)->name());
            about = out.take();
        }
        HETERO_CHECK(group.broadcast(offer));
        HETERO_CHECK(group.broadcast(about));
        ByteReader in(about);
        const auto version = in.number<std::uint16_t>();
        std::string name = in.text();
        HETERO_TRY(Offer decoded, decode_offer(offer, version));
        return std::make_unique<GroupSource>(group, group.is_root() ? std::move(*opened) : nullptr,
                                             std::move(decoded.header), std::move(name));
    } catch (const std::bad_alloc&) {
        return fail(Errc::resource, "out of memory while a state is handed out");
    }
}

Status check_same_state(Communicator& group, const Result<std::unique_ptr<kv::Source>>& opened) {
    HETERO_CHECK(group.agree(opened ? Status{} : Status(tl::unexpected<Error>(opened.error()))));
    if (group.size() == 1) return {};
    Offer own_offer{0, (*opened)->header()};
    own_offer.header.shard = {};  // each may have its own heads
    const std::vector<std::byte> offer = encode(own_offer);
    const Digest own = Sha256().update(offer).finish();
    const auto digest = std::as_bytes(std::span(own));
    std::vector<std::byte> first(digest.begin(), digest.end());
    HETERO_CHECK(group.broadcast(first));
    const bool same = std::equal(first.begin(), first.end(), digest.begin(), digest.end());
    return group.agree(
        same ? Status{}
             : Status(fail(Errc::bad_input, "{}: rank {} of the group finds another state here than its first rank",
                           (*opened)->name(), group.rank())));
}

Result<kv::Shard> own_shard(const Communicator& group, const kv::HeadCounts& heads) {
    const auto ranks = static_cast<std::uint32_t>(group.size());
    HETERO_CHECK(kv::check_tp_size(heads, ranks));
    return kv::shard_of(heads, ranks, static_cast<std::uint32_t>(group.rank()));
}

}  // namespace hetero::transport
