// Whether a function of a C header is called as we declare it.
#pragma once
#include <type_traits>

namespace hetero::test {

// Enumerations of these headers are 32 bits: by value we have int, behind a pointer unsigned.
template <class T>
struct Passed {
    using type = std::conditional_t<std::is_enum_v<T>, int, T>;
};
template <class T>
struct Passed<T*> {
    using type = std::conditional_t<std::is_enum_v<T>, unsigned, T>*;
};
template <class>
struct PassedFunction;
template <class R, class... Args>
struct PassedFunction<R(Args...)> {
    using type = typename Passed<R>::type(typename Passed<Args>::type...);
};

}  // namespace hetero::test
