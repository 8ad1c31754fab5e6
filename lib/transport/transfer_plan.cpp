#include "transport/transfer_plan.h"

#include <algorithm>

#include "transport/chunk_plan.h"
#include "transport/messages.h"
#include "transport/sender.h"

namespace hetero::transport {

Result<TransferPlan> plan_transfer(const kv::Header& header) {
    kv::Header sent = header;
    if (sent.tokens_per_chunk == 0) sent.tokens_per_chunk = kv::choose_tokens_per_chunk(sent);
    HETERO_CHECK(kv::check_header(sent));
    HETERO_TRY(const std::vector<std::byte> offer, encode_offer(sent));
    TransferPlan plan;
    plan.protocol_version = protocol_version_of(sent);
    plan.offer_bytes = offer.size();
    plan.tokens_per_chunk = sent.tokens_per_chunk;
    plan.layers.resize(sent.identity.n_layers);
    for (ChunkWalk walk(sent); !walk.done(); walk.advance()) {
        const ChunkPlace& place = walk.place();
        TransferPlan::Layer& layer = plan.layers[place.layer];
        (place.part == kv::PartId::k ? layer.k_bytes : layer.v_bytes) += place.length;
        ++layer.chunks;
        plan.largest_chunk_bytes = std::max(plan.largest_chunk_bytes, place.length);
    }
    return plan;
}

}  // namespace hetero::transport
