// The link between prefill and decode, and whether KV should be made smaller for it.
#pragma once

namespace hetero::plan {

// Below this link a state that shrinks to `ratio` of its bytes arrives sooner quantized, where quantizing and decoding
// (bytes of the input a second) do not overlap the transfer: (1 - ratio) / (1/Q_p + 1/Q_d). A rate of 0: not needed.
[[nodiscard]] double break_even_bytes_per_s(double ratio, double quantize_bytes_per_s,
                                            double dequantize_bytes_per_s) noexcept;
// The link that carries KV as fast as prefill makes it.
[[nodiscard]] double hiding_bytes_per_s(double kv_bytes_per_token, double prefill_tokens_per_s) noexcept;

}  // namespace hetero::plan
