#include "transport/pipe.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <new>
#include <random>

#include "base/errno_text.h"
#include "io/nameless_file.h"
#include "kv/file.h"
#include "transport/file_descriptor.h"

namespace hetero::transport {
namespace {

constexpr std::size_t read_bytes = 1U << 20;

// Another process cannot open it; this one can, and whatever reads it need not know that it has no name.
std::string path_of(const FileDescriptor& file) { return fmt::format("/proc/self/fd/{}", file.get()); }

Status write_all(int fd, std::span<const std::byte> bytes, const std::string& name) {
    if (transport::write_all(fd, bytes)) return {};
    if (errno == EPIPE) return fail(Errc::peer, "{}: the reader went away before the state was written", name);
    return fail(Errc::resource, "{}: {}", name, errno_text(errno));
}

Result<FileDescriptor> open_spool() {
    std::string reason;
    for (const std::string& folder : io::temporary_folders()) {
        FileDescriptor file(io::open_nameless(folder));
        if (file.valid()) return file;
        reason += fmt::format("{}{}: {}", reason.empty() ? "" : ", ", folder, errno_text(errno));
    }
    return fail(Errc::resource, "no folder for a temporary file ({}); set TMPDIR", reason);
}

// Up to `max` bytes; fewer only at the end.
Result<std::vector<std::byte>> read_some(int fd, std::uint64_t max, const std::string& name) {
    std::vector<std::byte> out;
    try {
        struct stat info {};
        if (::fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_size > 0)
            out.reserve(
                static_cast<std::size_t>(std::min<std::uint64_t>(max, static_cast<std::uint64_t>(info.st_size) + 1)));
        while (out.size() < max) {
            const std::size_t at = out.size();
            out.resize(at + static_cast<std::size_t>(std::min<std::uint64_t>(read_bytes, max - at)));
            const ssize_t n = ::read(fd, out.data() + at, out.size() - at);
            if (n < 0 && errno != EINTR) return fail(Errc::resource, "{}: {}", name, errno_text(errno));
            out.resize(at + static_cast<std::size_t>(std::max<ssize_t>(n, 0)));
            if (n == 0) break;
        }
    } catch (const std::bad_alloc&) {
        return fail(Errc::resource, "{}: no memory for {} bytes; a smaller --max-memory spools it to a file", name,
                    max);
    }
    return out;
}

// A source that reads a spool file, and whose messages speak of the pipe.
class SpooledSource final : public kv::Source {
public:
    SpooledSource(FileDescriptor spool, std::unique_ptr<kv::Source> source, std::string name)
        : spool_(std::move(spool)), source_(std::move(source)), name_(std::move(name)) {}
    [[nodiscard]] const kv::Header& header() const noexcept override { return source_->header(); }
    Result<kv::Layer> read_layer() override {
        kv::Layer layer;
        HETERO_CHECK(read_into(layer));
        return layer;
    }
    Status read_into(kv::Layer& layer) override { return of_pipe(source_->read_into(layer)); }
    Status skip_layer() override { return of_pipe(source_->skip_layer()); }
    Status finish() override { return of_pipe(source_->finish()); }
    [[nodiscard]] const std::string& name() const noexcept override { return name_; }

    static Error renamed(Error error, const FileDescriptor& spool, const std::string& name) {
        const std::string path = path_of(spool);
        for (std::size_t at = error.message.find(path); at != std::string::npos; at = error.message.find(path, at)) {
            error.message.replace(at, path.size(), name);
            at += name.size();
        }
        return error;
    }

private:
    [[nodiscard]] Status of_pipe(const Status& status) const {
        if (status) return status;
        return tl::unexpected<Error>(renamed(status.error(), spool_, name_));
    }

    FileDescriptor spool_;
    std::unique_ptr<kv::Source> source_;
    std::string name_;
};

Status copy_rest(int from, int to, const std::string& from_name, const std::string& to_name) {
    for (;;) {
        HETERO_TRY(const std::vector<std::byte> more, read_some(from, read_bytes, from_name));
        if (more.empty()) return {};
        HETERO_CHECK(write_all(to, more, to_name));
    }
}

Result<std::unique_ptr<kv::Source>> spool(int fd, std::vector<std::byte> head, const std::string& name) {
    HETERO_TRY(FileDescriptor file, open_spool());
    const std::string spool_name = name + ": temporary file (set TMPDIR)";
    HETERO_CHECK(write_all(file.get(), head, spool_name));
    head = std::vector<std::byte>();  // its memory is the state's now
    HETERO_CHECK(copy_rest(fd, file.get(), name, spool_name));
    auto source = kv::open_file(path_of(file));
    if (!source) return tl::unexpected<Error>(SpooledSource::renamed(source.error(), file, name));
    return std::unique_ptr<kv::Source>(std::make_unique<SpooledSource>(std::move(file), std::move(*source), name));
}

// What the file system finds out late.
Status check_written(int fd, const std::string& name) {
    struct stat info {};
    if (::fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && ::fsync(fd) != 0)
        return fail(Errc::resource, "{}: {}", name, errno_text(errno));
    const int copy = ::fcntl(fd, F_DUPFD_CLOEXEC, 3);
    if (copy >= 0 && ::close(copy) != 0 && errno != EINTR)
        return fail(Errc::resource, "{}: {}", name, errno_text(errno));
    return {};
}

class PipeSink final : public kv::Sink {
public:
    PipeSink(int fd, std::string name, std::uint64_t max_memory_bytes)
        : fd_(fd), name_(std::move(name)), max_memory_bytes_(max_memory_bytes) {}
    ~PipeSink() override { remove_spool(); }

    Status begin(const kv::Header& header) override {
        if (header.payload_bytes() > max_memory_bytes_) {
            HETERO_CHECK(create_spool());
        } else {
            inner_ = kv::create_image([this](std::span<const std::byte> image) { return write_all(fd_, image, name_); },
                                      name_);
        }
        return inner_->begin(header);
    }
    Status write_layer(const kv::Layer& layer) override {
        if (!inner_) return fail(Errc::internal, "{}: a layer before the header", name_);
        return inner_->write_layer(layer);
    }
    Status write_shared(std::shared_ptr<const kv::Layer> layer) override {
        if (!inner_) return fail(Errc::internal, "{}: a layer before the header", name_);
        return inner_->write_shared(std::move(layer));
    }
    Status complete(const kv::Header& header) override {
        return inner_ ? inner_->complete(header) : fail(Errc::internal, "{}: logits before the header", name_);
    }
    Status commit() override {
        if (!inner_) return fail(Errc::internal, "{}: committed before the header", name_);
        HETERO_CHECK(inner_->commit());
        if (!spool_path_.empty()) {
            const FileDescriptor file(::open(spool_path_.c_str(), O_RDONLY | O_CLOEXEC));
            if (file.get() < 0) return fail(Errc::resource, "{}: {}", spool_path_, errno_text(errno));
            remove_spool();
            HETERO_CHECK(copy_rest(file.get(), fd_, "temporary file", name_));
        }
        return check_written(fd_, name_);
    }
    void abort(const Error& reason) noexcept override {
        if (inner_) inner_->abort(reason);
        remove_spool();
    }
    [[nodiscard]] const std::string& name() const noexcept override { return name_; }

private:
    Status create_spool() {
        std::random_device device;
        std::string reason;
        for (const std::string& folder : io::temporary_folders()) {
            const std::string path = fmt::format("{}/hetero-spool-{:08x}{:08x}", folder, device(), device());
            if (const Status fits = io::check_output_path(path, io::Overwrite::refuse); !fits) {
                reason = fits.error().message;
                continue;
            }
            HETERO_TRY(inner_, kv::create_file(path, io::Overwrite::refuse));
            spool_path_ = path;
            return {};
        }
        return fail(Errc::resource, "no folder for a temporary file ({}); set TMPDIR", reason);
    }
    void remove_spool() noexcept {
        inner_.reset();
        if (!spool_path_.empty()) ::unlink(spool_path_.c_str());
        spool_path_.clear();
    }

    int fd_;
    std::string name_;
    std::uint64_t max_memory_bytes_;
    std::unique_ptr<kv::Sink> inner_;
    std::string spool_path_;
};

}  // namespace

Result<std::unique_ptr<kv::Source>> read_pipe(int fd, const std::string& name, std::uint64_t max_memory_bytes) {
    HETERO_TRY(std::vector<std::byte> image, read_some(fd, max_memory_bytes, name));
    if (image.empty())
        return fail(Errc::bad_input,
                    "{}: empty: did the command before it in the pipe fail? (under mpirun only rank 0 has an input)",
                    name);
    if (image.size() < max_memory_bytes) return kv::open_image(std::move(image), name);
    return spool(fd, std::move(image), name);
}

std::unique_ptr<kv::Sink> write_pipe(int fd, const std::string& name, std::uint64_t max_memory_bytes) {
    return std::make_unique<PipeSink>(fd, name, max_memory_bytes);
}

}  // namespace hetero::transport
