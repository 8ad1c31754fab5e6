// Finished measurements in a folder, so that a run that was killed goes on where it was, and runs on several machines
// can share the work. A file for each writer, a line for each measurement, with a checksum: what a dying process left
// half-written is not read.
#pragma once
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/hash.h"
#include "base/result.h"
#include "calib/measure.h"

namespace hetero::calib {

class Journal {
public:
    // Reads all journals of `folder`, which is made if it is not there, and appends to the one called `writer`.
    // Errors: resource (cannot be made, read or written; another process writes the same journal).
    static Result<Journal> open(const std::string& folder, const std::string& writer);
    ~Journal();
    Journal(Journal&& other) noexcept;
    Journal& operator=(Journal&&) = delete;
    Journal(const Journal&) = delete;
    Journal& operator=(const Journal&) = delete;

    [[nodiscard]] const std::vector<Step>* find(const Digest& key) const;
    // In the file before the call returns; survives the death of the process, not that of the machine.
    Status add(const Digest& key, std::span<const Step> steps);
    [[nodiscard]] std::size_t size() const noexcept { return entries_.size(); }

private:
    Journal() = default;
    Status read(const std::string& path);
    std::string path_;
    int fd_ = -1;
    std::map<Digest, std::vector<Step>> entries_;
};

}  // namespace hetero::calib
