#include "cli/npy_writer.h"

#include <cinttypes>
#include <utility>

#include "cli/output.h"

namespace adder::cli {
namespace {

// Magic, version, length of the dictionary; the dictionary ends with a line break so that the whole
// is a multiple of 64 bytes.
std::string Header(uint64_t rows, uint64_t cols) {
  std::string dictionary =
      Format("{'descr': '<f4', 'fortran_order': False, 'shape': (%" PRIu64 ", %" PRIu64 "), }",
             rows, cols);
  constexpr size_t kPrefix = 10;
  dictionary.append(63 - (kPrefix + dictionary.size()) % 64, ' ').push_back('\n');
  std::string header("\x93NUMPY\x01\x00", 8);
  header.push_back(static_cast<char>(dictionary.size() & 0xff));
  header.push_back(static_cast<char>(dictionary.size() >> 8));
  return header + dictionary;
}

}  // namespace

Result<NpyWriter> NpyWriter::Create(const std::string& path, uint64_t rows, uint64_t cols) {
  ADDER_ASSIGN_OR_RETURN(NewFile file, NewFile::Create(path, NewFile::Access::kEveryone));
  const std::string header = Header(rows, cols);
  ADDER_RETURN_IF_ERROR(
      file.Append({reinterpret_cast<const uint8_t*>(header.data()), header.size()}));
  return NpyWriter(std::move(file), rows, cols);
}

Status NpyWriter::Append(std::span<const float> row) {
  if (rows_left_ == 0 || row.size() != cols_) {
    return Error(Code::kInternal, "%s: row of %zu values, expected %" PRIu64 " more of %" PRIu64,
                 file_.path().c_str(), row.size(), rows_left_, cols_);
  }
  --rows_left_;
  // Adder runs on little-endian machines only; '<f4' is what lies in memory.
  return file_.Append({reinterpret_cast<const uint8_t*>(row.data()), row.size_bytes()});
}

Status NpyWriter::Finish() {
  if (rows_left_ != 0) {
    return Error(Code::kInternal, "%s: %" PRIu64 " rows are missing", file_.path().c_str(),
                 rows_left_);
  }
  return file_.Finish();
}

}  // namespace adder::cli
