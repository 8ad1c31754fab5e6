// What a conversion writes, before anything is read: the tensors of the output, each with the rows of the input that it
// is made of, and the words beside them. Built per pair of containers (GGUF, Hugging Face folder); carried out by
// writer.h, tensor by tensor.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "io/gguf_writer.h"
#include "model/model.h"

namespace hetero::convert {

// The order of rows within each head of Q and K: families whose GGUF files rotate adjacent pairs have the rows of a
// Hugging Face head interleaved.
enum class RowOrder : std::uint8_t {
    as_is,
    interleave,   // row i of the first half goes to 2i, row i of the second to 2i + 1
    deinterleave  // the inverse
};

// Rows of one input tensor, seen as [rows][cols]: all dimensions but the last are rows. A vector is one row of all its
// values, or, with one column, as many rows as it has values.
struct Piece {
    std::string source;
    std::uint64_t first_row = 0, rows = 0, cols = 0;
    RowOrder order = RowOrder::as_is;
    std::uint64_t head_rows = 0;                      // of an order that is not as_is: rows per head
    std::uint64_t rotary_first = 0, rotary_rows = 0;  // which rows of each head are reordered
    bool transpose = false;                           // of these rows: [rows][cols] becomes [cols][rows]
};

struct TensorPlan {
    std::string name;                  // in the output
    std::vector<std::uint64_t> shape;  // in the output, outermost first
    std::vector<Piece> pieces;         // one after another along the rows of the output
    float add = 0;                     // to every value: GGUF files of some families hold 1 + w
    std::vector<float> values;         // instead of pieces: what no input tensor holds
    // May be stored in another type than f32: a matrix that the model multiplies by, or the embedding.
    bool quantizable = false;
};

enum class Target : std::uint8_t { gguf, folder };

struct Plan {
    std::vector<TensorPlan> tensors;  // in the order of the output
    bool copy_metadata = false;       // of a GGUF made of a GGUF: the input's keys come first, byte for byte
    std::vector<std::pair<std::string, io::GgufMetaValue>> metadata;  // of a GGUF; general.* of the writer not included
    std::vector<std::pair<std::string, std::string>> files;           // of a folder: name and text
    std::vector<std::string> warnings;                                // one line each, for the user
};

// A Hugging Face folder to GGUF: names, metadata keys and tokenizer as llama.cpp reads them. What GGUF has no words for
// is refused by name: a family, a way that layers slide, a split of text.
Result<Plan> plan_to_gguf(const model::Model& model);
// A GGUF to a Hugging Face folder: config.json, generation_config.json, tokenizer.json, tokenizer_config.json and
// published tensor names.
Result<Plan> plan_to_folder(const model::Model& model);

// The same container again: every weight under its own name, the words unchanged. What the model does not need (masks
// and other derived tensors of types that no weight has) is left out.
Result<Plan> plan_same(const model::Model& model);
// One of the three.
Result<Plan> make_plan(const model::Model& model, Target target);

}  // namespace hetero::convert
