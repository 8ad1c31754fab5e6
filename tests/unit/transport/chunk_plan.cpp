#include "transport/chunk_plan.h"

#include <doctest/doctest.h>

#include "synthetic_state.h"

using namespace hetero;
using namespace hetero::transport;

namespace {

std::vector<test::StateShape> shapes() {
    std::vector<test::StateShape> out(3);
    out[1].tokens = {1, 4, 5, 8};
    out[1].v_codec = "f32";
    out[2].tokens_per_chunk = 1000;
    if (quant::find_codec("int8") != nullptr) {
        test::StateShape quantized;
        quantized.k_codec = quantized.v_codec = "int8";
        quantized.k_params.axis = quant::Axis::channel;
        quantized.k_params.group = 4;
        quantized.k_params.symmetric = false;
        quantized.v_params.symmetric = false;
        quantized.tokens_per_chunk = 8;
        quantized.tokens = {21, 7, 8};
        out.push_back(quantized);
        quantized.sinks = 4;
        quantized.window = 5;
        quantized.tokens = {40, 9, 10, 3};
        out.push_back(quantized);
        quantized.k_params.axis = quant::Axis::tensor;
        quantized.k_params.group = 0;
        quantized.sinks = 0;
        out.push_back(quantized);
    }
    out.push_back(test::mixed_shape());
    test::StateShape part = out[0];
    part.kv_heads = 5;
    part.shard = {2, 0, 1, 3};
    out.push_back(part);
    return out;
}

}  // namespace

TEST_CASE("the walk covers every byte once, in order, with the checksums of the file format") {
    for (const test::StateShape& shape : shapes()) {
        const auto made = test::synthetic_state(shape, 3);
        REQUIRE_MESSAGE(made, made.error().message);
        const kv::State& state = *made;
        std::vector<std::vector<kv::LayerChecksums>> tables(state.layers.size(),
                                                            std::vector<kv::LayerChecksums>(shape.layers));
        std::uint64_t bytes = 0, pieces = 0, layer_index = 0;
        for (ChunkWalk walk(state.header); !walk.done(); walk.advance(), ++pieces) {
            const ChunkPlace& place = walk.place();
            CHECK(place.slot == pieces % wire_slots);
            CHECK(place.layer_index >= layer_index);
            layer_index = place.layer_index;
            CHECK(layer_index == std::uint64_t{place.sequence} * shape.layers + place.layer);
            const auto& array = array_of(state.layers[place.sequence][place.layer].part(place.part), place.array).bytes;
            REQUIRE(place.offset + place.length <= array.size());
            bytes += place.length;
            kv::LayerChecksums& table = tables[place.sequence][place.layer];
            array_of(place.part == kv::PartId::k ? table.k : table.v, place.array)
                .push_back(crc32c(std::span(array).subspan(place.offset, place.length)));
        }
        CHECK(bytes == state.header.payload_bytes());
        CHECK(layer_index + 1 == total_layers(state.header));
        for (std::size_t s = 0; s < state.layers.size(); ++s)
            for (std::size_t l = 0; l < shape.layers; ++l)
                CHECK(tables[s][l] == kv::checksum_layer(state.header, state.layers[s][l]));
    }
}
