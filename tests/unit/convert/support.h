// Tensors that a test makes up, and messages.
#pragma once
#include "carry_out.h"

namespace hetero::test {

template <class T>
std::string message_of(const Result<T>& result) {
    return result ? std::string("(no error)") : result.error().message;
}

// Tensors that a test makes up.
class MadeTensors final : public io::TensorSource {
public:
    void add(const std::string& name, kernels::DType dtype, std::vector<std::uint64_t> shape, const void* data) {
        std::uint64_t elements = 1;
        for (const std::uint64_t size : shape) elements *= size;
        const auto* bytes = static_cast<const std::byte*>(data);
        auto& kept = data_[name];
        kept.assign(bytes, bytes + kernels::dtype_bytes(dtype, elements));
        views_[name] = {dtype, std::move(shape), kept, "made.up"};
        names_.push_back(name);
        std::sort(names_.begin(), names_.end());
    }
    [[nodiscard]] const io::TensorView* find(std::string_view name) const override {
        const auto found = views_.find(name);
        return found == views_.end() ? nullptr : &found->second;
    }
    [[nodiscard]] const std::vector<std::string>& names() const override { return names_; }

private:
    std::map<std::string, std::vector<std::byte>, std::less<>> data_;
    std::map<std::string, io::TensorView, std::less<>> views_;
    std::vector<std::string> names_;
};

}  // namespace hetero::test
