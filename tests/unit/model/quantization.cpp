// What a config.json may say of quantized weights.
#include "model/quantization.h"

#include "support.h"

using namespace hetero;
using nlohmann::json;

namespace {

// As llm-compressor writes it for 8-bit weights and activations.
json published() {
    return json::parse(R"({
        "config_groups": {"group_0": {
            "format": "int-quantized",
            "input_activations": {"actorder": null, "block_structure": null, "dynamic": true, "group_size": null,
                "num_bits": 8, "observer": null, "observer_kwargs": {}, "strategy": "token", "symmetric": true,
                "type": "int"},
            "output_activations": null,
            "targets": ["Linear"],
            "weights": {"actorder": null, "block_structure": null, "dynamic": false, "group_size": null, "num_bits": 8,
                "observer": "minmax", "observer_kwargs": {}, "strategy": "channel", "symmetric": true, "type": "int"}}},
        "format": "int-quantized", "global_compression_ratio": 1.4, "ignore": ["lm_head"], "kv_cache_scheme": null,
        "quant_method": "compressed-tensors", "quantization_status": "compressed", "sparsity_config": {},
        "transform_config": {}, "version": "0.11.0"})");
}

Result<bool> read(const json& quantization) {
    return model::read_quantization("config.json", json{{"quantization_config", quantization}}.dump());
}

}  // namespace

TEST_CASE("int8 weights with a scale per channel are understood") {
    CHECK(read(published()).value());
    json weights_only = published();
    weights_only["config_groups"]["group_0"]["input_activations"] = nullptr;
    weights_only["config_groups"]["group_0"].erase("format");
    CHECK(read(weights_only).value());
    CHECK_FALSE(model::read_quantization("config.json", R"({"hidden_size": 64})").value());
    CHECK_FALSE(read(nullptr).value());
}

TEST_CASE("every other kind is refused by name") {
    struct Change {
        std::string path;
        json value;
        std::string named;
    };
    const std::string group = "/config_groups/group_0", weights = group + "/weights";
    const Change changes[] = {
        {"/quant_method", "gptq", "quant_method is \"gptq\""},
        {"/format", "pack-quantized", "format is \"pack-quantized\""},
        {"/kv_cache_scheme", {{"num_bits", 8}}, "kv_cache_scheme"},
        {"/sparsity_config", {{"format", "sparse-24"}}, "sparsity_config"},
        {"/transform_config", {{"rotation", 1}}, "transform_config"},
        {"/some_new_feature", 1, "some_new_feature is 1"},
        {"/config_groups", nullptr, "config_groups"},
        {group, 5, "group_0"},
        {weights, nullptr, "weights"},
        {weights + "/num_bits", 4, "num_bits is 4"},
        {weights + "/type", "float", "type is \"float\""},
        {weights + "/symmetric", false, "symmetric is false"},
        {weights + "/strategy", "group", "strategy is \"group\""},
        {weights + "/group_size", 128, "group_size is 128"},
        {weights + "/actorder", "weight", "actorder"},
        {weights + "/dynamic", true, "dynamic is true"},
        {group + "/output_activations", {{"num_bits", 8}}, "output_activations"},
        {group + "/input_activations/dynamic", false, "input_activations.dynamic is false"},
        {group + "/input_activations/strategy", "tensor", "strategy is \"tensor\""},
        {group + "/format", "float-quantized", "format is \"float-quantized\""},
    };
    for (const Change& change : changes) {
        json config = published();
        config[json::json_pointer(change.path)] = change.value;
        const auto result = read(config);
        CAPTURE(change.path);
        REQUIRE_FALSE(result.has_value());
        CAPTURE(result.error().message);
        CHECK(result.error().code == Errc::bad_input);
        CHECK(result.error().message.find(change.named) != std::string::npos);
    }
    for (const char* key : {"num_bits", "type", "symmetric", "strategy"}) {
        json config = published();
        config["config_groups"]["group_0"]["weights"].erase(key);
        CAPTURE(key);
        CHECK_FALSE(read(config).has_value());
    }
    CHECK_FALSE(read(5).has_value());
    CHECK_FALSE(read(json::array()).has_value());
}
