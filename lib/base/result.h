// Errors as values. Everything the world can cause (files, peers, memory, values) is returned as an Error;
// exceptions do not cross a module border.
#pragma once
#include <fmt/format.h>

#include <string>
#include <tl/expected.hpp>
#include <utility>

namespace hetero {

// What kind of failure it is. The numbers are the exit codes of the tools.
enum class Errc : int {
    check_failed = 1,  // a check said no: over epsilon, plan refused
    usage = 2,         // the caller asked for something that makes no sense
    bad_input = 3,     // a file, stream or value is damaged, foreign or not comparable
    resource = 4,      // disk, memory, permission or hardware is lacking
    peer = 5,          // the other side died, gave up, sent garbage or was too late
    internal = 70,     // a defect of hetero itself
};

struct Error {
    Errc code = Errc::internal;
    std::string message;  // one line: names the file, dataset or rank, what was expected, what was found, what to do
};

template <class T>
using Result = tl::expected<T, Error>;
using Status = Result<void>;

template <class... Args>
[[nodiscard]] tl::unexpected<Error> fail(Errc code, fmt::format_string<Args...> format, Args&&... args) {
    return tl::unexpected<Error>(Error{code, fmt::format(format, std::forward<Args>(args)...)});
}

// Passes an error on, with `prefix` (a file name, say) put before its message.
[[nodiscard]] inline tl::unexpected<Error> fail_with(const Error& error, std::string_view prefix) {
    return tl::unexpected<Error>(Error{error.code, fmt::format("{}: {}", prefix, error.message)});
}

}  // namespace hetero

#define HETERO_CONCAT_(a, b) a##b
#define HETERO_CONCAT(a, b) HETERO_CONCAT_(a, b)

// Returns the error of a Status or Result from the enclosing function.
#define HETERO_CHECK(expr)                                                            \
    do {                                                                              \
        if (auto hetero_status = (expr); !hetero_status) {                            \
            return tl::unexpected<::hetero::Error>(std::move(hetero_status).error()); \
        }                                                                             \
    } while (false)

// HETERO_TRY(auto x, f()): x = value of f(), or return its error.
#define HETERO_TRY(decl, expr) HETERO_TRY_(HETERO_CONCAT(hetero_result_, __LINE__), decl, expr)
#define HETERO_TRY_(tmp, decl, expr)                                    \
    auto tmp = (expr);                                                  \
    if (!tmp) {                                                         \
        return tl::unexpected<::hetero::Error>(std::move(tmp).error()); \
    }                                                                   \
    decl = std::move(*tmp)
