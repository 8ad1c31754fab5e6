#include "kv/shard_files.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <map>

#include "base/errno_text.h"
#include "kv/shards.h"

namespace hetero::kv {
namespace {

namespace fs = std::filesystem;

// The whole of `text`, without leading zeros.
std::optional<std::uint32_t> parse_number(std::string_view text) {
    std::uint32_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || end != text.data() + text.size() || (text.size() > 1 && text[0] == '0'))
        return std::nullopt;
    return value;
}

// Where the extension of the last name in `path` starts; its end where there is none.
std::size_t extension_at(std::string_view path) {
    const std::size_t slash = path.find_last_of('/');
    const std::size_t name = slash == std::string_view::npos ? 0 : slash + 1;
    const std::size_t dot = path.find_last_of('.');
    return dot == std::string_view::npos || dot <= name ? path.size() : dot;
}

// "tp0of2"
std::optional<ShardName> parse_tag(std::string_view tag) {
    if (!tag.starts_with("tp")) return std::nullopt;
    tag.remove_prefix(2);
    const std::size_t of = tag.find("of");
    if (of == std::string_view::npos) return std::nullopt;
    const auto rank = parse_number(tag.substr(0, of)), size = parse_number(tag.substr(of + 2));
    if (!rank || !size || *size < 2 || *size > max_ranks || *rank >= *size) return std::nullopt;
    return ShardName{"", *rank, *size};
}

bool exists(const std::string& path) {
    std::error_code error;
    return fs::exists(path, error) || (error && error != std::errc::no_such_file_or_directory);
}

// One shard that is there for each tp_size of which there are shards of `path`.
std::map<std::uint32_t, std::string> find_shards(const std::string& path) {
    std::map<std::uint32_t, std::string> found;
    const fs::path whole(path);
    std::error_code error;
    const fs::path folder = whole.has_parent_path() ? whole.parent_path() : fs::path(".");
    for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
        const auto name = parse_shard_path(entry->path().filename().string());
        if (name && name->whole == whole.filename().string())
            found.try_emplace(name->tp_size, shard_path(path, name->tp_rank, name->tp_size));
    }
    return found;
}

// The set of shards that stands for `path`, which is not there itself; nothing: there is none.
Result<std::optional<std::uint32_t>> only_set(const std::string& path) {
    const auto found = find_shards(path);
    if (found.empty()) return std::optional<std::uint32_t>{};
    if (found.size() > 1)
        return fail(Errc::bad_input, "{}: there are shards of {} ranks ({}) and of {} ({}): name one of them", path,
                    found.begin()->first, found.begin()->second, found.rbegin()->first, found.rbegin()->second);
    return std::optional(found.begin()->first);
}

Result<std::unique_ptr<Source>> open_shard(const std::string& whole, std::uint32_t rank, std::uint32_t size,
                                           Verify verify) {
    const std::string path = shard_path(whole, rank, size);
    if (!exists(path))
        return fail(Errc::bad_input, "{}: is missing: shard {} of the {} that {} is split into", path, rank, size,
                    whole);
    return open_file(path, verify);
}

Status check_name(const Source& source, std::uint32_t rank, std::uint32_t size) {
    const Shard& shard = source.header().shard;
    if (shard.tp_rank == rank && shard.tp_size == size) return {};
    return fail(Errc::bad_input, "{}: holds shard {} of {}; its name stands for shard {} of {}", source.name(),
                shard.tp_rank, shard.tp_size, rank, size);
}

// `own`: a shard of the set that is open already.
Result<StateFiles> open_set(const std::string& whole, std::uint32_t size, std::unique_ptr<Source> own, Verify verify) {
    std::vector<std::unique_ptr<Source>> shards;
    for (std::uint32_t rank = 0; rank < size; ++rank) {
        if (own != nullptr && own->header().shard.tp_rank == rank) {
            shards.push_back(std::move(own));
            continue;
        }
        HETERO_TRY(auto shard, open_shard(whole, rank, size, verify));
        HETERO_CHECK(check_name(*shard, rank, size));
        shards.push_back(std::move(shard));
    }
    return StateFiles{std::move(shards), fmt::format("{} ({} shards)", whole, size)};
}

}  // namespace

std::string shard_path(const std::string& path, std::uint32_t tp_rank, std::uint32_t tp_size) {
    const std::size_t at = extension_at(path);
    return fmt::format("{}.tp{}of{}{}", path.substr(0, at), tp_rank, tp_size, path.substr(at));
}

std::optional<ShardName> parse_shard_path(const std::string& path) {
    // The tag is the extension itself, or what is before it.
    const std::size_t last = extension_at(path);
    if (last == path.size()) return std::nullopt;
    if (auto name = parse_tag(std::string_view(path).substr(last + 1))) {
        name->whole = path.substr(0, last);
        return name;
    }
    const std::string stem = path.substr(0, last);
    const std::size_t tag = extension_at(stem);
    if (tag == stem.size()) return std::nullopt;
    auto name = parse_tag(std::string_view(stem).substr(tag + 1));
    if (name) name->whole = stem.substr(0, tag) + path.substr(last);
    return name;
}

Result<std::vector<std::string>> state_files(const std::string& path) {
    std::vector<std::string> files;
    std::optional<ShardName> name;
    if (exists(path)) {
        files.push_back(path);
        name = parse_shard_path(path);
    } else {
        HETERO_TRY(const auto size, only_set(path));
        if (!size) return fail(open_errc(ENOENT), "{}: cannot open: {}", path, errno_text(ENOENT));
        name = ShardName{path, 0, *size};
    }
    for (std::uint32_t rank = 0; name && rank < name->tp_size; ++rank) {
        std::string shard = shard_path(name->whole, rank, name->tp_size);
        if (shard != path && exists(shard)) files.push_back(std::move(shard));
    }
    return files;
}

Result<StateFiles> open_files(const std::string& path, Verify verify) {
    if (!exists(path)) {
        HETERO_TRY(const auto size, only_set(path));
        if (size) return open_set(path, *size, nullptr, verify);
    }
    StateFiles whole;
    whole.name = path;
    HETERO_TRY(auto source, open_file(path, verify));
    const Shard shard = source->header().shard;
    if (!source->header().is_shard()) {
        whole.sources.push_back(std::move(source));
        return whole;
    }
    const auto name = parse_shard_path(path);
    if (!name)
        return fail(Errc::bad_input,
                    "{}: is shard {} of {}, and its name does not tell the others': rename it, as in {}", path,
                    shard.tp_rank, shard.tp_size, shard_path(path, shard.tp_rank, shard.tp_size));
    HETERO_CHECK(check_name(*source, name->tp_rank, name->tp_size));
    return open_set(name->whole, shard.tp_size, std::move(source), verify);
}

Result<std::unique_ptr<Source>> read_shard(StateFiles files, const Shard& shard) {
    if (shard.tp_size <= 1 && !files.sources.front()->header().is_shard()) return std::move(files.sources.front());
    return reshard(std::move(files.sources), shard, std::move(files.name));
}

Result<std::unique_ptr<Source>> open_state(const std::string& path, Verify verify) {
    HETERO_TRY(StateFiles files, open_files(path, verify));
    return read_shard(std::move(files), {});
}

}  // namespace hetero::kv
