// Makes the checksums of a changed model file right again, so that tests and the fuzzer reach the
// checks behind them.
#pragma once

#include <algorithm>
#include <cstring>
#include <span>

#include "runtime/model_file.h"

namespace adder::test {

// As far as header and section records make sense; the tensors' own checksums stay.
inline void FixChecksums(std::span<uint8_t> file) {
  FileHeader header;
  if (file.size() < sizeof(header)) return;
  std::memcpy(&header, file.data(), sizeof(header));
  const size_t fit = (file.size() - sizeof(header)) / sizeof(SectionRecord);
  if (header.section_count > kMaxSections || header.section_count > fit) return;
  const auto records = file.subspan(sizeof(header), header.section_count * sizeof(SectionRecord));
  for (size_t at = 0; at < records.size(); at += sizeof(SectionRecord)) {
    SectionRecord record;
    std::memcpy(&record, records.data() + at, sizeof(record));
    if (record.kind == static_cast<uint32_t>(SectionKind::kTensorData)) continue;
    if (record.bytes > file.size() || record.offset > file.size() - record.bytes) continue;
    record.checksum = Checksum(file.subspan(record.offset, record.bytes));
    std::memcpy(records.data() + at, &record, sizeof(record));
  }
  header.checksum = HeaderChecksum(header, records);
  std::memcpy(file.data(), &header, sizeof(header));
}

}  // namespace adder::test
