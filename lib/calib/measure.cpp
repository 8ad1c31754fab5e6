#include "calib/measure.h"

#include <algorithm>
#include <limits>
#include <new>
#include <optional>

#include "base/statistics.h"
#include "base/threads.h"
#include "engine/layers.h"
#include "engine/probability.h"
#include "kv/convert.h"

namespace hetero::calib {
namespace {

using engine::Session;
using engine::TokenId;
using kv::PartId;

constexpr PartId both[] = {PartId::k, PartId::v};

}  // namespace

Digest text_digest(const Text& text, std::uint64_t steps) {
    Sha256 hash;
    for (std::size_t i = 0; i < std::min<std::size_t>(text.prompt_tokens + steps, text.tokens.size()); ++i) {
        const auto id = static_cast<std::uint32_t>(text.tokens[i]);
        hash.update(std::as_bytes(std::span(&id, 1)));
    }
    return hash.finish();
}

Assignment uniform(std::size_t n_layers, const kv::Scheme& k, const kv::Scheme& v) {
    return {std::vector(n_layers, k), std::vector(n_layers, v)};
}

std::string to_text(const Assignment& assignment) {
    std::string text;
    for (std::size_t layer = 0; layer < assignment.k.size(); ++layer) {
        for (const PartId part : both) {
            const kv::Scheme& scheme = assignment.of(part)[layer];
            text += fmt::format("{}+s{}+w{}{}", quant::to_text({scheme.codec, scheme.params}), scheme.sinks,
                                scheme.window, part == PartId::k ? "/" : "\n");
        }
    }
    return text;
}

kv::DriftFigures summarise(std::span<const Step> steps) {
    std::vector<double> dp, kl, same;
    for (const Step& step : steps) {
        dp.push_back(step.max_abs_dp);
        kl.push_back(step.kl);
        same.push_back(step.top1_equal ? 1 : 0);
    }
    return {steps.size(), mean(kl), maximum(kl), mean(dp), percentile(dp, 99), maximum(dp), mean(same)};
}

struct Bench::Impl {
    struct Prompt {
        kv::Header header;
        std::vector<kv::Layer> layers;  // f16, [n_layers]
    };
    struct Reference {
        std::size_t text = 0;
        std::vector<float> logits;  // [step][vocab]
    };

    std::shared_ptr<const model::Model> model;
    kv::Identity identity;
    std::vector<Text> texts;
    engine::Options options;
    ThreadPool pool;
    std::vector<Prompt> prompts;  // [text]
    std::uint64_t capacity = 0;
    std::unique_ptr<Session> session;
    std::optional<Reference> reference;
    std::vector<float> logits;  // of the state that is compared, [step][vocab]

    explicit Impl(int threads) : pool(threads) {}

    Result<std::unique_ptr<Session>> make_session(kernels::DType dtype) const {
        engine::Options own = options;
        own.kv_dtype = dtype;
        return Session::create(model, own, capacity);
    }

    Status prefill_prompts() {
        for (const Text& text : texts) {
            Prompt prompt;
            prompt.header.identity = identity;
            prompt.header.layer_shapes = engine::layer_shapes(*model);
            prompt.header.k_schemes.assign(identity.n_layers, kv::Scheme{});
            prompt.header.v_schemes = prompt.header.k_schemes;
            kv::Sequence& sequence = prompt.header.sequences.emplace_back();
            sequence.id = text.name;
            sequence.tokens.assign(text.tokens.begin(),
                                   text.tokens.begin() + static_cast<std::ptrdiff_t>(text.prompt_tokens));
            HETERO_CHECK(session->truncate(0));
            HETERO_CHECK(session->prefill(sequence.tokens, engine::Logits::none, {}));
            HETERO_TRY(prompt.layers, engine::export_layers(*session));
            prompts.push_back(std::move(prompt));
        }
        return {};
    }

    // The tokens after the prompt are fed in one go: the arithmetic of decoding them one by one, in better order.
    Status feed(Session& run, const Text& text, std::uint64_t steps, std::vector<float>& out) const {
        const std::size_t vocab = model->config.vocab_size;
        out.resize(steps * vocab);
        std::size_t at = 0;
        return run.prefill(std::span(text.tokens).subspan(text.prompt_tokens, steps), engine::Logits::all,
                           [&](std::uint64_t, std::span<const float> row) -> Status {
                               std::copy(row.begin(), row.end(),
                                         out.begin() + static_cast<std::ptrdiff_t>(vocab * at++));
                               return {};
                           });
    }

    Status import(Session& run, std::size_t text, const kv::Header& header,
                  const std::vector<kv::Layer>& layers) const {
        HETERO_CHECK(run.truncate(0));
        return engine::import_layers(run, header, layers, texts[text].prompt_tokens);
    }

    Status need_reference(std::size_t text, std::uint64_t steps) {
        const std::size_t size = steps * model->config.vocab_size;
        if (reference && reference->text == text && reference->logits.size() == size) return {};
        reference.reset();
        HETERO_CHECK(import(*session, text, prompts[text].header, prompts[text].layers));
        Reference made{text, {}};
        HETERO_CHECK(feed(*session, texts[text], steps, made.logits));
        reference = std::move(made);
        return {};
    }

    // `logits` against the reference.
    Result<std::vector<Step>> compare(std::uint64_t steps) {
        const std::size_t vocab = model->config.vocab_size;
        std::vector<Step> out(steps);
        std::vector<Status> done(steps);
        pool.parallel_for(steps, [&](std::size_t step, int) {
            const auto row = [&](const std::vector<float>& all) { return std::span(all).subspan(step * vocab, vocab); };
            const auto compared =
                engine::compare_logits(row(reference->logits), row(logits), "unquantized state", "quantized state");
            if (compared) {
                out[step] = {compared->max_abs_dp, compared->kl, compared->top1_equal()};
            } else {
                done[step] = fail_with(compared.error(), fmt::format("step {}", step));
            }
        });
        for (const Status& status : done) HETERO_CHECK(status);
        return out;
    }

    // The part as a state of `scheme` would give it back.
    Result<kv::Part> stored(std::size_t text, std::size_t layer, PartId part, const kv::Scheme& scheme) const {
        const kv::Header& header = prompts[text].header;
        const std::uint64_t n = header.stored_tokens(0, layer), first = header.first_token(0, layer);
        HETERO_TRY(const auto values, kv::decode_part(header, prompts[text].layers[layer].part(part), n, part, first));
        return kv::encode_part(header, scheme, n, part, values, first);
    }
};

Bench::Bench(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Bench::~Bench() = default;

Result<std::unique_ptr<Bench>> Bench::create(std::shared_ptr<const model::Model> model, kv::Identity identity,
                                             std::vector<Text> texts, int threads) try {
    auto impl = std::make_unique<Impl>(threads);
    impl->model = std::move(model);
    impl->identity = std::move(identity);
    impl->texts = std::move(texts);
    impl->options.threads = threads;
    impl->options.kv_dtype = kernels::DType::f16;
    impl->options.precision = engine::Precision::precise;
    for (const Text& text : impl->texts) {
        if (text.prompt_tokens == 0 || text.steps() == 0) {
            return fail(Errc::usage, "text {}: {} tokens are too few for a prompt and a step", text.name,
                        text.tokens.size());
        }
        if (text.tokens.size() > impl->identity.context_length) {
            return fail(Errc::usage, "text {}: {} tokens exceed the model's context of {}", text.name,
                        text.tokens.size(), impl->identity.context_length);
        }
        impl->capacity = std::max<std::uint64_t>(impl->capacity, text.tokens.size());
    }
    HETERO_TRY(impl->session, impl->make_session(kernels::DType::f16));
    HETERO_CHECK(impl->prefill_prompts());
    return std::unique_ptr<Bench>(new Bench(std::move(impl)));
} catch (const std::bad_alloc&) {
    return fail(Errc::resource, "out of memory: the states of the texts");
}

const kv::Identity& Bench::identity() const noexcept { return impl_->identity; }
const std::vector<Text>& Bench::texts() const noexcept { return impl_->texts; }

Result<std::vector<Step>> Bench::measure(std::size_t text, std::uint64_t steps, const Assignment& assignment) try {
    Impl& impl = *impl_;
    HETERO_CHECK(impl.need_reference(text, steps));
    const std::size_t n_layers = impl.identity.n_layers;
    // Only what differs from f16 is made anew; one task each.
    std::vector<kv::Layer> layers = impl.prompts[text].layers;
    kv::Header header = impl.prompts[text].header;
    std::vector<Status> done(2 * n_layers);
    impl.pool.parallel_for(2 * n_layers, [&](std::size_t task, int) {
        const std::size_t layer = task / 2;
        const PartId part = both[task % 2];
        const kv::Scheme& scheme = assignment.of(part)[layer];
        header.schemes(part)[layer] = scheme;
        if (scheme == kv::Scheme{}) return;
        auto made = impl.stored(text, layer, part, scheme);
        if (made) {
            layers[layer].part(part) = std::move(*made);
        } else {
            done[task] = fail_with(made.error(), fmt::format("text {}, layer {}, {}", impl.texts[text].name, layer,
                                                             header.part_name(layer, part)));
        }
    });
    for (const Status& status : done) HETERO_CHECK(status);
    HETERO_CHECK(impl.import(*impl.session, text, header, layers));
    HETERO_CHECK(impl.feed(*impl.session, impl.texts[text], steps, impl.logits));
    return impl.compare(steps);
} catch (const std::bad_alloc&) {
    return fail(Errc::resource, "out of memory: the logits of {} steps", steps);
}

Result<std::vector<Step>> Bench::floor(std::size_t text, std::uint64_t steps) try {
    Impl& impl = *impl_;
    HETERO_CHECK(impl.need_reference(text, steps));
    HETERO_TRY(auto full, impl.make_session(kernels::DType::f32));
    HETERO_CHECK(full->prefill(std::span(impl.texts[text].tokens).first(impl.texts[text].prompt_tokens),
                               engine::Logits::none, {}));
    HETERO_CHECK(impl.feed(*full, impl.texts[text], steps, impl.logits));
    return impl.compare(steps);
} catch (const std::bad_alloc&) {
    return fail(Errc::resource, "out of memory: the logits of {} steps", steps);
}

Result<double> Bench::noise(std::size_t text, std::size_t layer, PartId part, const kv::Scheme& scheme) {
    Impl& impl = *impl_;
    const kv::Header& header = impl.prompts[text].header;
    const std::uint64_t n = header.stored_tokens(0, layer), first = header.first_token(0, layer);
    HETERO_TRY(const auto before, kv::decode_part(header, impl.prompts[text].layers[layer].part(part), n, part, first));
    HETERO_TRY(const kv::Part made, kv::encode_part(header, scheme, n, part, before, first));
    HETERO_TRY(const auto after, kv::decode_part(header, made, n, part, first));
    double sum = 0;
    for (std::size_t i = 0; i < before.size(); ++i) {
        const double error = static_cast<double>(after[i]) - before[i];
        sum += error * error;
    }
    return before.empty() ? 0 : sum / static_cast<double>(before.size());
}

std::uint64_t Bench::part_bytes(std::size_t layer, PartId part, const kv::Scheme& scheme) const {
    std::uint64_t bytes = 0;
    for (const Impl::Prompt& prompt : impl_->prompts)
        bytes += kv::part_bytes(prompt.header, scheme, prompt.header.stored_tokens(0, layer), part);
    return bytes;
}

std::uint64_t Bench::part_values(std::size_t layer, PartId part) const {
    std::uint64_t values = 0;
    for (const Impl::Prompt& prompt : impl_->prompts) {
        values += prompt.header.stored_tokens(0, layer) * prompt.header.stored_heads() * impl_->identity.head_dim(part);
    }
    return values;
}

double Bench::bits_per_value(const Assignment& assignment) const {
    std::uint64_t bytes = 0, values = 0;
    for (const PartId part : both) {
        for (std::size_t layer = 0; layer < assignment.k.size(); ++layer) {
            bytes += part_bytes(layer, part, assignment.of(part)[layer]);
            values += part_values(layer, part);
        }
    }
    return values == 0 ? 0 : 8.0 * static_cast<double>(bytes) / static_cast<double>(values);
}

}  // namespace hetero::calib
