// An output of several files that is complete or absent: a folder made beside its name, synced, then renamed.
#pragma once
#include <string>
#include <vector>

#include "base/result.h"
#include "io/atomic_file.h"

namespace hetero::io {

// Whether a folder can be published at `path` later; as check_output_path. A folder that is there may be replaced only
// if it holds plain files of a model (config.json among them) and nothing else: anything more might be someone's work.
Status check_output_folder(const std::string& path, Overwrite overwrite);

class AtomicFolder {
public:
    // Creates `<dir>/.<name>.<16 random hex digits>.part`, open to all that umask lets in. Errors as
    // check_output_folder.
    static Result<AtomicFolder> create(const std::string& path, Overwrite overwrite);
    ~AtomicFolder();  // removes the temporary and its files unless published
    AtomicFolder(AtomicFolder&& other) noexcept;
    AtomicFolder& operator=(AtomicFolder&& other) noexcept;
    AtomicFolder(const AtomicFolder&) = delete;
    AtomicFolder& operator=(const AtomicFolder&) = delete;

    [[nodiscard]] const std::string& temporary_path() const noexcept { return temporary_; }

    // A file of the folder. It must be published, too, before the folder is.
    Result<AtomicFile> create_file(const std::string& name);
    Status write_file(const std::string& name, std::string_view text);

    // The temporary takes the name `path` in one step; a folder that is replaced is removed afterwards. Once only.
    // resource: also where that folder cannot be removed; the new one has its name then.
    Status publish();

private:
    AtomicFolder() = default;
    Status give_name();
    void release(bool remove) noexcept;  // `remove`: from the disk too
    std::string path_, temporary_;
    Overwrite overwrite_ = Overwrite::refuse;
    Temporary* registration_ = nullptr;
    std::vector<Temporary*> files_;
};

}  // namespace hetero::io
