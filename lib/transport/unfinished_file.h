// The files of a broken transfer: the unfinished output ".NAME.<16 hex digits>.part" and its journal, of the same name
// but for ".journal" at the end. The process that uses them holds a lock on the journal.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kv/file.h"
#include "transport/file_descriptor.h"
#include "transport/resume_journal.h"

namespace hetero::transport {

// "<dir>/.NAME.<hex>.journal" for "<dir>/.NAME.<hex>.part"
[[nodiscard]] std::string journal_name(const std::string& part);
// Whether `fd` is now ours alone, until it is closed; also where the file system has no locks: false.
[[nodiscard]] bool lock_file(int fd) noexcept;

class UnfinishedFile {
public:
    // Of `path`: all that nobody uses, locked.
    static std::vector<std::shared_ptr<UnfinishedFile>> find(const std::string& path);

    // Reads the journal, then all bytes that it names, and compares them with their checksums. bad_input: it is of
    // another state, damaged, or the file is not what it was.
    Status verify(const kv::Header& header, const Digest& state_key);
    // Of verify(): from the first one on, with the checksums of its header's chunks.
    [[nodiscard]] const std::vector<kv::WrittenLayer>& layers() const noexcept { return layers_; }
    // One of them, compared with its checksums. `layer` has its shape.
    Status read(const kv::Header& header, std::uint64_t layer_index, kv::Layer& layer) const;
    void remove() noexcept;  // both files; what is open stays readable

private:
    std::string journal_, part_;
    FileDescriptor journal_file_, part_file_;
    std::vector<kv::WrittenLayer> layers_;
};

}  // namespace hetero::transport
