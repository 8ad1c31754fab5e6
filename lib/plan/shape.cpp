#include "plan/shape.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

#include "base/printable.h"
#include "kernels/api/dtype.h"

namespace hetero::plan {
namespace {

namespace fs = std::filesystem;
using kernels::DType;

double params_of_attention(const model::Config& config) {
    const double hidden = config.hidden, heads = config.n_heads;
    if (!config.latent) return hidden * config.head_dim * (2 * heads + 2 * double{1} * config.n_kv_heads);
    const model::LatentConfig& latent = *config.latent;
    const double query = heads * (latent.plain_dim + latent.rope_dim);
    const double q = latent.q_rank > 0 ? latent.q_rank * (hidden + query) : hidden * query;
    const double kv = hidden * (latent.kv_rank + latent.rope_dim);
    const double up = double{1} * latent.kv_rank * heads * (latent.plain_dim + latent.v_dim);
    return q + kv + up + heads * latent.v_dim * hidden;
}

// What a planner calls a type of weights, of any number of bits of that kind.
std::string planner_dtype(DType type) {
    switch (type) {
        case DType::f32:
            return "f32";
        case DType::f16:
            return "f16";
        case DType::bf16:
            return "bf16";
        default:
            break;
    }
    const kernels::DTypeInfo& info = kernels::dtype_info(type);
    const double bits = 8.0 * static_cast<double>(info.block_bytes) / static_cast<double>(info.block_elems);
    return bits > 6 ? "int8" : "int4";
}

void add_stored(const model::Model& model, ModelShape& shape) {
    shape.stored_bytes = static_cast<double>(model.weight_bytes);
    std::map<std::string, double> bytes;
    for (const std::string& name : model.weights->names()) {
        const io::TensorView* view = model.weights->find(name);
        if (view != nullptr && view->shape.size() > 1)
            bytes[planner_dtype(view->dtype)] += static_cast<double>(view->bytes.size());
    }
    const auto most =
        std::max_element(bytes.begin(), bytes.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
    if (most != bytes.end()) shape.stored_dtype = most->first;
}

bool has_weights(const std::string& path) {
    std::error_code error;
    if (!fs::is_directory(path, error)) return !path.ends_with(".json");
    for (const auto& entry : fs::directory_iterator(path, error))
        if (entry.path().extension() == ".safetensors") return true;
    return false;
}

Result<double> part_bytes(const quant::Spec& spec, std::uint32_t heads, std::uint32_t head_dim) {
    constexpr std::uint64_t tokens = 4096;  // many, so that groups over tokens are whole
    const quant::Codec* codec = quant::find_codec(spec.codec);
    if (codec == nullptr) return fail(Errc::usage, "'{}' is no codec; there are {}", spec.codec, quant::codec_names());
    HETERO_CHECK(codec->check(spec.params, head_dim));
    const quant::Shape shape{tokens, heads, head_dim, 0};
    return static_cast<double>(codec->bytes(spec.params, shape).total()) / tokens;
}

}  // namespace

double ModelShape::read_params(double batch) const noexcept {
    double read = dense_params + head_params;
    if (experts.count > 0) {
        const double all = experts.count;
        read += experts.layers * experts.params * all * (1 - std::pow(1 - experts.per_token / all, batch));
    }
    return read;
}

ModelShape shape_of(const model::Config& config) {
    ModelShape shape;
    shape.name = printable(config.name);  // of a file, for people
    shape.context_tokens = config.context_length;
    shape.n_layers = config.n_layers;
    shape.hidden = config.hidden;
    shape.n_heads = config.n_heads;
    shape.n_kv_heads = config.n_kv_heads;
    shape.head_dim_k = shape.head_dim_v = config.head_dim;
    shape.prefill_pair_dims = shape.decode_pair_dims = 2 * config.head_dim;
    if (config.latent) {
        const model::LatentConfig& latent = *config.latent;
        shape.latent = true;
        shape.n_kv_heads = 1;
        shape.head_dim_k = latent.kv_rank;
        shape.head_dim_v = latent.rope_dim;
        shape.prefill_pair_dims = latent.plain_dim + latent.rope_dim + latent.v_dim;
        shape.decode_pair_dims = 2 * latent.kv_rank + latent.rope_dim;
    }
    shape.sliding_layers = static_cast<std::uint32_t>(std::count(config.sliding.begin(), config.sliding.end(), true));
    shape.window = shape.sliding_layers > 0 ? config.window : 0;

    const double hidden = config.hidden, layers = config.n_layers;
    const double gated = config.arch == "gpt_neox" ? 2 : 3;  // matrices of an FFN
    double moe_layers = 0;
    if (config.moe) {
        const model::MoeConfig& moe = *config.moe;
        moe_layers = static_cast<double>(std::count(moe.layers.begin(), moe.layers.end(), true));
        shape.experts.layers = static_cast<std::uint32_t>(moe_layers);
        shape.experts.count = moe.n_experts;
        shape.experts.per_token = moe.rule.top_k;
        shape.experts.params = gated * hidden * moe.expert_ffn;
        shape.dense_params += moe_layers * hidden * (moe.n_experts + gated * moe.n_shared * double{1} * moe.expert_ffn);
    }
    shape.dense_params += layers * params_of_attention(config) + (layers - moe_layers) * gated * hidden * config.ffn;
    shape.head_params = hidden * config.vocab_size;
    shape.stored_params = shape.dense_params + shape.head_params * (config.tied_embeddings ? 1 : 2) +
                          double{1} * shape.experts.layers * shape.experts.count * shape.experts.params;
    return shape;
}

Result<DescribedModel> describe_model(const std::string& path) {
    DescribedModel out;
    if (!has_weights(path)) {
        HETERO_TRY(const model::Config config, model::read_config(path));
        out.shape = shape_of(config);
        return out;
    }
    HETERO_TRY(out.model, model::Model::load(path));
    out.shape = shape_of(out.model->config);
    add_stored(*out.model, out.shape);
    return out;
}

Result<double> kv_bytes_per_token(const ModelShape& shape, const quant::Spec& k, const quant::Spec& v) {
    HETERO_TRY(const double k_bytes, part_bytes(k, shape.n_kv_heads, shape.head_dim_k));
    HETERO_TRY(const double v_bytes, part_bytes(v, shape.n_kv_heads, shape.head_dim_v));
    return shape.n_layers * (k_bytes + v_bytes);
}

double kv_replication(const ModelShape& shape, std::uint32_t tp) noexcept {
    if (shape.latent) return tp;
    return std::max(1.0, static_cast<double>(tp) / shape.n_kv_heads);
}

sched::KvSize kv_size(const ModelShape& shape, double bytes_per_token, double copies) noexcept {
    sched::KvSize size;
    size.bytes_per_token = bytes_per_token * copies;
    size.window = shape.window;
    size.sliding_fraction = shape.n_layers > 0 ? static_cast<double>(shape.sliding_layers) / shape.n_layers : 0;
    return size;
}

}  // namespace hetero::plan
