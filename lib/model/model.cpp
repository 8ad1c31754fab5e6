#include "model/model.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <new>
#include <optional>

#include "base/log.h"
#include "io/gguf.h"
#include "io/mapped_file.h"
#include "io/safetensors.h"
#include "model/digest.h"
#include "model/families/shared.h"
#include "model/quantization.h"

namespace hetero::model {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t max_config_bytes = std::size_t{16} << 20;

std::string known_names(std::string_view Family::*member) {
    std::vector<std::string_view> names;
    for (const Family* family : families()) {
        const std::string_view name = family->*member;
        if (!name.empty() && std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    }
    return fmt::format("{}", fmt::join(names, ", "));
}

Result<const Family*> find_family(Keys& keys, std::string_view key, const std::optional<std::string>& name,
                                  std::string_view Family::*member) {
    if (!name) return fail(Errc::bad_input, "{}: {} is missing, so the model family is unknown", keys.file(), key);
    for (const Family* family : families()) {
        if (name->empty() || family->*member != *name) continue;
        if (member == &Family::gguf_architecture && family->means != nullptr && !family->means(keys)) continue;
        return family;
    }
    return fail(Errc::bad_input, "{}: {} is \"{}\"; implemented: {}", keys.file(), key, name->substr(0, 64),
                known_names(member));
}

// What is no language model by itself, or more than one: said before anything else is complained of.
Status refuse_other_kinds(const Keys& keys, const std::optional<std::string>& general_type) {
    if (general_type && *general_type == "adapter") {
        return fail(Errc::bad_input, "{}: is a LoRA adapter, which is not implemented; merge it into its base model",
                    keys.file());
    }
    if (general_type && *general_type != "model") {
        return fail(Errc::bad_input, "{}: general.type is \"{}\"; only \"model\" is implemented, not multimodal parts",
                    keys.file(), general_type->substr(0, 64));
    }
    for (const std::string_view part : {"vision_config", "audio_config", "speech_config"}) {
        if (keys.has(part) || keys.has(std::string(part) + ".*")) {
            return fail(Errc::bad_input,
                        "{}: has a {}: multimodal models are not implemented; use the text model by itself",
                        keys.file(), part);
        }
    }
    return {};
}

// The scalar metadata, one line each: what names these weights besides their data.
std::string header_text(const io::GgufFile& gguf) {
    struct Visitor {
        std::string operator()(std::int64_t v) const { return fmt::format("{}", v); }
        std::string operator()(std::uint64_t v) const { return fmt::format("{}", v); }
        std::string operator()(double v) const { return fmt::format("{}", v); }
        std::string operator()(bool v) const { return v ? "true" : "false"; }
        std::string operator()(std::string_view v) const { return std::string(v); }
        std::string operator()(const io::GgufArray& v) const { return fmt::format("[{}]", v.size); }
    };
    std::string text;
    for (const auto& [key, value] : gguf.metadata()) {
        text += fmt::format("{}={}\n", key, std::visit(Visitor{}, value));
    }
    return text;
}

// A name for people: what the file calls itself, else the last part of its path.
std::string display_name(const std::string& given, const std::string& path) {
    std::string name = given.empty() ? fs::path(path).lexically_normal().filename().string() : given;
    if (name.empty()) name = fs::path(path).lexically_normal().parent_path().filename().string();
    std::replace_if(
        name.begin(), name.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20; }, ' ');
    return name.substr(0, 256);
}

// config is read by then; the weights are open.
struct Found {
    Container container;
    std::string header;  // what names these weights besides their data
    std::optional<CarriedLineage> carried;
    bool int8_rows = false;
};
Status complete(Model& model, const Family& family, const Found& found) {
    model.config.name = display_name(model.config.name, model.path);
    WeightReader reader(*model.weights, model.path, found.int8_rows);
    const auto build = [&] {
        if (family.build != nullptr) return family.build(model.config, reader, found.container);
        return build_decoder(model.config, reader, found.container, family.decoder(found.container));
    };
    HETERO_TRY(model.program, build());
    model.weight_bytes = reader.bytes_taken();
    model.arch_digest = sha256(arch_text(model.config));
    const Digest tensors = lineage_digest(*model.weights);
    model.weights_digest = weights_digest(tensors, found.header);
    model.lineage = tensors;
    if (!found.carried) return {};
    if (found.carried->tensors == tensors) {
        model.lineage = found.carried->lineage;
    } else {
        log::warn("{}: was changed since hetero-convert made it, so its weights count as a model of their own",
                  model.path);
    }
    return {};
}

struct Described {
    const Family* family = nullptr;
    Config config;
};

Result<Described> describe_gguf(const io::GgufFile& gguf) {
    Keys keys = Keys::from_gguf(gguf);
    HETERO_TRY(const auto general_type, keys.text("general.type"));
    HETERO_CHECK(refuse_other_kinds(keys, general_type));
    HETERO_TRY(const auto architecture, keys.text("general.architecture"));
    Described out;
    HETERO_TRY(out.family, find_family(keys, "general.architecture", architecture, &Family::gguf_architecture));
    HETERO_TRY(out.config, out.family->read_config(keys, Container::gguf));
    return out;
}

Result<std::string> read_config_text(const std::string& config_path) {
    HETERO_TRY(const io::MappedFile file, io::MappedFile::open(config_path));
    if (file.bytes().size() > max_config_bytes) {
        return fail(Errc::bad_input, "{}: has {} bytes, at most {} are read", config_path, file.bytes().size(),
                    max_config_bytes);
    }
    return std::string(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
}

// With weights that are int8 with a scale per row, or the values themselves.
Result<Described> describe_json(const std::string& config_path, const std::string& text, bool* int8_rows) {
    HETERO_TRY(Keys keys, Keys::from_json(config_path, text));
    HETERO_CHECK(refuse_other_kinds(keys, std::nullopt));
    HETERO_TRY(const auto model_type, keys.text("model_type"));
    Described out;
    HETERO_TRY(out.family, find_family(keys, "model_type", model_type, &Family::model_type));
    if (int8_rows != nullptr) {
        HETERO_TRY(*int8_rows, read_quantization(config_path, text));
    }
    keys.harmless({"quantization_config*"});
    HETERO_TRY(out.config, out.family->read_config(keys, Container::folder));
    return out;
}

Status load_gguf(Model& model) {
    HETERO_TRY(model.gguf, io::GgufFile::open(model.path));
    model.weights = model.gguf;
    HETERO_TRY(Described described, describe_gguf(*model.gguf));
    model.config = std::move(described.config);
    HETERO_TRY(const auto carried, carried_lineage(*model.gguf));
    return complete(model, *described.family, {Container::gguf, header_text(*model.gguf), carried});
}

Status load_folder(Model& model) {
    const std::string config_path = (fs::path(model.path) / "config.json").string();
    std::error_code error;
    if (const fs::path adapter = fs::path(model.path) / "adapter_config.json";
        !fs::exists(config_path, error) && fs::exists(adapter, error)) {
        return fail(Errc::bad_input, "{}: is a LoRA adapter, which is not implemented; merge it into its base model",
                    adapter.string());
    }
    HETERO_TRY(const std::string text, read_config_text(config_path));
    bool int8_rows = false;
    HETERO_TRY(Described described, describe_json(config_path, text, &int8_rows));
    model.config = std::move(described.config);
    HETERO_TRY(model.weights, io::open_safetensors_folder(model.path));
    HETERO_TRY(const auto carried, carried_lineage(model.path));
    return complete(model, *described.family, {Container::folder, text, carried, int8_rows});
}

}  // namespace

Result<std::shared_ptr<const Model>> Model::load(const std::string& path) {
    try {
        auto model = std::make_shared<Model>();
        model->path = path;
        std::error_code error;
        HETERO_CHECK(fs::is_directory(path, error) ? load_folder(*model) : load_gguf(*model));
        return std::shared_ptr<const Model>(std::move(model));
    } catch (const std::bad_alloc&) {
        return fail(Errc::resource, "{}: out of memory while loading", path);
    }
}

Result<Config> read_config(const std::string& path) {
    try {
        std::error_code error;
        const bool json = path.ends_with(".json");
        if (!json && !fs::is_directory(path, error)) {
            HETERO_TRY(const auto gguf, io::GgufFile::open(path));
            HETERO_TRY(Described described, describe_gguf(*gguf));
            described.config.name = display_name(described.config.name, path);
            return std::move(described.config);
        }
        const std::string config_path = json ? path : (fs::path(path) / "config.json").string();
        HETERO_TRY(const std::string text, read_config_text(config_path));
        HETERO_TRY(Described described, describe_json(config_path, text, nullptr));
        const std::string folder = fs::absolute(config_path, error).parent_path().string();
        described.config.name = display_name(described.config.name, folder);
        return std::move(described.config);
    } catch (const std::bad_alloc&) {
        return fail(Errc::resource, "{}: out of memory while loading", path);
    }
}

std::string Model::rope_scaling_text() const { return model::rope_scaling_text(config.rope); }

}  // namespace hetero::model
