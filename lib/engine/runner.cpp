#include "engine/runner.h"

#include <algorithm>

namespace hetero::engine {

Status Runner::check_pieces(std::span<const Piece> pieces, std::size_t chunk_tokens, std::size_t sequences) {
    std::size_t n_tokens = 0;
    for (const Piece& piece : pieces) {
        n_tokens += piece.tokens.size();
        if (piece.tokens.empty() || n_tokens > chunk_tokens || pieces.size() > sequences ||
            piece.first + piece.tokens.size() > piece.cache->capacity()) {
            return fail(Errc::internal, "executor: {} tokens at {} in a chunk of {} (of {}, capacity {})",
                        piece.tokens.size(), piece.first, n_tokens, chunk_tokens, piece.cache->capacity());
        }
    }
    return {};
}

Status Runner::check_block(const Piece& block, std::size_t block_tokens) {
    const std::size_t n_tokens = block.tokens.size();
    if (n_tokens != 0 && n_tokens <= block_tokens && block.first + n_tokens <= block.cache->capacity()) return {};
    return fail(Errc::internal, "executor: {} tokens at {} in a block of {} (capacity {})", n_tokens, block.first,
                block_tokens, block.cache->capacity());
}

Status Runner::for_chunks(std::size_t n_tokens, std::size_t chunk_tokens, const Segments& segments, Rows rows,
                          FunctionRef<Status(const SegmentChunk&)> run) {
    std::size_t begin_op = 0;
    for (const std::size_t end_op : segments.ends) {
        for (std::size_t begin = 0; begin < n_tokens; begin += chunk_tokens) {
            const std::size_t count = std::min(chunk_tokens, n_tokens - begin);
            const bool last = begin + count == n_tokens;
            HETERO_CHECK(run({begin_op, end_op, begin, count, rows == Rows::last && !last ? Rows::none : rows, last}));
        }
        begin_op = end_op;
    }
    return {};
}

}  // namespace hetero::engine
