#include "io/atomic_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "base/errno_text.h"
#include "io/temporaries.h"

namespace hetero::io {
namespace {

namespace fs = std::filesystem;

bool belongs_to_model(const fs::path& name) {
    constexpr std::array extensions = {".json", ".jsonl", ".safetensors", ".txt", ".model", ".jinja", ".md"};
    constexpr std::array names = {"LICENSE", "NOTICE", ".gitattributes"};
    const auto is = [](const std::string& text) { return [&text](const char* one) { return text == one; }; };
    return std::any_of(extensions.begin(), extensions.end(), is(name.extension().string())) ||
           std::any_of(names.begin(), names.end(), is(name.filename().string()));
}

// A trailing slash is how people write the name of a folder.
std::string without_slashes(std::string path) {
    while (path.size() > 1 && path.back() == '/') path.pop_back();
    return path;
}

// Names of the files of a folder that may be replaced.
Result<std::vector<fs::path>> replaceable_files(const std::string& path) {
    std::vector<fs::path> files;
    bool has_config = false;
    std::error_code error;
    for (fs::directory_iterator entry(path, error), end; !error && entry != end; entry.increment(error)) {
        if (!entry->is_regular_file(error) || entry->is_symlink(error) || !belongs_to_model(entry->path())) {
            return fail(Errc::bad_input,
                        "{}: holds {}, which is no file of a model; the folder is not replaced, even with --force",
                        path, entry->path().filename().string());
        }
        has_config = has_config || entry->path().filename() == "config.json";
        files.push_back(entry->path().filename());
    }
    if (error) return fail(Errc::resource, "{}: cannot be read: {}", path, error.message());
    if (!has_config && !files.empty()) {
        return fail(Errc::bad_input, "{}: has no config.json, so it is no model; it is not replaced, even with --force",
                    path);
    }
    return files;
}

// What stands at `path` may be replaced, or nothing does. Returns whether something stands there.
Result<bool> check_target(const std::string& path, Overwrite overwrite) {
    struct stat info {};
    if (::lstat(path.c_str(), &info) != 0) {
        const int error = errno;
        if (error == ENOENT) return false;
        return fail(Errc::resource, "{}: cannot be written: {}", path, errno_text(error));
    }
    if (!S_ISDIR(info.st_mode)) return fail(Errc::bad_input, "{}: is there and is not a folder", path);
    if (overwrite == Overwrite::refuse) {
        return fail(Errc::bad_input, "{}: exists already and is not overwritten (--force does)", path);
    }
    HETERO_CHECK(replaceable_files(path));
    return true;
}

// As rename_without_replacing, whose link() takes no folders: where RENAME_NOREPLACE is missing (NFS), rename()
// replaces an empty folder at most.
int rename_folder(const char* from, const char* to) {
    if (::renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) == 0) return 0;
    if (errno != EINVAL && errno != ENOSYS) return errno;
    if (::rename(from, to) == 0) return 0;
    return errno == ENOTEMPTY ? EEXIST : errno;
}

}  // namespace

Status check_output_folder(const std::string& path, Overwrite overwrite) {
    HETERO_CHECK(AtomicFolder::create(path, overwrite));
    return {};
}

Result<AtomicFolder> AtomicFolder::create(const std::string& path, Overwrite overwrite) {
    AtomicFolder made;
    made.path_ = without_slashes(path);
    made.overwrite_ = overwrite;
    HETERO_TRY(const SplitPath target, split_path(made.path_));
    HETERO_CHECK(check_target(made.path_, overwrite));
    constexpr int attempts = 16;
    int error = EEXIST;
    for (int i = 0; i < attempts && error == EEXIST; ++i) {
        made.temporary_ = temporary_name(target);
        made.registration_ = Temporary::take(made.temporary_, true);  // first, so that no signal finds it unknown
        if (::mkdir(made.temporary_.c_str(), 0777) == 0) return made;
        error = errno;
        std::exchange(made.registration_, nullptr)->release(false);
    }
    made.temporary_.clear();
    return cannot_write(made.path_, target, error);
}

AtomicFolder::~AtomicFolder() { release(true); }

AtomicFolder::AtomicFolder(AtomicFolder&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::move(other.temporary_)),
      overwrite_(other.overwrite_),
      registration_(std::exchange(other.registration_, nullptr)),
      files_(std::exchange(other.files_, {})) {}

AtomicFolder& AtomicFolder::operator=(AtomicFolder&& other) noexcept {
    if (this == &other) return *this;
    release(true);
    path_ = std::move(other.path_);
    temporary_ = std::move(other.temporary_);
    overwrite_ = other.overwrite_;
    registration_ = std::exchange(other.registration_, nullptr);
    files_ = std::exchange(other.files_, {});
    return *this;
}

void AtomicFolder::release(bool remove) noexcept {
    for (Temporary* file : files_) file->release(remove);
    files_.clear();
    if (registration_ != nullptr) std::exchange(registration_, nullptr)->release(remove);
}

Result<AtomicFile> AtomicFolder::create_file(const std::string& name) {
    if (registration_ == nullptr) return fail(Errc::internal, "{}: added to after it was published", path_);
    const std::string path = temporary_ + "/" + name;
    files_.push_back(Temporary::take(path, false));  // for the time after the file has its name
    return AtomicFile::create(path, Overwrite::refuse, shared_file, path_ + "/" + name);
}

Status AtomicFolder::write_file(const std::string& name, std::string_view text) {
    HETERO_TRY(AtomicFile file, create_file(name));
    HETERO_CHECK(file.write(std::as_bytes(std::span(text))));
    return file.publish();
}

Status AtomicFolder::give_name() {
    HETERO_CHECK(sync_folder(temporary_, path_));
    HETERO_TRY(const bool there, check_target(path_, overwrite_));
    if (!there) {
        const int error = rename_folder(temporary_.c_str(), path_.c_str());
        if (error == EEXIST) {
            return fail(Errc::bad_input,
                        "{}: appeared while this output was being made, and is not overwritten (--force does)", path_);
        }
        if (error != 0) return fail(Errc::resource, "{}: cannot be given its name: {}", path_, errno_text(error));
        return {};
    }
    // A folder cannot be renamed over one that has files: the two change places, then the old one goes.
    HETERO_TRY(const std::vector<fs::path> old, replaceable_files(path_));
    if (::renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, path_.c_str(), RENAME_EXCHANGE) != 0) {
        const int error = errno;
        return fail(Errc::resource,
                    "{}: cannot be replaced in one step on this file system: {}; remove the folder, or name another",
                    path_, errno_text(error));
    }
    int error = 0;
    for (const fs::path& file : old)
        if (::unlink((fs::path(temporary_) / file).c_str()) != 0 && error == 0 && errno != ENOENT) error = errno;
    if (::rmdir(temporary_.c_str()) == 0 || errno == ENOENT) return {};
    if (error == 0) error = errno;
    release(false);  // what is left is somebody's
    return fail(Errc::resource,
                "{}: is written, but the folder that it replaces cannot be removed: {}; the rest is in {}", path_,
                errno_text(error), temporary_);
}

Status AtomicFolder::publish() {
    if (registration_ == nullptr) return fail(Errc::internal, "{}: published twice", path_);
    if (Status named = give_name(); !named) {
        release(true);
        return named;
    }
    release(false);
    HETERO_TRY(const SplitPath target, split_path(path_));
    return sync_folder(target.folder, path_);
}

}  // namespace hetero::io
