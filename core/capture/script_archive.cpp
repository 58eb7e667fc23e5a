#include "core/capture/script_archive.h"

#include <ATen/core/ivalue.h>
#include <caffe2/serialize/inline_container.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <vector>

#include "core/capture/pickle_sizes.h"
#include "shadowgraph/error.h"
#include "shadowgraph/saturating.h"

namespace shadowgraph {
namespace {

// The parser of TorchScript calls itself for what is in brackets, for blocks in blocks, for each operator of a chain.
constexpr int kDeepestCode = 500;
constexpr size_t kLongestExpression = 4000;  // characters without a comma or a line end, strings left out

void demand(bool holds, const std::string& what) {
  if (!holds) throw Error(what);
}

void check_code(std::string_view code) {
  int depth = 0;
  size_t length = 0;
  size_t blanks = 0;  // at the start of the line
  char quote = 0;
  for (size_t at = 0; at < code.size(); ++at) {
    const char c = code[at];
    if (quote != 0) {
      at += c == '\\' ? 1 : 0;
      if (c == quote) quote = 0;
      continue;
    }
    if (c == '"' || c == '\'') quote = c;
    length = c == ',' || c == '\n' ? 0 : length + 1;
    blanks = c == '\n' ? 0 : blanks + (c == ' ' && blanks + 1 == length ? 1 : 0);
    depth += c == '(' || c == '[' || c == '{' ? 1 : 0;
    depth -= c == ')' || c == ']' || c == '}' ? 1 : 0;
    demand(depth < kDeepestCode, "its brackets are nested too deeply");
    demand(blanks < 2 * size_t{kDeepestCode}, "its blocks are nested too deeply");
    demand(length < kLongestExpression, "it has an expression that is too long");
  }
}

// Refers to the tuple's.
const c10::ivalue::TupleElements& elements_of(const c10::IValue& tuple, size_t least) {
  demand(tuple.isTuple(), "a tuple is missing");
  const c10::ivalue::TupleElements& elements = tuple.toTupleRef().elements();
  demand(elements.size() >= least, "a tuple is too short");
  return elements;
}

int64_t integer_of(const c10::IValue& value, int64_t most) {
  demand(value.isInt() && value.toInt() >= 0 && value.toInt() <= most, "a number is missing or out of range");
  return value.toInt();
}

// Reads a debug record as libtorch does (torch/csrc/jit/serialization/source_range_serialization.cpp), and checks what
// that takes as given.
class DebugRecord {
 public:
  void check_all(const c10::IValue& record) {
    const auto& parts = elements_of(record, 1);
    c10::IValue ranges = record;
    if (parts[0].isString() && parts[0].toStringRef() == kWithTable) {
      demand(parts.size() == 3, "its parts are not three");
      for (const c10::IValue& text : elements_of(parts[1], 0)) {
        demand(text.isString(), "its table has what is no text");
        sizes_.push_back(static_cast<int64_t>(text.toStringRef().size()));
      }
      ranges = parts[2];
    }
    for (const c10::IValue& row : elements_of(ranges, 0)) {
      const auto& fields = elements_of(row, 2);
      demand(fields[0].isInt(), "a place in the code is no number");
      // Older files have no tag between the two.
      check_range(fields[fields.size() == 2 || fields[1].isTuple() ? 1 : 2]);
    }
  }

 private:
  static constexpr std::string_view kWithTable = "FORMAT_WITH_STRING_TABLE";

  void check_range(const c10::IValue& range) {
    const auto& fields = elements_of(range, 3);
    const int64_t bytes = bytes_of_source(fields[0]);
    const int64_t end = integer_of(fields[2], bytes + 1);  // the tracer's ranges end one behind their stack of calls
    integer_of(fields[1], end);
  }
  int64_t bytes_of_source(const c10::IValue& source) {
    const auto& fields = elements_of(source, 3);
    demand(fields[2].isInt(), "a line is no number");
    if (sizes_.empty()) {
      demand(fields[0].isString(), "a source has no text");
      demand(fields[1].isNone() || fields[1].isString(), "the name of a file is no text");
      return static_cast<int64_t>(fields[0].toStringRef().size());
    }
    const auto last = static_cast<int64_t>(sizes_.size()) - 1;
    integer_of(fields[1], last);
    demand(fields[0].isIntList(), "a source is no list of texts");
    int64_t bytes = 0;
    for (const int64_t text : fields[0].toIntVector()) {
      bytes = saturating_add(bytes, sizes_[static_cast<size_t>(integer_of(text, last))]);
    }
    return bytes;
  }

  std::vector<int64_t> sizes_;  // of the texts in the table
};

void check_record(caffe2::serialize::PyTorchStreamReader& reader, const std::string& name, uintmax_t file_bytes) {
  // PyTorch does not compress, and reads each record into memory of the size that the file states.
  demand(reader.getRecordSize(name) <= file_bytes, "it is compressed, or said to be larger than the file");
  const bool debug = name.ends_with(".debug_pkl");
  const bool code = name.ends_with(".py");
  if (!debug && !code && !name.ends_with(".pkl")) return;
  const auto [data, bytes] = reader.getRecord(name);
  const std::string_view text(static_cast<const char*>(data.get()), bytes);
  if (code) return check_code(text);
  check_pickle_sizes(text);
  if (debug) DebugRecord().check_all(torch::jit::unpickle(text.data(), text.size()));
}

}  // namespace

void check_script_archive(const std::string& path) {
  caffe2::serialize::PyTorchStreamReader reader(path);
  const uintmax_t file_bytes = std::filesystem::file_size(path);
  for (const std::string& name : reader.getAllRecords()) {
    try {
      check_record(reader, name, file_bytes);
    } catch (const c10::Error& error) {
      throw Error(path + " is damaged: " + name + ": " + error.what_without_backtrace());
    } catch (const std::exception& error) {
      throw Error(path + " is damaged: " + name + ": " + error.what());
    }
  }
}

}  // namespace shadowgraph
