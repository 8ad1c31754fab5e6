// What a transfer of a state will be, from its header alone: before anything moves.
#pragma once
#include <cstdint>
#include <vector>

#include "base/result.h"
#include "kv/state.h"

namespace hetero::transport {

struct TransferPlan {
    struct Layer {
        std::uint64_t k_bytes = 0, v_bytes = 0, chunks = 0;  // over all sequences; values, scales, zeros, kept tokens
    };
    std::uint16_t protocol_version = 1;  // of hkv-mpi, that the other side has to speak
    std::uint64_t offer_bytes = 0;       // of the header as it is offered
    std::uint32_t tokens_per_chunk = 0;
    std::uint64_t largest_chunk_bytes = 0;
    std::vector<Layer> layers;
};

// The header is checked; its tokens_per_chunk may be 0. What the wire format has no room for is bad_input.
Result<TransferPlan> plan_transfer(const kv::Header& header);

}  // namespace hetero::transport
