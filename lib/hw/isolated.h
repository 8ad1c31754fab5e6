// Foreign libraries (drivers, MPI, UCX) are loaded in a child process: they install signal handlers, print, hang and
// crash.
#pragma once
#include <functional>
#include <string>

#include "base/result.h"

namespace hetero::hw {

// What `work` returned in a child process whose stdout and stderr go nowhere. resource: the child died or was not done
// in time (it is killed then). Call it before threads are started.
Result<std::string> run_isolated(const std::function<std::string()>& work, double timeout_s);

// dlopen of the first of `names` that loads, and its symbols. Only for use in run_isolated(): it is never closed.
class Library {
public:
    explicit Library(std::initializer_list<const char*> names);
    [[nodiscard]] bool loaded() const { return handle_ != nullptr; }
    [[nodiscard]] const std::string& name() const { return name_; }    // the one that loaded
    [[nodiscard]] const std::string& error() const { return error_; }  // why none did
    template <class Function>
    [[nodiscard]] Function* symbol(const char* name) const {
        return reinterpret_cast<Function*>(address(name));
    }

private:
    [[nodiscard]] void* address(const char* name) const;
    void* handle_ = nullptr;
    std::string name_, error_;
};

}  // namespace hetero::hw
