// Copies between host and a GPU, and within its memory, by the CUDA driver interface.
#pragma once
#include "hw/isolated.h"
#include "hw/section.h"

namespace hetero::hw {

// Adds `copies` and `memory_bandwidth` to what is known of a device. To be called in a child process: it makes a
// context, which it leaves to the end of the process.
void put_copies(const Library& driver, int device, double budget_s, Json& out);
void put_no_copies(Json& out, const std::string& why_not);

}  // namespace hetero::hw
