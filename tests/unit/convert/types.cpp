// In which type each tensor goes out.
#include "convert/types.h"

#include <numeric>

#include "support.h"

using namespace hetero;
using namespace hetero::test;
using convert::Keep;
using convert::Plan;
using convert::Target;
using kernels::DType;

namespace {

// A model with an output matrix of its own unless it is tied.
struct Made {
    MadeTensors source;
    Plan plan;
    void add(const std::string& name, std::vector<std::uint64_t> shape, DType dtype = DType::bf16) {
        std::uint64_t elements = std::accumulate(shape.begin(), shape.end(), std::uint64_t{1}, std::multiplies<>());
        const std::vector<std::byte> zeros(elements * 4);
        source.add(name, dtype, shape, zeros.data());
        convert::Piece piece;
        piece.source = name;
        piece.rows = shape.size() == 1 ? 1 : elements / shape.back();
        piece.cols = shape.back();
        plan.tensors.push_back({name, shape, {piece}, 0, {}, shape.size() > 1});
    }
};

Made gguf(bool tied) {
    Made made;
    made.add("token_embd.weight", {8, 64});
    if (!tied) made.add("output.weight", {8, 64});
    made.add("output_norm.weight", {64});
    made.add("blk.0.attn_q.weight", {64, 64});
    made.add("blk.0.ffn_down.weight", {64, 256});
    made.add("blk.0.ffn_odd.weight", {64, 33});
    made.add("blk.0.ffn_gate_inp.weight", {4, 64});
    return made;
}

Made folder() {
    Made made;
    made.add("model.embed_tokens.weight", {8, 64});
    made.add("lm_head.weight", {8, 64}, DType::f16);
    made.add("model.norm.weight", {64});
    made.add("model.layers.0.self_attn.q_proj.weight", {64, 64});
    made.add("model.layers.0.self_attn.kv_b_proj.weight", {64, 64});
    made.add("model.layers.0.mlp.gate.weight", {4, 64}, DType::f32);
    return made;
}

const quant::WeightFormat& format(std::string_view name) { return *quant::find_weight_format(name); }

std::vector<std::string> names(const Made& made, Target target, std::string_view dtype,
                               const std::vector<std::string>& keep = {}) {
    std::vector<Keep> exceptions;
    for (const std::string& text : keep) exceptions.push_back(must(convert::parse_keep(text)));
    std::vector<std::string> out;
    for (const convert::Choice& choice :
         must(convert::choose_types(made.plan, made.source, target, format(dtype), exceptions))) {
        out.emplace_back(choice.format->name());
        if (keep.empty()) CHECK(choice.reason.empty() == (choice.format->name() == dtype));
    }
    return out;
}

std::string refusal(const Made& made, Target target, std::string_view dtype, const std::string& keep) {
    const std::vector<Keep> exceptions = {must(convert::parse_keep(keep))};
    return message_of(convert::choose_types(made.plan, made.source, target, format(dtype), exceptions));
}

using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("types of a GGUF") {
    CHECK(names(gguf(false), Target::gguf, "f16") == Names{"f16", "f16", "f32", "f16", "f16", "f16", "f32"});
    CHECK(names(gguf(false), Target::gguf, "q8_0") == Names{"q8_0", "q8_0", "f32", "q8_0", "q8_0", "f16", "f32"});
    CHECK(names(gguf(false), Target::gguf, "q4_0") == Names{"q4_0", "q8_0", "f32", "q4_0", "q4_0", "f16", "f32"});
    CHECK(names(gguf(false), Target::gguf, "q4_k") == Names{"q8_0", "q8_0", "f32", "q8_0", "q4_k", "f16", "f32"});
    // Without an output matrix the embedding stands for it.
    CHECK(names(gguf(true), Target::gguf, "q4_1") == Names{"q8_0", "f32", "q4_1", "q4_1", "f16", "f32"});
}

TEST_CASE("types of a folder") {
    CHECK(names(folder(), Target::folder, "f16") == Names{"f16", "f16", "bf16", "f16", "f16", "f32"});
    CHECK(names(folder(), Target::folder, "int8-channel") ==
          Names{"bf16", "f16", "bf16", "int8-channel", "int8-channel", "f32"});
    Made from_gguf = folder();
    from_gguf.add("model.layers.1.self_attn.q_proj.weight", {2, 64}, DType::q4_0);
    from_gguf.source.add("model.embed_tokens.weight", DType::q8_0, {8, 64}, std::vector<std::byte>(544).data());
    CHECK(names(from_gguf, Target::folder, "int8-channel") ==
          Names{"f16", "f16", "bf16", "int8-channel", "int8-channel", "f32", "int8-channel"});
}

TEST_CASE("exceptions: the last one that fits wins") {
    CHECK(names(gguf(false), Target::gguf, "q4_0", {"*ffn*=q8_0", "blk.0.ffn_down.*=bf16", "*odd*=f16"}) ==
          Names{"q4_0", "q8_0", "f32", "q4_0", "bf16", "f16", "q8_0"});
    CHECK(names(gguf(false), Target::gguf, "q4_0", {"token_embd.weight=q4_1", "*_norm*=f16"}) ==
          Names{"q4_1", "q8_0", "f16", "q4_0", "q4_0", "f16", "f32"});
    CHECK(names(folder(), Target::folder, "bf16", {"*q_proj*=int8-channel"}) ==
          Names{"bf16", "bf16", "bf16", "int8-channel", "bf16", "f32"});
}

TEST_CASE("exceptions that cannot be are refused, with the nearest name where none fits") {
    CHECK(refusal(gguf(false), Target::gguf, "f16", "blk.0.attn_k.weight=q8_0").find("blk.0.attn_q.weight") !=
          std::string::npos);
    CHECK(refusal(gguf(false), Target::gguf, "f16", "*odd*=q8_0").find("33 elements") != std::string::npos);
    CHECK(refusal(gguf(false), Target::gguf, "f16", "output_norm*=q8_0").find("no matrix") != std::string::npos);
    CHECK(refusal(gguf(false), Target::gguf, "f16", "*q*=int8-channel").find("q8_0") != std::string::npos);
    CHECK(refusal(folder(), Target::folder, "f16", "*q_proj*=q4_0").find("safetensors") != std::string::npos);
    CHECK(refusal(folder(), Target::folder, "f16", "lm_head*=int8-channel").find("Linear") != std::string::npos);
    CHECK(message_of(convert::parse_keep("=f16")).find("PATTERN=TYPE") != std::string::npos);
    CHECK(message_of(convert::parse_keep("a")).find("PATTERN=TYPE") != std::string::npos);
    CHECK(message_of(convert::parse_keep("a=f17")).find("f17") != std::string::npos);
    CHECK(must(convert::parse_keep("a=b=f16")).pattern == "a=b");
    CHECK_FALSE(convert::check_type(format("int8-channel"), Target::gguf).has_value());
    CHECK_FALSE(convert::check_type(format("q4_k"), Target::folder).has_value());
    CHECK(convert::check_type(format("int8-channel"), Target::folder).has_value());
}
