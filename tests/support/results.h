// The value of a Result, or the error of one, or the test ends.
#pragma once
#include <doctest/doctest.h>

#include <string>
#include <string_view>
#include <utility>

#include "base/result.h"

namespace hetero::test {

template <class T>
T must(Result<T> result) {
    REQUIRE_MESSAGE(result.has_value(), (result ? std::string() : result.error().message));
    return std::move(*result);
}
inline void must(const Status& status) {
    REQUIRE_MESSAGE(status.has_value(), (status ? std::string() : status.error().message));
}

template <class T>
Error error_of(const Result<T>& result) {
    REQUIRE_FALSE(result.has_value());
    CHECK(result.error().message.find('\n') == std::string::npos);
    return result.error();
}

inline bool has(const Error& error, std::string_view part) { return error.message.find(part) != std::string::npos; }

}  // namespace hetero::test
