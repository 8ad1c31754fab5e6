// Numbers as people write them, read and written the same in every locale.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace hetero {

// "4096", "64K" (1000), "64Ki" (1024), M, Mi, G, Gi, T, Ti; a trailing "B" is allowed. No sign, no fraction.
Result<std::uint64_t> parse_size_bytes(std::string_view text);

// "250ms", "1.5s", "2m"; a bare number is seconds. Not negative, at most 1e6 s. Returns seconds.
Result<double> parse_duration_s(std::string_view text);

// A finite decimal number that fills the whole text. "nan", "inf", "0,1", "1e-2x" and "" are errors.
Result<double> parse_finite(std::string_view text);
Result<std::int64_t> parse_integer(std::string_view text);

std::string format_bytes(std::uint64_t bytes);  // "23.0 KiB", for people only

}  // namespace hetero
