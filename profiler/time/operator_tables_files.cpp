#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>

#include "profiler/time/operator_tables.h"
#include "shadowgraph/profile/kernel_class.h"
#include "shadowgraph/text.h"
#include "shadowgraph/units.h"
#include "support/csv_reader.h"
#include "support/json_place.h"
#include "support/printable.h"

namespace shadowgraph {
namespace {

using nlohmann::json;

// Says what is wrong with the name of a table; empty if it is an operator, or a class that has kernels.
std::string wrong_table_name(const std::string& name) {
  if (const size_t colons = name.find("::"); colons != name.npos && colons > 0 && colons + 2 < name.size()) return {};
  const auto kind = parse_kernel_class(name);
  if (!kind) return "is no operator, as aten::mm, and no class of kernels";
  return *kind == KernelClass::kFree ? "is of calls that have no kernel" : "";
}

double above_zero(const JsonPlace& place) {
  if (place.amount() <= 0) place.fail("is not above 0");
  return place.amount();
}

int64_t whole_above_zero(const JsonPlace& place) {
  constexpr double kMost = 9007199254740992.0;  // 2^53
  const double value = above_zero(place);
  if (value != std::floor(value) || value > kMost) place.fail("is no whole number");
  return static_cast<int64_t>(value);
}

MeasuredSize measured_size(const JsonPlace& point) {
  switch (point.size()) {
    case 2:
      return {.bytes = above_zero(point[0]), .seconds = above_zero(point[1])};
    case 3:
      return {.bytes = above_zero(point[0]), .flops = above_zero(point[1]), .seconds = above_zero(point[2])};
    case 5:
      return {.batch = whole_above_zero(point[0]),
              .m = whole_above_zero(point[1]),
              .n = whole_above_zero(point[2]),
              .k = whole_above_zero(point[3]),
              .seconds = above_zero(point[4])};
    default:
      point.fail("is not [bytes, seconds], [bytes, flops, seconds] or [batch, m, n, k, seconds]");
  }
}

OperatorTables::BySize table_sizes(const JsonPlace& list) {
  OperatorTables::BySize table;
  std::set<SizeKey> seen;
  for (const JsonPlace& point : list.elements()) {
    if (point.size() != list[0].size()) point.fail("has another length than the first of its table");
    table.push_back(measured_size(point));
    if (!seen.insert(size_key(table.back())).second) {
      point.fail("is of a size that stands there before");
    }
  }
  if (table.empty()) list.fail("is empty");
  return table;
}

json point_of(const MeasuredSize& size) {
  if (size.is_product()) return {size.batch, size.m, size.n, size.k, size.seconds};
  if (size.flops > 0) return {size.bytes, size.flops, size.seconds};
  return {size.bytes, size.seconds};
}

MeasuredSize csv_size(const CsvRow& row) {
  const bool product = row.has("m") || row.has("n") || row.has("k") || row.has("batch");
  if (product && (row.has("bytes") || row.has("flops"))) {
    row.fail("has m, n, k and also bytes or flops: a table goes by the one or the other");
  }
  if (!product) {
    if (!row.has("bytes")) row.fail("has neither m, n and k nor bytes");
    return {.bytes = row.amount("bytes"), .flops = row.has("flops") ? row.amount("flops") : 0};
  }
  return {.batch = row.has("batch") ? row.count("batch") : 1,
          .m = row.count("m"),
          .n = row.count("n"),
          .k = row.count("k")};
}

}  // namespace

OperatorTables operator_tables_from_json(const JsonPlace& place) {
  OperatorTables tables;
  for (const auto& [name, by_dtype] : place.members()) {
    if (const std::string wrong = wrong_table_name(name); !wrong.empty()) by_dtype.fail(wrong);
    for (const auto& [word, list] : by_dtype.members()) {
      const auto dtype = parse_dtype_name(word);
      if (!dtype) list.fail("is of no dtype; they are called as torch calls them, float32 or bfloat16");
      tables.by_name[name][*dtype] = table_sizes(list);
    }
  }
  return tables;
}

json to_json(const OperatorTables& tables) {
  json object = json::object();
  for (const auto& [name, by_dtype] : tables.by_name) {
    for (const auto& [dtype, table] : by_dtype) {
      json& list = object[name][dtype_name(dtype)] = json::array();
      for (const MeasuredSize& size : table) list.push_back(point_of(size));
    }
  }
  return object;
}

OperatorTables read_operator_csv(const std::string& path) {
  const CsvTable csv(read_file(path), path, {"operator", "dtype", "m", "n", "k", "batch", "bytes", "flops", "seconds"});
  struct Rows {
    const CsvRow* first;
    MeasuredSize size;
    std::map<SizeKey, std::vector<double>> seconds;
  };
  std::map<std::pair<std::string, c10::ScalarType>, Rows> tables;
  for (const CsvRow& row : csv.rows()) {
    const std::string& name = row.text("operator");
    if (const std::string wrong = wrong_table_name(name); !wrong.empty()) {
      row.fail("operator '" + terminal_text(name) + "' " + wrong);
    }
    const auto dtype = parse_dtype_name(row.text("dtype"));
    if (!dtype)
      row.fail("dtype '" + terminal_text(row.text("dtype")) + "' is none; torch's are float32, bfloat16, ...");
    const MeasuredSize size = csv_size(row);
    Rows& rows = tables.try_emplace({name, *dtype}, Rows{&row, size, {}}).first->second;
    if (rows.size.is_product() != size.is_product() || (rows.size.flops > 0) != (size.flops > 0)) {
      row.fail("has another kind of size than the rows of " + name + " before: m, n, k; bytes; or bytes and flops");
    }
    rows.seconds[size_key(size)].push_back(row.amount("seconds"));
  }
  OperatorTables result;
  for (auto& [key, rows] : tables) {
    for (auto& [size, seconds] : rows.seconds) {
      const auto& [batch, m, n, k, bytes, flops] = size;
      std::sort(seconds.begin(), seconds.end());
      const size_t middle = seconds.size() / 2;
      const double median = seconds.size() % 2 == 1 ? seconds[middle] : (seconds[middle - 1] + seconds[middle]) / 2;
      result.by_name[key.first][key.second].push_back(
          {.batch = batch, .m = m, .n = n, .k = k, .bytes = bytes, .flops = flops, .seconds = median});
    }
  }
  return result;
}

}  // namespace shadowgraph
