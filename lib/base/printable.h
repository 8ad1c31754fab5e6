// Text out of files and from peers, made fit for a message of one line on a terminal.
#pragma once
#include <string>
#include <string_view>

namespace hetero {

// Everything but printable ASCII becomes '?'; after `longest` bytes "..." follows.
[[nodiscard]] std::string printable(std::string_view text, std::size_t longest = 100);

}  // namespace hetero
