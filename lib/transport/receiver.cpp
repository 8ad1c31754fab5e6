#include "transport/receiver.h"

#include <algorithm>
#include <exception>
#include <iterator>

#include "base/units.h"

namespace hetero::transport {
namespace {

constexpr std::size_t places_ahead = 512;  // more than the sender's window, less than wire_slots

}  // namespace

Receiver::Receiver(Link& link) : link_(&link) {
    link_->on_damaged_chunk([this](const FrameHeader& header) {
        for (const ChunkPlace& place : posted_)
            if (place.matches(header)) return expect(place);
    });
}

void Receiver::open(ReceiverOptions options) {
    options_ = std::move(options);
    if (stage_ == Stage::closed) stage_ = Stage::waiting;
}

bool Receiver::step(TimePoint now) {
    now_ = now;
    bool moved = link_->step(now);
    if (stage_ == Stage::closed) return moved;
    while (auto frame = link_->next()) {
        handle(*frame);
        moved = true;
    }
    if (link_->peer_left() && !error() && stage_ < Stage::complete)
        link_->end_with({Errc::peer, fmt::format("{} ended without {}", link_->options().peer,
                                                 accepted() ? "completing its state" : "sending a state")});
    return moved;
}

void Receiver::handle(const Frame& frame) {
    if (error()) return;
    try {
        if (const Status handled = handle_checked(frame); !handled) link_->violated(handled.error().message);
    } catch (const std::exception& e) {  // memory
        reject({Errc::resource, fmt::format("the receiver has no memory: {}", e.what())});
    }
}

Status Receiver::handle_checked(const Frame& frame) {
    const FrameKind kind = frame.header.kind;
    if (kind == FrameKind::hello && stage_ == Stage::waiting) {
        HETERO_TRY(const Hello hello, decode_hello(frame.payload));
        if (hello.role != WireRole::sender) return fail(Errc::peer, "HELLO of a receiver");
        if (hello.min_version > max_protocol_version || hello.max_version < min_protocol_version) {
            reject(
                {Errc::peer, fmt::format("the sender speaks hkv-mpi {} to {}, the receiver {} to {}", hello.min_version,
                                         hello.max_version, min_protocol_version, max_protocol_version)});
            return {};
        }
        version_ = std::min(hello.max_version, max_protocol_version);
        compat_hash_ = hello.compat_hash;
        Hello answer;
        answer.role = WireRole::receiver;
        answer.min_version = min_protocol_version;
        answer.max_version = max_protocol_version;
        answer.program = "hetero";
        if (options_.expected) answer.compat_hash = kv::compat_hash(*options_.expected);
        link_->post(FrameKind::hello_ack, encode(answer));
        stage_ = Stage::greeted;
        return {};
    }
    if (kind == FrameKind::offer && stage_ == Stage::greeted) return handle_offer(frame);
    if (kind == FrameKind::chunk && stage_ == Stage::receiving) return handle_chunk(frame);
    if (kind == FrameKind::keep && stage_ == Stage::receiving) return handle_keep(frame);
    if (kind == FrameKind::commit && stage_ == Stage::receiving) return handle_commit(frame);
    return fail(Errc::peer, "{} out of turn", frame_kind_name(kind));
}

Status Receiver::handle_offer(const Frame& frame) {
    auto decoded = decode_offer(frame.payload, version_);
    if (!decoded && decoded.error().code == Errc::bad_input) {
        reject(decoded.error());
        return {};
    }
    HETERO_TRY(Offer offer, std::move(decoded));
    if (offer.header.identity.n_layers > 0xFFFF) return fail(Errc::peer, "OFFER has more than 65535 layers");
    if (kv::compat_hash(offer.header.identity) != compat_hash_ || compat_hash_ == Digest{})
        return fail(Errc::peer, "HELLO and OFFER describe different models");
    if (options_.expected) {
        if (const auto mismatches = kv::compare(*options_.expected, offer.header.identity); !mismatches.empty()) {
            reject({Errc::bad_input, fmt::format("the state belongs to another model: {}",
                                                 kv::to_text(mismatches, "the receiver", "the state"))});
            return {};
        }
    }
    header_ = std::move(offer.header);
    state_key_ = offer.state_key;
    total_ = total_layers(header_);
    next_.emplace(header_);
    ahead_.emplace(header_);

    std::uint64_t first_bytes = 0;
    std::uint64_t& first = first_layers_;
    while (first < total_ && (first < 2 || first_bytes < options_.granted_bytes)) {
        first_bytes += layer_bytes(header_, first);
        ++first;
    }
    if (options_.memory_bytes != 0 && first_bytes > options_.memory_bytes) {
        reject({Errc::resource, fmt::format("the receiver needs {} for {} layers and has {}", format_bytes(first_bytes),
                                            first, format_bytes(options_.memory_bytes))});
        return {};
    }
    stage_ = Stage::offered;
    if (options_.decides) return {};
    if (auto buffers = first_buffers()) {
        accept(std::move(*buffers), {});
    } else {
        reject(buffers.error());
    }
    return {};
}

Result<std::vector<std::shared_ptr<kv::Layer>>> Receiver::first_buffers() {
    std::vector<std::shared_ptr<kv::Layer>> buffers;
    for (std::uint64_t i = 0; i < first_layers_; ++i) {
        HETERO_TRY(buffers.emplace_back(), options_.layers->take(header_, i));
    }
    return buffers;
}

void Receiver::accept(std::vector<std::shared_ptr<kv::Layer>> buffers, std::vector<HeldPieces> held) {
    if (error()) return;
    if (version_ < 3) held.clear();
    for (auto& buffer : buffers) add_buffer(std::move(buffer));
    stage_ = Stage::receiving;
    post_places();
    link_->post(FrameKind::accept, encode(Accept{granted_, held}, version_));
    held_.assign(std::make_move_iterator(held.begin()), std::make_move_iterator(held.end()));
}

void Receiver::reject(const Error& reason) {
    if (stage_ == Stage::waiting || stage_ == Stage::greeted || stage_ == Stage::offered) {
        link_->post(FrameKind::reject, encode(reason));
        link_->end_with({reason.code, fmt::format("{}: {}", link_->options().peer, reason.message)});
    } else {
        link_->give_up(reason);
    }
}

Receiver::Buffer* Receiver::buffer_of(std::uint64_t layer_index) noexcept {
    if (layer_index < taken_ || layer_index >= granted_) return nullptr;
    return &buffers_[static_cast<std::size_t>(layer_index - taken_)];
}

// All pieces before the next one have come.
std::uint64_t Receiver::complete_layers() const noexcept { return next_->done() ? total_ : next_->place().layer_index; }

void Receiver::expect(const ChunkPlace& place) {
    Buffer* buffer = buffer_of(place.layer_index);
    if (buffer == nullptr) return;
    auto& bytes = array_of(buffer->layer->part(place.part), place.array).bytes;
    link_->expect(place.slot, std::span(bytes).subspan(place.offset, place.length), buffer->layer);
}

void Receiver::post_places() {
    while (!ahead_->done() && ahead_->place().layer_index < granted_ && posted_.size() < places_ahead) {
        expect(ahead_->place());
        posted_.push_back(ahead_->place());
        ahead_->advance();
    }
}

Status Receiver::handle_chunk(const Frame& frame) {
    if (next_->done() || posted_.empty()) return fail(Errc::peer, "a chunk too many");
    const ChunkPlace place = next_->place();
    if (!place.matches(frame.header))
        return fail(Errc::peer,
                    "chunk {} of layer {}, sequence {} with {} bytes, where chunk {} of layer {}, sequence {} with {} "
                    "bytes was next",
                    frame.header.chunk, frame.header.layer, frame.header.sequence, frame.header.length, place.chunk,
                    place.layer, place.sequence, place.length);
    take_piece(place, frame.header.payload_crc);
    post_places();
    return {};
}

void Receiver::take_piece(const ChunkPlace& place, std::uint32_t crc) {
    Buffer* buffer = buffer_of(place.layer_index);
    array_of(place.part == kv::PartId::k ? buffer->checksums.k : buffer->checksums.v, place.array).push_back(crc);
    posted_.pop_front();
    if (times_.begun() == place.layer_index) times_.layer_begins(now_);
    next_->advance();
    times_.layers_end(complete_layers(), now_);
}

// What the sender leaves out has to be held, and its layer granted.
Status Receiver::handle_keep(const Frame& frame) {
    HETERO_TRY(std::uint64_t pieces, decode_keep(frame.payload));
    for (; pieces > 0; --pieces) {
        if (posted_.empty()) post_places();
        if (next_->done() || posted_.empty()) return fail(Errc::peer, "KEEP of {} pieces too many", pieces);
        const ChunkPlace place = next_->place();
        while (!held_.empty() && held_.front().first + held_.front().crcs.size() <= place.piece) held_.pop_front();
        if (held_.empty() || held_.front().first > place.piece)
            return fail(Errc::peer, "KEEP of piece {}, which is not held", place.piece);
        link_->withdraw(place.slot);
        if (error()) return {};
        kept_bytes_ += place.length;
        take_piece(place, held_.front().crcs[place.piece - held_.front().first]);
    }
    post_places();
    return {};
}

Status Receiver::handle_commit(const Frame& frame) {
    if (!next_->done())
        return fail(Errc::peer, "COMMIT before layer {} of sequence {} was complete", next_->place().layer,
                    next_->place().sequence);
    HETERO_TRY(Commit commit, decode_commit(frame.payload, header_.late_logits ? header_.sequences.size() : 0));
    const Digest root = commit.root;
    if (header_.late_logits) {
        take_late(std::move(commit), header_);
        if (const Status checked = kv::check_header(header_); !checked)
            return fail(Errc::peer, "COMMIT: {}", checked.error().message);
    }
    root_ = root;
    stage_ = Stage::complete;
    return {};
}

bool Receiver::layer_ready() const noexcept { return !buffers_.empty() && taken_ < complete_layers(); }

ReceivedLayer Receiver::take_layer() {
    Buffer buffer = std::move(buffers_.front());
    buffers_.pop_front();
    buffer_bytes_ -= buffer.bytes;
    ++taken_;
    return {std::move(*buffer.layer), std::move(buffer.checksums)};
}

bool Receiver::wants_buffer() const noexcept {
    if (!accepted() || error() || granted_ >= total_) return false;
    return buffers_.size() < 2 || buffer_bytes_ < options_.granted_bytes;
}

void Receiver::add_buffer(std::shared_ptr<kv::Layer> layer) {
    const std::uint64_t bytes = layer_bytes(header_, granted_++);
    buffers_.push_back({std::move(layer), {}, bytes});
    buffer_bytes_ += bytes;
}

void Receiver::grant(std::shared_ptr<kv::Layer> buffer) {
    if (error()) return;
    add_buffer(std::move(buffer));
    post_places();
    link_->post(FrameKind::credit, encode_credit(granted_));
}

void Receiver::agree() { stage_ = Stage::agreed; }

void Receiver::confirm() {
    if (stage_ != Stage::agreed) return;
    times_.committed(now_);
    link_->post(FrameKind::commit_ack, encode_root(*root_));
    stage_ = Stage::confirmed;
}

void Receiver::refuse_root(const Digest& own) {
    link_->violated(fmt::format("its root is {}, what arrived has {}", to_hex(*root_), to_hex(own)));
}

}  // namespace hetero::transport
