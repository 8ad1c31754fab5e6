// The texts that compat_hash and the root are digests of. Their bytes are part of the format: hetero-kv(5).
#pragma once
#include <string>

#include "kv/state.h"

namespace hetero::kv {

[[nodiscard]] std::string compat_text(const Identity& identity);
// Everything of a header but the hard fields of its identity, which come in as compat_hash.
[[nodiscard]] std::string header_text(const Header& header);
// "codec=int8 axis=token group=64 symmetric=1 scale_dtype=f16 source_dtype=f16"
[[nodiscard]] std::string describe(const Scheme& scheme);

}  // namespace hetero::kv
