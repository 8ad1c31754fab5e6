#include "common/files.h"

#include <sys/stat.h>

#include <filesystem>

namespace hetero::tool {
namespace {

namespace fs = std::filesystem;

struct Place {
    explicit Place(const std::string& path) : text(path), exists(::stat(path.c_str(), &info) == 0) {
        std::error_code error;
        if (!exists) resolved = fs::weakly_canonical(fs::absolute(path, error), error);
    }
    [[nodiscard]] bool same(const Place& other) const {
        if (exists != other.exists) return false;
        if (!exists) return !resolved.empty() && resolved == other.resolved;
        return S_ISREG(info.st_mode) && info.st_dev == other.info.st_dev && info.st_ino == other.info.st_ino;
    }

    std::string text;
    struct stat info {};
    bool exists;
    fs::path resolved;  // of a file that is not there
};

std::vector<Place> places(const std::vector<std::string>& paths) {
    std::vector<Place> result;
    for (const std::string& path : paths) {
        if (path.empty() || path == "-") continue;
        result.emplace_back(path);
        if (!result.back().exists || !S_ISDIR(result.back().info.st_mode)) continue;
        std::error_code error;
        for (fs::directory_iterator entry(path, error), end; !error && entry != end; entry.increment(error)) {
            const fs::path extension = entry->path().extension();
            if (extension == ".json" || extension == ".safetensors") result.emplace_back(entry->path().string());
        }
    }
    return result;
}

}  // namespace

Status check_files(const Files& files) {
    const std::vector<Place> read = places(files.read), written = places(files.written);
    for (std::size_t i = 0; i < written.size(); ++i) {
        for (const Place& one : read) {
            if (written[i].same(one)) {
                return fail(Errc::usage, "{}: is the input {} itself; write to another file", written[i].text,
                            one.text);
            }
        }
        for (std::size_t other = 0; other < i; ++other) {
            if (written[i].same(written[other])) {
                return fail(Errc::usage, "{} and {}: two outputs cannot go to one file", written[other].text,
                            written[i].text);
            }
        }
    }
    return {};
}

}  // namespace hetero::tool
