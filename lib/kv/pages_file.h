// States in the layout of other engines, as safetensors, which they read and write: unquantized K and V of each layer
// as sequences.S.layers.L.k and .v, shaped as page_shape() says; sequences.S.tokens and, where there are, .logits; and
// in "state" (bytes of JSON) what the state belongs to, its layout, and CRC-32C of every other tensor. The names are
// those of hetero-transports(7).
#pragma once
#include <memory>
#include <string>

#include "base/result.h"
#include "io/atomic_file.h"
#include "kv/pages.h"
#include "kv/stream.h"

namespace hetero::kv {

// begin() refuses quantized parts, and where a rotation would be cut.
Result<std::unique_ptr<Sink>> create_pages(const std::string& path, const PageLayout& layout, io::Overwrite overwrite);

// What create_pages() or another program wrote. A "state" without checksums is taken as it is; a tensor that differs
// from its checksum is damaged: bad_input, by name.
Result<std::unique_ptr<Source>> open_pages(const std::string& path);

}  // namespace hetero::kv
