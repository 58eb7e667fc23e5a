#include "viz/page_columns.h"

#include <zlib.h>

#include "ir/text/words.h"
#include "viz/page_data.h"

namespace shadowgraph {

void Column::add(int64_t value) {
  ++count_;
  if (code_ == Code::kPlain) {
    append(value < 0 ? 0 : static_cast<uint64_t>(value));
    return;
  }
  const int64_t step = value - last_;
  last_ = value;
  append((static_cast<uint64_t>(step) << 1U) ^ static_cast<uint64_t>(step >> 63));
}

nlohmann::json Column::entry(size_t offset) const {
  return {{"name", name_},
          {"code", std::string(1, static_cast<char>(code_))},
          {"count", count_},
          {"at", offset},
          {"bytes", bytes_.size()}};
}

void Column::append(uint64_t value) {
  for (; value >= 0x80; value >>= 7U) bytes_ += static_cast<char>((value & 0x7FU) | 0x80U);
  bytes_ += static_cast<char>(value);
}

nlohmann::json Columns::entries() const {
  nlohmann::json entries = nlohmann::json::array();
  size_t at = 0;
  for (const auto& column : columns_) {
    entries.push_back(column->entry(at));
    at += column->bytes().size();
  }
  return entries;
}

void Columns::append_to(std::string& bytes) const {
  size_t size = bytes.size();
  for (const auto& column : columns_) size += column->bytes().size();
  bytes.reserve(size);
  for (const auto& column : columns_) bytes += column->bytes();
}

uint32_t Texts::number(std::string_view text) {
  const auto [entry, added] = numbers_.try_emplace(std::string(text), static_cast<uint32_t>(list_.size()));
  if (added) list_.push_back(entry->first);
  return entry->second;
}

std::string packed(const std::string& bytes) {
  // In large data the last few percent of compression cost seconds.
  const int level = bytes.size() > 8'000'000 ? 5 : 9;
  uLongf size = compressBound(static_cast<uLong>(bytes.size()));
  std::vector<uint8_t> compressed(size);
  const int status = compress2(compressed.data(), &size, reinterpret_cast<const Bytef*>(bytes.data()),
                               static_cast<uLong>(bytes.size()), level);
  TORCH_INTERNAL_ASSERT(status == Z_OK);
  std::string text;
  append_base64(text, {compressed.data(), size});
  return text;
}

}  // namespace shadowgraph
