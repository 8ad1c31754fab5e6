#include "io/tensor_source.h"

namespace hetero::io {

std::string TensorSource::why(std::string_view name) const {
    return find(name) != nullptr ? std::string() : fmt::format("there is no tensor '{}'", name);
}

void TensorSource::forget(const TensorView&) const {}

}  // namespace hetero::io
