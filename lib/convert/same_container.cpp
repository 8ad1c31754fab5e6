// Plans that change no name: a GGUF to a GGUF, a folder to a folder.
#include <algorithm>
#include <array>
#include <filesystem>

#include "base/log.h"
#include "base/printable.h"
#include "convert/plan.h"
#include "io/gguf.h"
#include "io/mapped_file.h"
#include "model/digest.h"
#include "model/quantization.h"

namespace hetero::convert {
namespace {

namespace fs = std::filesystem;
using kernels::DType;

constexpr std::size_t max_file_bytes = std::size_t{256} << 20;  // of a tokenizer, say

// What a folder holds beside its weights that a copy of the model needs, too.
constexpr std::array files_to_copy = {"config.json",
                                      "generation_config.json",
                                      "tokenizer.json",
                                      "tokenizer_config.json",
                                      "special_tokens_map.json",
                                      "added_tokens.json",
                                      "vocab.json",
                                      "vocab.txt",
                                      "merges.txt",
                                      "tokenizer.model",
                                      "chat_template.jinja",
                                      "chat_template.json",
                                      "LICENSE",
                                      "LICENSE.txt",
                                      "LICENSE.md",
                                      "NOTICE"};

bool is_scale_of_int8(const io::TensorSource& weights, const std::string& name) {
    if (!name.ends_with(model::row_scale_ending)) return false;
    const io::TensorView* matrix =
        weights.find(std::string_view(name).substr(0, name.size() - model::row_scale_ending.size()));
    return matrix != nullptr && matrix->dtype == DType::i8;
}

bool is_weight(const io::TensorSource& weights, const std::string& name, const io::TensorView& view) {
    if (view.dtype == DType::i8) return weights.find(model::row_scale_name(name)) != nullptr;
    return view.dtype != DType::u8 && view.dtype != DType::i32;
}

Result<std::string> read_text(const std::string& path) {
    HETERO_TRY(const io::MappedFile file, io::MappedFile::open(path));
    if (file.bytes().size() > max_file_bytes) {
        return fail(Errc::bad_input, "{}: has {} bytes, at most {} are copied", path, file.bytes().size(),
                    max_file_bytes);
    }
    return std::string(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
}

}  // namespace

Result<Plan> plan_same(const model::Model& model) {
    const io::TensorSource& weights = *model.weights;
    struct Found {
        const std::string* name;
        const io::TensorView* view;
    };
    std::vector<Found> found;
    for (const std::string& name : weights.names()) {
        if (is_scale_of_int8(weights, name)) continue;
        const io::TensorView* view = weights.find(name);
        if (view != nullptr && !view->shape.empty() && is_weight(weights, name, *view)) {
            found.push_back({&name, view});
        } else {
            log::info("{}: {} is no weight and is left out", model.path, printable(name));
        }
    }
    // As they lie in the files, so that they are read from front to back.
    std::sort(found.begin(), found.end(), [](const Found& a, const Found& b) {
        return std::pair(std::string_view(a.view->file), a.view->bytes.data()) <
               std::pair(std::string_view(b.view->file), b.view->bytes.data());
    });
    Plan plan;
    for (const Found& one : found) {
        TensorPlan tensor;
        tensor.name = *one.name;
        tensor.shape = one.view->shape;
        Piece piece;
        piece.source = *one.name;
        piece.rows = 1;
        piece.cols = tensor.shape.back();
        for (std::size_t i = 0; i + 1 < tensor.shape.size(); ++i) piece.rows *= tensor.shape[i];
        tensor.pieces.push_back(std::move(piece));
        tensor.quantizable = tensor.shape.size() > 1;
        plan.tensors.push_back(std::move(tensor));
    }
    if (model.gguf) {
        plan.copy_metadata = true;
        return plan;
    }
    for (const char* name : files_to_copy) {
        const std::string path = (fs::path(model.path) / name).string();
        std::error_code error;
        if (!fs::is_regular_file(path, error)) continue;
        HETERO_TRY(std::string text, read_text(path));
        plan.files.emplace_back(name, std::move(text));
    }
    return plan;
}

Result<Plan> make_plan(const model::Model& model, Target target) {
    const bool from_gguf = model.gguf != nullptr;
    if (from_gguf == (target == Target::gguf)) return plan_same(model);
    return target == Target::gguf ? plan_to_gguf(model) : plan_to_folder(model);
}

}  // namespace hetero::convert
