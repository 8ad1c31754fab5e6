// What a way of storing KV does to predictions: the state of a text's first tokens is stored that way, and the tokens
// after them are fed, with f16 KV of their own, to a model that sees it and to one that sees the unquantized state.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/hash.h"
#include "engine/session.h"
#include "kv/precision_plan.h"

namespace hetero::calib {

struct Text {
    std::string name;  // for people
    std::vector<engine::TokenId> tokens;
    std::uint64_t prompt_tokens = 0;  // of them; the rest is fed
    [[nodiscard]] std::uint64_t steps() const noexcept { return tokens.size() - prompt_tokens; }
};
// Of the token ids, each as 4 little-endian bytes: the prompt's and the next `steps`.
[[nodiscard]] Digest text_digest(const Text& text, std::uint64_t steps);

// How every layer is stored; their source_dtype is f16.
struct Assignment {
    std::vector<kv::Scheme> k, v;  // [n_layers]
    [[nodiscard]] std::vector<kv::Scheme>& of(kv::PartId part) noexcept { return part == kv::PartId::k ? k : v; }
    [[nodiscard]] const std::vector<kv::Scheme>& of(kv::PartId part) const noexcept {
        return part == kv::PartId::k ? k : v;
    }
    friend bool operator==(const Assignment&, const Assignment&) = default;
};
// One scheme for K and one for V, in every layer.
[[nodiscard]] Assignment uniform(std::size_t n_layers, const kv::Scheme& k, const kv::Scheme& v);
// Canonical text, the same for the same assignment.
[[nodiscard]] std::string to_text(const Assignment& assignment);

// One teacher-forced step.
struct Step {
    double max_abs_dp = 0, kl = 0;
    bool top1_equal = true;
    friend bool operator==(const Step&, const Step&) = default;
};
[[nodiscard]] kv::DriftFigures summarise(std::span<const Step> steps);

class Bench {
public:
    // Products are made in f32. `texts` have equal or unlike lengths; each must fit the model's context: usage.
    static Result<std::unique_ptr<Bench>> create(std::shared_ptr<const model::Model> model, kv::Identity identity,
                                                 std::vector<Text> texts, int threads);
    ~Bench();

    [[nodiscard]] const kv::Identity& identity() const noexcept;
    [[nodiscard]] const std::vector<Text>& texts() const noexcept;

    // Drift over the first `steps` steps of one text. The reference is computed when a text or number of steps is first
    // asked for and kept until another is, so calls for one text are best made in a row.
    Result<std::vector<Step>> measure(std::size_t text, std::uint64_t steps, const Assignment& assignment);
    // The same between f16 and f32 KV, both unquantized: the noise of the path itself.
    Result<std::vector<Step>> floor(std::size_t text, std::uint64_t steps);
    // Mean squared error of a part's values, of one text.
    Result<double> noise(std::size_t text, std::size_t layer, kv::PartId part, const kv::Scheme& scheme);

    // Bytes of a part as stored, and the number of its values, over all texts.
    [[nodiscard]] std::uint64_t part_bytes(std::size_t layer, kv::PartId part, const kv::Scheme& scheme) const;
    [[nodiscard]] std::uint64_t part_values(std::size_t layer, kv::PartId part) const;
    [[nodiscard]] double bits_per_value(const Assignment& assignment) const;

private:
    struct Impl;
    explicit Bench(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
};

}  // namespace hetero::calib
