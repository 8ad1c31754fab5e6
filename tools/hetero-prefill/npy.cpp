#include "npy.h"

namespace hetero::tool {

Result<NpyWriter> NpyWriter::create(const std::string& path, std::uint64_t rows, std::uint64_t cols,
                                    io::Overwrite overwrite) {
    HETERO_TRY(auto file, io::AtomicFile::create(path, overwrite));
    std::string header = fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {}), }}", rows, cols);
    constexpr std::size_t kPreamble = 10;  // magic, version, length of the header
    header.append(63 - (kPreamble + header.size()) % 64, ' ');
    header += '\n';
    std::string preamble = "\x93NUMPY";
    preamble += '\1';
    preamble += '\0';
    preamble += static_cast<char>(header.size() & 0xff);
    preamble += static_cast<char>(header.size() >> 8);
    HETERO_CHECK(file.write(std::as_bytes(std::span(preamble))));
    HETERO_CHECK(file.write(std::as_bytes(std::span(header))));
    return NpyWriter(std::move(file), rows, cols);
}

Status NpyWriter::write_row(std::span<const float> row) {
    if (rows_left_ == 0 || row.size() != cols_) return fail(Errc::internal, "a row too many, or of the wrong length");
    --rows_left_;
    return file_.write(std::as_bytes(row));
}

Status NpyWriter::publish() {
    if (rows_left_ != 0) return fail(Errc::internal, "{} rows of logits are missing", rows_left_);
    return file_.publish();
}

}  // namespace hetero::tool
