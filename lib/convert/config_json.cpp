#include "convert/config_json.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "io/json_text.h"

namespace hetero::convert {
namespace {

using Json = nlohmann::ordered_json;

std::string module_of(const std::string& tensor) { return tensor.substr(0, tensor.rfind('.')); }

// The type of most elements that are no int8 codes.
std::string_view float_type(const Plan& plan, const std::vector<Choice>& choices) {
    struct Type {
        kernels::DType dtype;
        std::string_view name;
        double elements = 0;
    };
    std::array types = {Type{kernels::DType::f32, "float32"}, Type{kernels::DType::f16, "float16"},
                        Type{kernels::DType::bf16, "bfloat16"}};
    for (std::size_t i = 0; i < choices.size(); ++i) {
        for (Type& type : types) {
            if (type.dtype != choices[i].format->dtype()) continue;
            double elements = 1;
            for (const std::uint64_t size : plan.tensors[i].shape) elements *= static_cast<double>(size);
            type.elements += elements;
        }
    }
    return std::max_element(types.begin(), types.end(),
                            [](const Type& a, const Type& b) { return a.elements < b.elements; })
        ->name;
}

Json int8_config(const Plan& plan, const std::vector<Choice>& choices) {
    Json ignored = Json::array();
    bool has_output = false;
    for (std::size_t i = 0; i < choices.size(); ++i) {
        const TensorPlan& tensor = plan.tensors[i];
        has_output = has_output || is_output(tensor.name);
        if (choices[i].format->has_row_scale() || tensor.shape.size() != 2 || is_embedding(tensor.name)) continue;
        ignored.push_back(module_of(tensor.name));
    }
    if (!has_output) ignored.push_back("lm_head");  // tied to the embedding
    const auto numbers = [](std::string_view strategy, bool dynamic) {
        return Json{{"num_bits", 8},
                    {"type", "int"},
                    {"symmetric", true},
                    {"strategy", strategy},
                    {"dynamic", dynamic},
                    {"group_size", nullptr},
                    {"block_structure", nullptr},
                    {"actorder", nullptr},
                    {"observer", nullptr},
                    {"observer_kwargs", Json::object()}};
    };
    return {{"quant_method", "compressed-tensors"},
            {"format", "int-quantized"},
            {"quantization_status", "compressed"},
            {"config_groups",
             {{"group_0",
               {{"targets", {"Linear"}},
                {"weights", numbers("channel", false)},
                {"input_activations", numbers("token", true)},
                {"output_activations", nullptr}}}}},
            {"ignore", std::move(ignored)},
            {"kv_cache_scheme", nullptr}};
}

}  // namespace

Result<std::string> converted_config(const std::string& text, const Plan& plan, const std::vector<Choice>& choices) {
    HETERO_CHECK(io::parse_json(text, "config.json"));  // bounds its depth
    Json config;
    try {
        config = Json::parse(text);
    } catch (const nlohmann::json::exception&) {
        return fail(Errc::bad_input, "config.json: is not JSON");
    }
    if (!config.is_object()) return fail(Errc::bad_input, "config.json: must be a JSON object");
    config[config.contains("dtype") ? "dtype" : "torch_dtype"] = float_type(plan, choices);
    config.erase("quantization_config");
    const bool int8 = std::any_of(choices.begin(), choices.end(),
                                  [](const Choice& choice) { return choice.format->has_row_scale(); });
    if (int8) config["quantization_config"] = int8_config(plan, choices);
    return config.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace hetero::convert
