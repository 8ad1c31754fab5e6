// What mpirun or srun tells a process about its job, before MPI starts.
#pragma once
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <optional>

namespace hetero::transport {

// Of the first of these variables of the environment that is a number of at least `least`.
[[nodiscard]] inline std::optional<int> launcher_number(std::initializer_list<const char*> names, int least) {
    for (const char* name : names) {
        const char* text = std::getenv(name);
        int number = 0;
        if (text != nullptr && std::from_chars(text, text + std::strlen(text), number).ec == std::errc{} &&
            number >= least)
            return number;
    }
    return std::nullopt;
}

}  // namespace hetero::transport
