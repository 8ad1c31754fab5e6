#include "convert/plan.h"

#include <filesystem>
#include <new>

#include "convert/family.h"
#include "convert/tensors.h"
#include "io/gguf.h"
#include "tokenizer/export.h"

namespace hetero::convert {
namespace {

namespace fs = std::filesystem;

struct Known {
    const Conversion* conversion = nullptr;
    const model::Family* family = nullptr;
};

Result<Known> find(const model::Config& config) {
    Known known;
    std::string names;
    for (const Conversion* one : conversions()) {
        if (one->arch == config.arch) known.conversion = one;
        names += fmt::format("{}{}", names.empty() ? "" : ", ", one->arch);
    }
    for (const model::Family* one : model::families()) {
        if (one->name == config.arch && !one->gguf_architecture.empty()) known.family = one;
    }
    if (known.conversion == nullptr || known.family == nullptr) {
        return fail(Errc::bad_input, "models of the family {} are not converted; known are: {}", config.arch, names);
    }
    return known;
}

std::vector<TensorPlan> gguf_tensors(const Known& known, const model::Config& config) {
    std::vector<TensorPlan> plans = known.conversion->tensors != nullptr
                                        ? known.conversion->tensors(config, *known.family)
                                        : decoder_tensors(config, *known.family, known.conversion->interleaved);
    if (config.rope.scaling == model::RopeScalingKind::llama3) {
        TensorPlan divisors;
        divisors.name = "rope_freqs.weight";
        divisors.values = model::llama3_divisors(config.rope);
        divisors.shape = {divisors.values.size()};
        plans.push_back(std::move(divisors));
    }
    return plans;
}

void append(std::vector<std::string>& to, std::vector<std::string> from) {
    to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
}

Status add_tokenizer(const model::Model& model, Plan& plan) {
    std::error_code ignored;
    const std::string file = (fs::path(model.path) / "tokenizer.json").string();
    if (!fs::exists(file, ignored)) {
        plan.warnings.push_back(fmt::format(
            "{}: there is no tokenizer.json, so the GGUF has no tokenizer: it takes token ids only", model.path));
        return {};
    }
    HETERO_TRY(const tokenizer::TokenizerParts parts, tokenizer::parts_from_folder(model.path));
    auto words = tokenizer::to_gguf(parts, model.config.vocab_size);
    if (!words) return fail_with(words.error(), file);
    for (auto& entry : words->metadata) plan.metadata.push_back(std::move(entry));
    append(plan.warnings, std::move(words->warnings));
    return {};
}

std::string text_of(const Json& json) { return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n"; }

Status add_files(const model::Model& model, Json config, Plan& plan) {
    for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"}) config[key] = nullptr;
    HETERO_TRY(const auto kind, model.gguf->string("tokenizer.ggml.model"));
    if (!kind) {
        plan.warnings.push_back(
            fmt::format("{}: has no tokenizer, so the folder has none: it takes token ids only", model.path));
        plan.files.emplace_back("config.json", text_of(config));
        return {};
    }
    HETERO_TRY(const tokenizer::TokenizerParts parts, tokenizer::parts_from_gguf(*model.gguf));
    auto words = tokenizer::to_folder(parts, model.config.context_length);
    if (!words) return fail_with(words.error(), model.path);
    if (parts.bos) config["bos_token_id"] = *parts.bos;
    if (parts.padding) config["pad_token_id"] = *parts.padding;
    if (parts.eos.size() == 1) config["eos_token_id"] = parts.eos.front();
    if (parts.eos.size() > 1) config["eos_token_id"] = parts.eos;
    Json generation;
    for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
        if (!config[key].is_null()) generation[key] = config[key];
    }
    plan.files.emplace_back("config.json", text_of(config));
    if (!generation.empty()) plan.files.emplace_back("generation_config.json", text_of(generation));
    plan.files.emplace_back("tokenizer.json", std::move(words->tokenizer_json));
    plan.files.emplace_back("tokenizer_config.json", std::move(words->tokenizer_config_json));
    append(plan.warnings, std::move(words->warnings));
    return {};
}

Result<Plan> gguf_plan(const model::Model& model) {
    if (model.gguf != nullptr) return fail(Errc::usage, "{}: is a GGUF already", model.path);
    const auto known = find(model.config);
    if (!known) return fail_with(known.error(), model.path);
    Plan plan;
    plan.metadata = {{"general.architecture", std::string(known->family->gguf_architecture)},
                     {"general.type", std::string("model")},
                     {"general.name", model.config.name}};
    ArchKeys keys(known->family->gguf_architecture, plan);
    for (const Status& said :
         {describe_gguf(model.config, *known->conversion, keys), known->conversion->to_gguf(model.config, keys)}) {
        if (!said) return fail_with(said.error(), model.path);
    }
    plan.tensors = gguf_tensors(*known, model.config);
    HETERO_CHECK(add_tokenizer(model, plan));
    return plan;
}

Result<Plan> folder_plan(const model::Model& model) {
    if (model.gguf == nullptr) return fail(Errc::usage, "{}: is a Hugging Face folder already", model.path);
    const auto known = find(model.config);
    if (!known) return fail_with(known.error(), model.path);
    auto config = known->conversion->to_config(model.config);
    if (!config) return fail_with(config.error(), model.path);
    Plan plan;
    HETERO_TRY(plan.tensors, inverted(gguf_tensors(*known, model.config)));
    HETERO_CHECK(add_files(model, std::move(*config), plan));
    return plan;
}

Result<Plan> guarded(Result<Plan> (*make)(const model::Model&), const model::Model& model) {
    try {
        return make(model);
    } catch (const std::bad_alloc&) {
        return fail(Errc::resource, "{}: out of memory while planning the conversion", model.path);
    } catch (const nlohmann::json::exception& error) {
        return fail(Errc::internal, "{}: while planning the conversion: {}", model.path, error.what());
    }
}

}  // namespace

Result<Plan> plan_to_gguf(const model::Model& model) { return guarded(&gguf_plan, model); }
Result<Plan> plan_to_folder(const model::Model& model) { return guarded(&folder_plan, model); }

}  // namespace hetero::convert
