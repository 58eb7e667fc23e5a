#include "profiler/time/operator_tables.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>
#include <string>

#include "ir/operators/operator_name.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/profile/device_spec.h"
#include "shadowgraph/units.h"
#include "support/csv.h"
#include "support/json.h"
#include "support/text.h"

namespace shadowgraph {
namespace {

using BySize = OperatorTables::BySize;

// Logarithms of a size: batch, m, n and k, or bytes and FLOPs. Unused coordinates are 0.
using Coordinates = std::array<double, 4>;

Coordinates coordinates_of(const MeasuredSize& size, bool by_flops) {
  if (size.is_product()) {
    return {std::log(static_cast<double>(size.batch)), std::log(static_cast<double>(size.m)),
            std::log(static_cast<double>(size.n)), std::log(static_cast<double>(size.k))};
  }
  return {std::log(size.bytes), by_flops ? std::log(size.flops) : 0, 0, 0};
}

// Returns the time of a size of the table by the device's rates alone.
double bare_seconds_of(const DeviceSpec& spec, const MeasuredSize& size, const KernelWork& like) {
  KernelWork work{.kind = like.kind, .dtype = like.dtype, .flops = size.flops, .bytes = size.bytes};
  work.blocks = like.blocks;
  if (size.is_product()) {
    const auto batch = static_cast<double>(size.batch), m = static_cast<double>(size.m);
    const auto n = static_cast<double>(size.n), k = static_cast<double>(size.k);
    const auto element = static_cast<double>(c10::elementSize(like.dtype));
    work.flops = 2 * batch * m * n * k;
    work.bytes = element * batch * (m * k + k * n + m * n);
    work.product =
        ProductShape{.batch = batch, .rows = m, .columns = n, .inner = k, .result_bytes = element * batch * m * n};
  }
  return kernel_seconds(spec, work).total();
}

// Interpolates the ratio of measured time to rate-based time between nearby sizes. Linear in logarithms along a line;
// among scattered points, the mean of the nearest, weighted by inverse squared distance.
class Interpolation {
 public:
  Interpolation(const DeviceSpec& spec, const BySize& table, const KernelWork& work, bool by_flops)
      : spec_(spec), table_(table), work_(work), by_flops_(by_flops) {
    low_.fill(HUGE_VAL);
    high_.fill(-HUGE_VAL);
    for (const MeasuredSize& size : table) {
      const Coordinates point = coordinates_of(size, by_flops);
      for (size_t i = 0; i < point.size(); ++i) {
        low_[i] = std::min(low_[i], point[i]);
        high_[i] = std::max(high_[i], point[i]);
      }
    }
  }

  TabledTime at(const MeasuredSize& call) const {
    constexpr double kSame = 1e-12;
    Coordinates wanted = coordinates_of(call, by_flops_);
    TabledTime result;
    size_t axes = 0, axis = 0;
    for (size_t i = 0; i < wanted.size(); ++i) {
      const double clamped = std::clamp(wanted[i], low_[i], high_[i]);
      if (std::abs(clamped - wanted[i]) > kSame) result.inside = false;
      wanted[i] = clamped;
      if (high_[i] - low_[i] > kSame) {
        ++axes;
        axis = i;
      }
    }
    const double slower = axes <= 1 ? along(axis, wanted[axis]) : among(wanted);
    result.seconds = std::exp(slower) * bare_seconds_of(spec_, call, work_);
    return result;
  }

 private:
  // Returns the logarithm of measured over rate-based time.
  double slower(const MeasuredSize& size) const { return std::log(size.seconds / bare_seconds_of(spec_, size, work_)); }
  double along(size_t axis, double wanted) const {
    const MeasuredSize* below = nullptr;
    const MeasuredSize* above = nullptr;
    const auto place = [&](const MeasuredSize& size) { return coordinates_of(size, by_flops_)[axis]; };
    for (const MeasuredSize& size : table_) {
      const double at = place(size);
      if (at <= wanted && (below == nullptr || at > place(*below))) below = &size;
      if (at >= wanted && (above == nullptr || at < place(*above))) above = &size;
    }
    if (below == nullptr || above == nullptr) return slower(below != nullptr ? *below : *above);  // rounding at an end
    const double width = place(*above) - place(*below);
    if (width <= 0) return slower(*below);
    const double part = (wanted - place(*below)) / width;
    return slower(*below) * (1 - part) + slower(*above) * part;
  }
  double among(const Coordinates& wanted) const {
    constexpr size_t kNear = 8;
    constexpr double kThere = 1e-18;
    std::vector<std::pair<double, const MeasuredSize*>> near;
    near.reserve(table_.size());
    for (const MeasuredSize& size : table_) {
      const Coordinates point = coordinates_of(size, by_flops_);
      double distance = 0;
      for (size_t i = 0; i < point.size(); ++i) distance += (point[i] - wanted[i]) * (point[i] - wanted[i]);
      if (distance < kThere) return slower(size);
      near.emplace_back(distance, &size);
    }
    const size_t count = std::min(kNear, near.size());
    std::partial_sort(near.begin(), near.begin() + static_cast<std::ptrdiff_t>(count), near.end(),
                      [](const auto& a, const auto& b) { return a.first < b.first; });
    double sum = 0, weights = 0;
    for (size_t i = 0; i < count; ++i) {
      sum += slower(*near[i].second) / near[i].first;
      weights += 1 / near[i].first;
    }
    return sum / weights;
  }

  const DeviceSpec& spec_;
  const BySize& table_;
  const KernelWork& work_;
  bool by_flops_;
  Coordinates low_{}, high_{};
};

bool is_count(double value) {
  constexpr double kMaxExact = 9007199254740992.0;  // 2^53
  return value >= 1 && value == std::floor(value) && value < kMaxExact;
}

using nlohmann::json;

// Returns an error for an invalid table name; empty if it is an operator or a class that has kernels.
std::string wrong_table_name(const std::string& name) {
  if (const size_t colons = name.find("::"); colons != name.npos && colons > 0 && colons + 2 < name.size()) return {};
  const auto kind = find_named<KernelClass>(name);
  if (!kind) return "is neither an operator such as aten::mm nor a kernel class";
  return *kind == KernelClass::kFree ? "is the class of calls without a kernel" : "";
}

double above_zero(const JsonPlace& place) {
  if (place.amount() <= 0) place.fail("must be positive");
  return place.amount();
}

double seconds_above_zero(const JsonPlace& place) {
  above_zero(place);
  return place.seconds();
}

int64_t whole_above_zero(const JsonPlace& place) {
  constexpr double kMax = 9007199254740992.0;  // 2^53
  const double value = above_zero(place);
  if (value != std::floor(value) || value > kMax) place.fail("must be an integer");
  return static_cast<int64_t>(value);
}

MeasuredSize measured_size(const JsonPlace& point) {
  switch (point.size()) {
    case 2:
      return {.bytes = above_zero(point[0]), .seconds = seconds_above_zero(point[1])};
    case 3:
      return {.bytes = above_zero(point[0]), .flops = above_zero(point[1]), .seconds = seconds_above_zero(point[2])};
    case 5:
      return {.batch = whole_above_zero(point[0]),
              .m = whole_above_zero(point[1]),
              .n = whole_above_zero(point[2]),
              .k = whole_above_zero(point[3]),
              .seconds = seconds_above_zero(point[4])};
    default:
      point.fail("must be [bytes, seconds], [bytes, flops, seconds] or [batch, m, n, k, seconds]");
  }
}

OperatorTables::BySize table_sizes(const JsonPlace& list) {
  OperatorTables::BySize table;
  std::set<SizeKey> seen;
  for (const JsonPlace& point : list.elements()) {
    if (point.size() != list[0].size()) point.fail("must have as many numbers as the first row of its table");
    table.push_back(measured_size(point));
    if (!seen.insert(size_key(table.back())).second) point.fail("repeats a size of an earlier row");
  }
  if (table.empty()) list.fail("must not be empty");
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
    row.fail("has both m, n, k and bytes or flops; give one or the other");
  }
  if (!product) {
    if (!row.has("bytes")) row.fail("has no size; give m, n and k, or bytes");
    return {.bytes = row.amount("bytes"), .flops = row.has("flops") ? row.amount("flops") : 0};
  }
  return {.batch = row.has("batch") ? row.count("batch") : 1,
          .m = row.count("m"),
          .n = row.count("n"),
          .k = row.count("k")};
}

}  // namespace

SizeKey size_key(const MeasuredSize& size) { return {size.batch, size.m, size.n, size.k, size.bytes, size.flops}; }
MeasuredSize measured_size(const SizeKey& key, double seconds) {
  const auto& [batch, m, n, k, bytes, flops] = key;
  return {.batch = batch, .m = m, .n = n, .k = k, .bytes = bytes, .flops = flops, .seconds = seconds};
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

MeasuredSize size_of_work(const KernelWork& work) {
  if (const auto& of = work.product;
      of && is_count(of->batch) && is_count(of->rows) && is_count(of->columns) && is_count(of->inner)) {
    return {.batch = static_cast<int64_t>(of->batch),
            .m = static_cast<int64_t>(of->rows),
            .n = static_cast<int64_t>(of->columns),
            .k = static_cast<int64_t>(of->inner)};
  }
  return {.bytes = work.bytes, .flops = work.flops};
}

std::optional<TabledTime> TabledTimes::find(NodeId node, const KernelWork& work) {
  const auto& tables = spec_.tables.by_name;
  if (tables.empty()) return std::nullopt;
  const std::string& name = graph_.target(node).name();
  for (const std::string_view key : {std::string_view(name), without_overload(name), to_string(work.kind)}) {
    const auto of_name = tables.find(std::string(key));
    if (of_name == tables.end()) continue;
    const auto of_dtype = of_name->second.find(work.dtype);
    if (of_dtype == of_name->second.end() || of_dtype->second.empty()) continue;
    const BySize& table = of_dtype->second;
    const bool by_flops = table.front().flops > 0;
    MeasuredSize call{.bytes = work.bytes, .flops = by_flops ? work.flops : 0};
    if (table.front().is_product()) {
      call = size_of_work(work);
      if (!call.is_product()) continue;
    } else if (call.bytes <= 0 || (by_flops && call.flops <= 0)) {
      continue;
    }
    // A step repeats the same calls layer by layer.
    const auto [known, fresh] = known_.try_emplace({&table, work.kind, size_key(call)});
    if (fresh) known->second = Interpolation(spec_, table, work, by_flops).at(call);
    return known->second;
  }
  return std::nullopt;
}

void OperatorTables::add(const OperatorTables& other) {
  for (const auto& [name, by_dtype] : other.by_name) {
    for (const auto& [dtype, table] : by_dtype) {
      BySize& own = by_name[name][dtype];
      // Product sizes and byte sizes cannot be merged: the new table replaces one of the other kind.
      if (!own.empty() && (own.front().is_product() != table.front().is_product() ||
                           (own.front().flops > 0) != (table.front().flops > 0))) {
        own.clear();
      }
      std::map<SizeKey, MeasuredSize> merged;
      for (const MeasuredSize& size : own) merged[size_key(size)] = size;
      for (const MeasuredSize& size : table) merged[size_key(size)] = size;
      own.clear();
      for (const auto& [key, size] : merged) own.push_back(size);
    }
  }
}

OperatorTables operator_tables_from_json(const JsonPlace& place) {
  OperatorTables tables;
  for (const auto& [name, by_dtype] : place.members()) {
    if (const std::string wrong = wrong_table_name(name); !wrong.empty()) by_dtype.fail(wrong);
    for (const auto& [word, list] : by_dtype.members()) {
      const auto dtype = parse_dtype_name(word);
      if (!dtype) list.fail("is not a dtype; use torch's names, such as float32 or bfloat16");
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
      row.fail("unknown dtype '" + terminal_text(row.text("dtype")) + "'; use torch's names: float32, bfloat16, ...");
    const MeasuredSize size = csv_size(row);
    Rows& rows = tables.try_emplace({name, *dtype}, Rows{&row, size, {}}).first->second;
    if (rows.size.is_product() != size.is_product() || (rows.size.flops > 0) != (size.flops > 0)) {
      row.fail("must have the same size columns as earlier rows of " + name + ": m, n, k; bytes; or bytes and flops");
    }
    rows.seconds[size_key(size)].push_back(row.amount("seconds"));
  }
  OperatorTables result;
  for (auto& [key, rows] : tables) {
    auto& table = result.by_name[key.first][key.second];
    for (auto& [size, seconds] : rows.seconds) table.push_back(measured_size(size, median(std::move(seconds))));
  }
  return result;
}

void fit_rates(std::vector<TimedCall> calls, ClassRates& into) {
  constexpr double kShort = 1e-4;     // seconds
  constexpr double kOfLeast = 0.8;    // fixed time per call, as a fraction of the shortest call
  constexpr double kMinBeyond = 0.1;  // minimum fraction of a call's time attributed to its work
  const auto least = std::ranges::min_element(calls, {}, &TimedCall::seconds);
  if (calls.size() > 1 && least->seconds < kShort) into.fixed = least->seconds * kOfLeast;
  std::ranges::sort(calls, [](const TimedCall& a, const TimedCall& b) {
    return a.flops != b.flops ? a.flops < b.flops : a.bytes < b.bytes;
  });
  for (const TimedCall& one : calls) {
    const double seconds = std::max(one.seconds - into.fixed, one.seconds * kMinBeyond);
    auto& points = one.flops > 0 ? into.compute : into.memory;
    const double work = one.flops > 0 ? one.flops : one.bytes;
    if (points.empty() || work > points.back().work) points.push_back({work, work / seconds});
  }
}

}  // namespace shadowgraph
