#include "profiler/time/operator_tables.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <string>
#include <tuple>

#include "ir/operators/operator_name.h"

namespace shadowgraph {
namespace {

using BySize = OperatorTables::BySize;

// Logarithms of a size: of batch, m, n and k, or of bytes and FLOPs. What a table does not go by is 0 throughout.
using Coordinates = std::array<double, 4>;

Coordinates coordinates_of(const MeasuredSize& size, bool by_flops) {
  if (size.is_product()) {
    return {std::log(static_cast<double>(size.batch)), std::log(static_cast<double>(size.m)),
            std::log(static_cast<double>(size.n)), std::log(static_cast<double>(size.k))};
  }
  return {std::log(size.bytes), by_flops ? std::log(size.flops) : 0, 0, 0};
}

// Returns what the device's rates say of a size of the table.
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

// Interpolates how much slower than the rates say calls of the sizes near a size were. It is linear in logarithms along a
// line. Among scattered points it is the mean of the nearest, weighted by the squares of their distances.
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
    size_t axes = 0;
    size_t axis = 0;
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
  // The logarithm of how much slower than the rates say a size is.
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
    double sum = 0;
    double weights = 0;
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
  constexpr double kMostExact = 9007199254740992.0;  // 2^53
  return value >= 1 && value == std::floor(value) && value < kMostExact;
}

}  // namespace

SizeKey size_key(const MeasuredSize& size) { return {size.batch, size.m, size.n, size.k, size.bytes, size.flops}; }

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
    // A step makes the same calls layer by layer.
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
      // Products and bytes have no common order: a table of the other kind gives way.
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

}  // namespace shadowgraph
