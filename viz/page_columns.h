// Builds the columns of a page's data, as viz/page/README.md describes them, and its texts by number.
#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace shadowgraph {

// A column of whole numbers in variable length, seven bits a byte: as they are, or as differences from the one before.
class Column {
 public:
  enum class Code : char { kPlain = 'u', kDelta = 'd' };
  explicit Column(std::string name, Code code = Code::kPlain) : name_(std::move(name)), code_(code) {}

  void add(int64_t value);
  nlohmann::json entry(size_t offset) const;
  const std::string& bytes() const { return bytes_; }

 private:
  void append(uint64_t value);

  std::string name_;
  Code code_;
  int64_t last_ = 0;
  size_t count_ = 0;
  std::string bytes_;
};

class Columns {
 public:
  Column& plain(const char* name) { return add(name, Column::Code::kPlain); }
  Column& delta(const char* name) { return add(name, Column::Code::kDelta); }
  nlohmann::json entries() const;
  // Appends all columns, in the order of entries().
  void append_to(std::string& bytes) const;

 private:
  Column& add(const char* name, Column::Code code) {
    return *columns_.emplace_back(std::make_unique<Column>(name, code));
  }
  std::vector<std::unique_ptr<Column>> columns_;
};

// Numbers texts, each once; 0 is the empty one.
class Texts {
 public:
  Texts() { number(""); }
  uint32_t number(std::string_view text);
  nlohmann::json list() const { return list_; }

 private:
  std::unordered_map<std::string, uint32_t> numbers_;
  std::vector<std::string> list_;
};

}  // namespace shadowgraph
