// Carries a plan out, every value in f32, by code that shares nothing with the product's; and compares what two files
// of one model hold.
#pragma once
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "convert/plan.h"
#include "kernels/api/ops.h"
#include "model/model.h"
#include "support/golden.h"
#include "support/results.h"
#include "support/temp_dir.h"
#include "unit/io/gguf_bytes.h"

namespace hetero::test {

inline std::shared_ptr<const model::Model> load_model(const std::string& path) {
    return must(model::Model::load(path));
}

using Shape = std::vector<std::uint64_t>;
struct Tensor {
    Shape shape;
    std::vector<float> values;
    friend bool operator==(const Tensor& a, const Tensor& b) {
        return a.shape == b.shape &&
               std::memcmp(a.values.data(), b.values.data(), a.values.size() * sizeof(float)) == 0;
    }
};
using Tensors = std::map<std::string, Tensor>;

inline std::size_t count_of(const Shape& shape) {
    std::size_t count = 1;
    for (const std::uint64_t n : shape) count *= n;
    return count;
}

inline Tensors tensors_of(const io::TensorSource& source) {
    Tensors tensors;
    for (const std::string& name : source.names()) {
        const io::TensorView* view = source.find(name);
        REQUIRE_MESSAGE(view != nullptr, source.why(name));
        Tensor tensor{view->shape, std::vector<float>(count_of(view->shape))};
        kernels::ops().dequantize(view->dtype, view->bytes.data(), tensor.values.data(), tensor.values.size());
        tensors.emplace(name, std::move(tensor));
    }
    return tensors;
}

// Where row `row` of a head of `rows` goes when halves are interleaved.
inline std::uint64_t interleaved_place(std::uint64_t row, std::uint64_t rows) {
    return row < rows / 2 ? 2 * row : 2 * (row - rows / 2) + 1;
}

// [rows][cols] of a piece, in the order and orientation that it asks for.
inline std::vector<float> piece_values(const convert::Piece& piece, const Tensor& source) {
    const std::uint64_t total = source.values.size() / piece.cols;
    REQUIRE(total * piece.cols == source.values.size());
    REQUIRE(piece.first_row + piece.rows <= total);
    if (piece.cols != 1) REQUIRE(piece.cols == source.shape.back());
    std::vector<float> out(piece.rows * piece.cols);
    for (std::uint64_t row = 0; row < piece.rows; ++row) {
        std::uint64_t to = row;
        if (piece.order != convert::RowOrder::as_is) {
            const std::uint64_t head = row / piece.head_rows, in_head = row % piece.head_rows;
            if (in_head >= piece.rotary_first && in_head < piece.rotary_first + piece.rotary_rows) {
                const std::uint64_t i = in_head - piece.rotary_first;
                std::uint64_t place = interleaved_place(i, piece.rotary_rows);
                if (piece.order == convert::RowOrder::deinterleave) {
                    place = i % 2 == 0 ? i / 2 : piece.rotary_rows / 2 + i / 2;
                }
                to = head * piece.head_rows + piece.rotary_first + place;
            }
        }
        for (std::uint64_t col = 0; col < piece.cols; ++col) {
            const float value = source.values[(piece.first_row + row) * piece.cols + col];
            out[piece.transpose ? col * piece.rows + to : to * piece.cols + col] = value;
        }
    }
    return out;
}

inline Tensors carried_out(const convert::Plan& plan, const io::TensorSource& source) {
    const Tensors from = tensors_of(source);
    Tensors out;
    for (const convert::TensorPlan& one : plan.tensors) {
        CAPTURE(one.name);
        Tensor tensor{one.shape, one.values};
        for (const convert::Piece& piece : one.pieces) {
            CAPTURE(piece.source);
            REQUIRE(from.contains(piece.source));
            const std::vector<float> values = piece_values(piece, from.at(piece.source));
            tensor.values.insert(tensor.values.end(), values.begin(), values.end());
        }
        for (float& value : tensor.values) value += one.add;
        REQUIRE(tensor.values.size() == count_of(one.shape));
        REQUIRE_MESSAGE(out.emplace(one.name, std::move(tensor)).second, "twice: ", one.name);
    }
    return out;
}

template <class T>
std::pair<std::uint32_t, std::string> gguf_array(std::uint32_t type, const std::vector<T>& values) {
    const std::string_view bytes(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
    return {GgufBytes::array, GgufBytes::array_of(type, values.size(), bytes)};
}

// The bytes of a metadata value, and the number of its type.
inline std::pair<std::uint32_t, std::string> gguf_value(const io::GgufMetaValue& value) {
    using G = GgufBytes;
    struct Visitor {
        using Result = std::pair<std::uint32_t, std::string>;
        Result operator()(std::uint32_t v) const { return {G::u32, raw(v)}; }
        Result operator()(std::int32_t v) const { return {G::i32, raw(v)}; }
        Result operator()(std::uint64_t v) const { return {G::u64, raw(v)}; }
        Result operator()(std::int64_t v) const { return {G::i64, raw(v)}; }
        Result operator()(float v) const { return {G::f32, raw(v)}; }
        Result operator()(double v) const { return {G::f64, raw(v)}; }
        Result operator()(bool v) const { return {G::boolean, raw(static_cast<std::uint8_t>(v))}; }
        Result operator()(const std::string& v) const { return {G::string, G::text(v)}; }
        Result operator()(const std::vector<std::uint32_t>& v) const { return gguf_array(G::u32, v); }
        Result operator()(const std::vector<std::int32_t>& v) const { return gguf_array(G::i32, v); }
        Result operator()(const std::vector<float>& v) const { return gguf_array(G::f32, v); }
        Result operator()(const std::vector<bool>& v) const {
            std::string bytes;
            for (const bool one : v) bytes += raw(static_cast<std::uint8_t>(one));
            return {G::array, G::array_of(G::boolean, v.size(), bytes)};
        }
        Result operator()(const std::vector<std::string>& v) const {
            std::string bytes;
            for (const std::string& one : v) bytes += G::text(one);
            return {G::array, G::array_of(G::string, v.size(), bytes)};
        }
    };
    return std::visit(Visitor{}, value);
}

inline std::string gguf_of(const convert::Plan& plan, const io::TensorSource& source) {
    GgufBytes out;
    for (const auto& [key, value] : plan.metadata) {
        const auto [type, bytes] = gguf_value(value);
        out.key(key, type, bytes);
    }
    for (const auto& [name, tensor] : carried_out(plan, source)) {
        out.data.resize((out.data.size() + out.alignment - 1) / out.alignment * out.alignment, '\0');
        const Shape& s = tensor.shape;
        const std::uint64_t offset = out.data.size();
        if (s.size() == 1) out.tensor(name, {s[0]}, 0, offset);
        if (s.size() == 2) out.tensor(name, {s[1], s[0]}, 0, offset);
        if (s.size() == 3) out.tensor(name, {s[2], s[1], s[0]}, 0, offset);
        out.data.append(reinterpret_cast<const char*>(tensor.values.data()), tensor.values.size() * sizeof(float));
    }
    return out.bytes();
}

inline std::string safetensors_of(const Tensors& tensors) {
    nlohmann::json header = nlohmann::json::object();
    std::string data;
    for (const auto& [name, tensor] : tensors) {
        const std::size_t begin = data.size();
        data.append(reinterpret_cast<const char*>(tensor.values.data()), tensor.values.size() * sizeof(float));
        header[name] = {{"dtype", "F32"}, {"shape", tensor.shape}, {"data_offsets", {begin, data.size()}}};
    }
    const std::string text = header.dump();
    return raw<std::uint64_t>(text.size()) + text + data;
}

// Writes what the plan makes of a model; gives its path.
inline std::string write_gguf(const TempDir& dir, const convert::Plan& plan, const model::Model& from) {
    return dir.write("model.gguf", gguf_of(plan, *from.weights));
}
inline std::string write_folder(const TempDir& dir, const convert::Plan& plan, const model::Model& from) {
    for (const auto& [name, text] : plan.files) dir.write("folder/" + name, text);
    dir.write("folder/model.safetensors", safetensors_of(carried_out(plan, *from.weights)));
    return dir / "folder";
}

}  // namespace hetero::test
