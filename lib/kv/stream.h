// Where a KV state comes from and goes to: file, pipe, MPI rank or memory, one layer at a time.
// Order: sequences in order, in each the layers in order, each exactly once.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/function_ref.h"
#include "base/result.h"
#include "kv/state.h"

namespace hetero::kv {

// A layer in the memory of a device, which the host does not read. Its bytes stay as they are while it is held.
class RemoteLayer {
public:
    virtual ~RemoteLayer() = default;
    // Addresses there, of an array as part_arrays counts them.
    [[nodiscard]] virtual std::span<const std::byte> bytes(PartId part, std::size_t array) const = 0;
    // CRC-32C of pieces of these, made there. Errors: resource, of the device.
    virtual Status checksums(std::span<const std::span<const std::byte>> pieces,
                             std::span<std::uint32_t> crcs) const = 0;
    // To here: a piece of it, or all.
    virtual Status read(std::span<const std::byte> there, std::span<std::byte> here) const = 0;
    virtual Result<Layer> fetch() const = 0;
};

// A layer that lies in a file as values alone: they go where they are wanted in pieces that stay in a core's cache.
// Not to outlive its source.
class LayerStream {
public:
    virtual ~LayerStream() = default;
    // Schemes, types and shapes, as they have been checked; the tensors have no bytes.
    [[nodiscard]] virtual const Layer& layer() const noexcept = 0;
    // Rows of a part's values that have one checksum.
    [[nodiscard]] virtual std::size_t chunks(PartId part) const = 0;
    // Hands out whole rows of a chunk in order, valid during the call, and then compares them with their checksum: what
    // was given is not to be used where there is an error. Several threads may read chunks at once.
    using TakeFn = FunctionRef<Status(std::uint64_t first_row, std::uint64_t end_row, std::span<const std::byte>)>;
    virtual Status read(PartId part, std::size_t chunk, TakeFn take) const = 0;
};

class Source {
public:
    virtual ~Source() = default;
    [[nodiscard]] virtual const Header& header() const noexcept = 0;  // checked; finish() adds logits that come late
    // The next layer in order, checksums and shapes verified. Data are only to be trusted once finish() has succeeded.
    virtual Result<Layer> read_layer() = 0;
    // The same, into `layer`, whose memory is used again; what it held is lost, also where there is an error.
    virtual Status read_into(Layer& layer);
    // The same, to be read piece by piece; null: this source has it not so, and read_layer() gives it.
    virtual Result<std::unique_ptr<LayerStream>> read_stream() { return nullptr; }
    // The same where the next layer lies in a device's memory; null: it does not, or nothing is known of that, and
    // read_layer() gives it.
    virtual Result<std::shared_ptr<const RemoteLayer>> read_remote() { return nullptr; }
    // The next layer in order is not wanted: it is not read where it need not be.
    virtual Status skip_layer();
    // After the last layer: the root covers everything read, and the writer had completed the state.
    virtual Status finish() = 0;
    [[nodiscard]] virtual const std::string& name() const noexcept = 0;  // "a.h5", "stdin", "rank 2": for messages
};

class Sink {
public:
    virtual ~Sink() = default;  // without commit(): nothing becomes visible, the other side is told
    virtual Status begin(const Header& header) = 0;
    virtual Status write_layer(const Layer& layer) = 0;  // the next one in order
    // The same for a layer that nobody changes any more: the sink may keep it until it has left, instead of a copy, and
    // take its checksums for those of its bytes.
    virtual Status write_shared(std::shared_ptr<const Layer> layer) { return write_layer(*layer); }
    // The same from where a layer lies, as far as the sink can take it from there.
    virtual Status write_remote(std::shared_ptr<const RemoteLayer> layer);
    // Where begin() was given late_logits, before commit(): the header with them.
    virtual Status complete(const Header& header);
    virtual Status commit() = 0;                           // all is there: publish
    virtual void abort(const Error& reason) noexcept = 0;  // tells the other side why; safe at any time, more than once
    [[nodiscard]] virtual const std::string& name() const noexcept = 0;
};

// A whole state in memory.
struct State {
    Header header;
    std::vector<std::vector<Layer>> layers;  // [sequence][layer]
};

Result<State> read_all(Source& source);            // calls finish()
Status write_all(const State& state, Sink& sink);  // begin .. commit
// Layers of `source` are read by a thread of its own, while the caller uses the one before: up to two more are held.
// Nothing else may use `source` between the first layer and finish().
std::unique_ptr<Source> read_ahead(std::unique_ptr<Source> source);
std::unique_ptr<Source> memory_source(std::shared_ptr<const State> state, std::string name);

}  // namespace hetero::kv
