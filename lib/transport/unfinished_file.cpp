#include "transport/unfinished_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/errno_text.h"
#include "io/read_write.h"
#include "io/temporaries.h"
#include "transport/chunk_plan.h"

namespace hetero::transport {
namespace {

constexpr std::string_view part_suffix = ".part", journal_suffix = ".journal";
constexpr std::uint64_t max_journal_bytes = 1ULL << 30;

// A regular file of this user that nobody else may write: what others put there is not looked at.
FileDescriptor open_own(const std::string& path) {
    FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    struct stat info {};
    if (!file.valid() || ::fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode) || info.st_uid != ::geteuid() ||
        (info.st_mode & (S_IWGRP | S_IWOTH)) != 0 || info.st_nlink == 0)
        return FileDescriptor();
    return file;
}

bool is_hex(std::string_view text) {
    return std::all_of(text.begin(), text.end(),
                       [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

}  // namespace

std::string journal_name(const std::string& part) {
    return part.substr(0, part.size() - part_suffix.size()) + std::string(journal_suffix);
}

bool lock_file(int fd) noexcept {
    int status = 0;
    do {
        status = ::flock(fd, LOCK_EX | LOCK_NB);
    } while (status != 0 && errno == EINTR);
    return status == 0;
}

std::vector<std::shared_ptr<UnfinishedFile>> UnfinishedFile::find(const std::string& path) {
    std::vector<std::shared_ptr<UnfinishedFile>> found;
    const auto target = io::split_path(path);
    if (!target) return found;
    constexpr std::size_t hex_digits = 16;
    const std::string prefix = io::temporary_prefix(*target);
    DIR* folder = ::opendir(target->folder.c_str());
    if (folder == nullptr) return found;
    while (const dirent* entry = ::readdir(folder)) {
        const std::string_view name = entry->d_name;
        if (name.size() != prefix.size() + hex_digits + journal_suffix.size() || !name.starts_with(prefix) ||
            !name.ends_with(journal_suffix) || !is_hex(name.substr(prefix.size(), hex_digits)))
            continue;
        auto one = std::make_shared<UnfinishedFile>();
        one->journal_ = fmt::format("{}/{}", target->folder, name);
        one->part_ =
            fmt::format("{}/{}{}", target->folder, name.substr(0, name.size() - journal_suffix.size()), part_suffix);
        one->journal_file_ = open_own(one->journal_);
        if (!one->journal_file_.valid() || !lock_file(one->journal_file_.get())) continue;
        struct stat info {};  // another process may have used and removed it before it was locked here
        if (::fstat(one->journal_file_.get(), &info) != 0 || info.st_nlink == 0) continue;
        one->part_file_ = open_own(one->part_);
        found.push_back(std::move(one));
    }
    ::closedir(folder);
    return found;
}

Status UnfinishedFile::verify(const kv::Header& header, const Digest& state_key) {
    struct stat info {};
    if (::fstat(journal_file_.get(), &info) != 0 || static_cast<std::uint64_t>(info.st_size) > max_journal_bytes)
        return fail(Errc::bad_input, "its journal cannot be read");
    std::vector<std::byte> bytes(static_cast<std::size_t>(info.st_size));
    HETERO_CHECK(io::read_fully(journal_file_.get(), 0, bytes));
    auto journal = decode_journal(bytes);
    if (!journal) return fail_with(journal.error(), "its journal");
    if (journal->state_key != state_key) return fail(Errc::bad_input, "it is of another state");
    if (journal->layers.size() > total_layers(header))
        return fail(Errc::bad_input, "its journal has {} layers, the state {}", journal->layers.size(),
                    total_layers(header));
    if (journal->layers.empty() || !part_file_.valid()) return {};
    kv::Header written = header;
    written.tokens_per_chunk = journal->tokens_per_chunk;
    if (written.tokens_per_chunk == 0 || !kv::check_header(written))
        return fail(Errc::bad_input, "its journal has chunks of {} tokens", journal->tokens_per_chunk);
    const bool other_chunks = written.tokens_per_chunk != header.tokens_per_chunk;
    layers_ = std::move(journal->layers);
    for (std::uint64_t i = 0; i < layers_.size(); ++i) {
        HETERO_TRY(const auto layer, allocate_layer(header, i));
        if (Status read_back = read(written, i, *layer); !read_back) {
            layers_.clear();
            return read_back;
        }
        if (other_chunks) layers_[i].checksums = kv::checksum_layer(header, *layer);
    }
    return {};
}

Status UnfinishedFile::read(const kv::Header& header, std::uint64_t layer_index, kv::Layer& layer) const {
    const kv::WrittenLayer& written = layers_[layer_index];
    for (const kv::PartId id : {kv::PartId::k, kv::PartId::v}) {
        for (std::size_t i = 0; i < std::size(kv::part_arrays); ++i) {
            std::vector<std::byte>& bytes = (layer.part(id).*kv::part_arrays[i]).bytes;
            HETERO_CHECK(io::read_fully(part_file_.get(), written.offsets[static_cast<std::size_t>(id)][i], bytes));
        }
    }
    if (kv::checksum_layer(header, layer) != written.checksums)
        return fail(Errc::bad_input, "layer {} of sequence {} is not what was written",
                    layer_index % header.identity.n_layers, layer_index / header.identity.n_layers);
    return {};
}

void UnfinishedFile::remove() noexcept {
    // The journal last: a file without one is found by nobody.
    if (part_file_.valid()) ::unlink(part_.c_str());
    ::unlink(journal_.c_str());
}

}  // namespace hetero::transport
