#include "io/hdf5.h"

#include <new>

#include "io/hdf5_internal.h"

namespace hetero::io::h5 {

File::File(std::unique_ptr<ByteStore> store) : store_(std::move(store)), channel_(std::make_unique<Channel>()) {
    channel_->store = store_.get();
}

File::~File() {
    if (id_ < 0) return;
    const Quiet quiet;
    if (channel_->writable) {
        // Abandoned. Closing would make the library write metadata that a failed call may have left broken (it crashes
        // then where memory is short), so it keeps its handle.
        leave_to_library();
        return;
    }
    close();
}

void File::leave_to_library() {
    channel_->store = nullptr;
    static_cast<void>(channel_.release());
}

bool File::close() {
    if (H5Fclose(std::exchange(id_, -1)) >= 0) return true;
    leave_to_library();
    return false;
}

tl::unexpected<Error> File::failure(const std::string& what) const {
    if (channel_->error) return tl::unexpected<Error>(*channel_->error);
    return fail(channel_->writable ? Errc::resource : Errc::bad_input, "{} ({})", what, library_reason());
}

Result<std::unique_ptr<File>> File::open(std::unique_ptr<ByteStore> store) {
    HETERO_TRY(const Superblock superblock, check_superblock(*store));
    std::unique_ptr<File> file(new File(std::move(store)));
    HETERO_TRY(file->root_, read_header(*file->store_, superblock.root, "/"));
    file->headers_tell_ = !superblock.has_extension;
    return file;
}

std::int64_t File::id() {
    if (id_ >= 0 || !library().ready) return id_;
    const Quiet quiet;
    if (const Id access = access_list(channel_.get())) id_ = H5Fopen("store", H5F_ACC_RDONLY, access.get());
    return id_;
}

Result<std::unique_ptr<File>> File::create(std::unique_ptr<ByteStore> store) {
    const bool ready = library().ready;
    const Quiet quiet;
    if (!ready) return fail(Errc::internal, "the HDF5 library does not start ({})", library_reason());
    std::unique_ptr<File> file(new File(std::move(store)));
    file->channel_->writable = true;
    const Id access = access_list(file->channel_.get());
    const Id creation = creation_list(H5P_FILE_CREATE);
    if (!access || !creation) return fail(Errc::internal, "HDF5 property lists ({})", library_reason());
    file->id_ = H5Fcreate("store", H5F_ACC_TRUNC, creation.get(), access.get());
    if (file->id_ < 0) return file->failure("HDF5 cannot create the file");
    return file;
}

Result<Node> File::root() {
    if (root_ != nullptr && headers_tell_ && root_->is_group) return Node(this, -1, "/", root_);
    const hid_t file = id();
    const Quiet quiet;
    if (file < 0) return failure("damaged: HDF5 cannot open it");
    const hid_t root = H5Gopen2(file, "/", H5P_DEFAULT);
    if (root < 0) return failure("damaged: the root group cannot be opened");
    return Node(this, root, "/");
}

Status File::finish() {
    if (id_ < 0) return fail(Errc::internal, "the HDF5 file is closed already");
    if (const Status settled = store_->settle(); !settled && !channel_->error) channel_->error = settled.error();
    const Quiet quiet;  // others may use the library while this one waits for the disk
    const bool flushed = H5Fflush(id_, H5F_SCOPE_GLOBAL) >= 0;
    std::string reason = flushed ? "" : library_reason();
    const std::optional<Error> error = channel_->error;
    const bool closed = close();
    if (flushed && !closed) reason = library_reason();
    if (error) return tl::unexpected<Error>(*error);
    if (closed && channel_->error) return tl::unexpected<Error>(*channel_->error);
    if (!flushed || !closed) return fail(Errc::resource, "HDF5 cannot write the file ({})", reason);
    for (const auto& [path, links] : many_links_) HETERO_CHECK(write_links(*store_, path, links));
    return {};
}

}  // namespace hetero::io::h5
