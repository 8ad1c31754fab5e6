#include "convert/types.h"

#include <fnmatch.h>

#include <algorithm>
#include <array>

#include "base/config.h"
#include "base/printable.h"

namespace hetero::convert {
namespace {

using kernels::DType;
using quant::WeightFormat;

const WeightFormat& format_named(std::string_view name) { return *quant::find_weight_format(name); }

template <std::size_t N>
bool ends_with_one_of(std::string_view name, const std::array<std::string_view, N>& endings) {
    return std::any_of(endings.begin(), endings.end(), [&](std::string_view one) { return name.ends_with(one); });
}

bool is_four_bits(const WeightFormat& format) {
    return format.dtype() == DType::q4_0 || format.dtype() == DType::q4_1 || format.dtype() == DType::q4_k;
}

// A scale for each row needs a module that runtimes replace: their Linear.
bool is_linear(const TensorPlan& tensor) {
    return tensor.quantizable && tensor.shape.size() == 2 && tensor.name.ends_with(".weight") &&
           !is_embedding(tensor.name) && !is_output(tensor.name) && !is_router(tensor.name);
}

class Rules {
public:
    Rules(const Plan& plan, const io::TensorSource& source, Target target, const WeightFormat& asked)
        : source_(source), target_(target), asked_(asked) {
        has_output_ = std::any_of(plan.tensors.begin(), plan.tensors.end(),
                                  [](const TensorPlan& tensor) { return is_output(tensor.name); });
    }

    Result<Choice> choose(const TensorPlan& tensor) const {
        if (!tensor.quantizable || tensor.shape.size() < 2 || is_router(tensor.name)) {
            if (target_ == Target::gguf) return reasoned(format_named("f32"), "norm, bias, router or vector");
            return keep_type(tensor, "norm, bias, router or vector");
        }
        const bool output = is_output(tensor.name) || (is_embedding(tensor.name) && !has_output_);
        if (asked_.has_row_scale() && !is_linear(tensor)) {
            return keep_type(tensor, "no Linear that can have row scales");
        }
        if (is_four_bits(asked_) && output) {
            return whole_blocks(tensor, format_named("q8_0"), "output matrix: kept at 8 bits");
        }
        return whole_blocks(tensor, asked_, "");
    }

    // What an exception asks for is done or refused, never replaced.
    Status check_exception(const TensorPlan& tensor, const Keep& keep) const {
        const WeightFormat& format = *keep.format;
        const auto refuse = [&](std::string_view why) {
            return fail(Errc::usage, "--keep {}={}: {} {}", keep.pattern, format.name(), printable(tensor.name), why);
        };
        if (tensor.shape.back() % format.block_elems() != 0) {
            return refuse(fmt::format("has rows of {} elements, not a multiple of the {} of a block",
                                      tensor.shape.back(), format.block_elems()));
        }
        if (!format.quantized()) return {};
        if (tensor.shape.size() < 2 || !tensor.quantizable) return refuse("is no matrix: only f32, f16 and bf16 fit");
        if (format.has_row_scale() && !is_linear(tensor)) return refuse("is no Linear that can have row scales");
        return {};
    }

private:
    static Choice reasoned(const WeightFormat& format, std::string reason) { return {&format, std::move(reason)}; }
    Choice whole_blocks(const TensorPlan& tensor, const WeightFormat& format, std::string reason) const {
        const std::uint64_t cols = tensor.shape.back();
        if (cols % format.block_elems() == 0) return {&format, std::move(reason)};
        const WeightFormat& q8 = format_named("q8_0");
        const WeightFormat& instead = cols % q8.block_elems() == 0 ? q8 : format_named("f16");
        return {&instead,
                fmt::format("rows of {} are not whole {} blocks of {}", cols, format.name(), format.block_elems())};
    }
    Result<Choice> keep_type(const TensorPlan& tensor, std::string reason) const {
        if (tensor.pieces.empty()) return reasoned(format_named("f32"), std::move(reason));
        const io::TensorView* view = source_.find(tensor.pieces.front().source);
        if (view == nullptr) return fail(Errc::bad_input, "{}", source_.why(tensor.pieces.front().source));
        const WeightFormat* format = quant::find_weight_format(kernels::dtype_info(view->dtype).name);
        if (format == nullptr || format->quantized()) format = &format_named("f16");
        return Choice{format, std::move(reason)};
    }

    const io::TensorSource& source_;
    Target target_;
    const WeightFormat& asked_;
    bool has_output_ = false;
};

Status check_patterns(const Plan& plan, const std::vector<Keep>& keep) {
    std::vector<std::string_view> names;
    for (const TensorPlan& tensor : plan.tensors) names.emplace_back(tensor.name);
    for (const Keep& one : keep) {
        const bool fits = std::any_of(plan.tensors.begin(), plan.tensors.end(), [&](const TensorPlan& tensor) {
            return ::fnmatch(one.pattern.c_str(), tensor.name.c_str(), 0) == 0;
        });
        if (fits) continue;
        return fail(Errc::usage, "--keep {}: no tensor has such a name; the nearest is {}", printable(one.pattern),
                    printable(nearest_name(one.pattern, names)));
    }
    return {};
}

}  // namespace

bool is_embedding(std::string_view name) {
    static constexpr std::array<std::string_view, 3> endings = {"token_embd.weight", "embed_tokens.weight",
                                                                "embed_in.weight"};
    return ends_with_one_of(name, endings);
}

bool is_output(std::string_view name) {
    static constexpr std::array<std::string_view, 2> endings = {"lm_head.weight", "embed_out.weight"};
    return name == "output.weight" || ends_with_one_of(name, endings);
}

bool is_router(std::string_view name) {
    static constexpr std::array<std::string_view, 3> endings = {"ffn_gate_inp.weight", "mlp.gate.weight",
                                                                "block_sparse_moe.gate.weight"};
    return ends_with_one_of(name, endings);
}

Result<Keep> parse_keep(std::string_view text) {
    const std::size_t equals = text.rfind('=');
    if (equals == std::string_view::npos || equals == 0) {
        return fail(Errc::usage, "'{}' is not PATTERN=TYPE", printable(text));
    }
    const WeightFormat* format = quant::find_weight_format(text.substr(equals + 1));
    if (format == nullptr) {
        return fail(Errc::usage, "'{}' is not one of {}", printable(text.substr(equals + 1)),
                    quant::weight_format_names());
    }
    return Keep{std::string(text.substr(0, equals)), format};
}

Status check_type(const WeightFormat& format, Target target) {
    if (target == Target::gguf && format.has_row_scale()) {
        return fail(Errc::usage,
                    "a GGUF has no type like {}; write a folder (-o without .gguf), or use q8_0, which is as small",
                    format.name());
    }
    if (target == Target::folder && format.block_elems() > 1) {
        return fail(Errc::usage, "safetensors has no type like {}; write a GGUF (-o NAME.gguf), or use int8-channel",
                    format.name());
    }
    return {};
}

Result<std::vector<Choice>> choose_types(const Plan& plan, const io::TensorSource& source, Target target,
                                         const WeightFormat& asked, const std::vector<Keep>& keep) {
    HETERO_CHECK(check_type(asked, target));
    for (const Keep& one : keep) HETERO_CHECK(check_type(*one.format, target));
    HETERO_CHECK(check_patterns(plan, keep));
    const Rules rules(plan, source, target, asked);
    std::vector<Choice> choices;
    for (const TensorPlan& tensor : plan.tensors) {
        if ((tensor.pieces.empty() && tensor.values.empty()) || tensor.shape.empty()) {
            return fail(Errc::internal, "plan of {}: nothing to make it of", tensor.name);
        }
        const auto wanted = std::find_if(keep.rbegin(), keep.rend(), [&](const Keep& one) {
            return ::fnmatch(one.pattern.c_str(), tensor.name.c_str(), 0) == 0;
        });
        if (wanted != keep.rend()) {
            HETERO_CHECK(rules.check_exception(tensor, *wanted));
            choices.push_back({wanted->format, "--keep"});
            continue;
        }
        HETERO_TRY(Choice choice, rules.choose(tensor));
        if (choice.format == &asked) choice.reason.clear();
        choices.push_back(std::move(choice));
    }
    return choices;
}

}  // namespace hetero::convert
