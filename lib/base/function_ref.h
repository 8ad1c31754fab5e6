// Something that can be called, and is not owned: for arguments that are called before the function returns. Never
// takes memory, unlike std::function.
#pragma once
#include <memory>
#include <type_traits>
#include <utility>

namespace hetero {

template <class Signature>
class FunctionRef;

template <class Result, class... Args>
class FunctionRef<Result(Args...)> {
public:
    template <class Callable>
    requires(!std::is_same_v<std::remove_cvref_t<Callable>, FunctionRef> &&
             std::is_invocable_r_v<Result, const Callable&, Args...>)
        FunctionRef(const Callable& callable)  // not explicit: an argument is a lambda
        : object_(std::addressof(callable)), call_([](const void* object, Args... args) -> Result {
              return (*static_cast<const Callable*>(object))(std::forward<Args>(args)...);
          }) {}

    Result operator()(Args... args) const { return call_(object_, std::forward<Args>(args)...); }

private:
    const void* object_;
    Result (*call_)(const void*, Args...);
};

}  // namespace hetero
