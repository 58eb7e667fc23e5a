// Writes messages as Protocol Buffers encode them: varints, and fields of a length.
#pragma once

#include <bit>
#include <cstdint>
#include <string>
#include <string_view>

namespace shadowgraph {

class ProtobufMessage {
 public:
  void unsigned_field(uint32_t field, uint64_t value) {
    varint(field << 3);
    varint(value);
  }
  // int32, int64: negative ones take ten bytes.
  void signed_field(uint32_t field, int64_t value) { unsigned_field(field, static_cast<uint64_t>(value)); }
  void bool_field(uint32_t field, bool value) { unsigned_field(field, value ? 1 : 0); }
  void text_field(uint32_t field, std::string_view text) {
    varint(field << 3 | 2);
    varint(text.size());
    bytes_ += text;
  }
  void message_field(uint32_t field, const ProtobufMessage& message) { text_field(field, message.bytes_); }
  const std::string& bytes() const { return bytes_; }
  void clear() { bytes_.clear(); }

  // In a file of several messages each has its length before it.
  void append_to(std::string& file) const {
    ProtobufMessage length;
    length.varint(bytes_.size());
    file += length.bytes_;
    file += bytes_;
  }

 private:
  void varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>((value & 0x7F) | 0x80);
    bytes_ += static_cast<char>(value);
  }
  std::string bytes_;
};

}  // namespace shadowgraph
