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
double bare_seconds_of(const DeviceSpec& spec, const MeasuredSize& size, CallWork work) {
  work.bytes = size.bytes;
  work.flops = size.flops;
  if (size.is_product()) {
    const double batch = static_cast<double>(size.batch), m = static_cast<double>(size.m);
    const double n = static_cast<double>(size.n), k = static_cast<double>(size.k);
    work.flops = 2 * batch * m * n * k;
    work.bytes = static_cast<double>(c10::elementSize(work.dtype)) * batch * (m * k + k * n + m * n);
  }
  return bare_seconds(spec, work);
}

// Interpolates how much slower than the rates say calls of the sizes near a size were. It is linear in logarithms along a
// line. Among scattered points it is the mean of the nearest, weighted by the squares of their distances.
class Interpolation {
 public:
  Interpolation(const DeviceSpec& spec, const BySize& table, const CallWork& work, bool by_flops)
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
  const CallWork& work_;
  bool by_flops_;
  Coordinates low_{}, high_{};
};

// The operands of a product: (m x k) at `first`, (k x n) behind it, or (n x k) if transposed.
struct ProductOperands {
  std::string_view name;
  size_t first = 0;
  bool transposed = false;
};
constexpr ProductOperands kProducts[] = {{"mm", 0},      {"addmm", 1},   {"addmm_", 1},      {"_addmm_activation", 1},
                                         {"bmm", 0},     {"baddbmm", 1}, {"baddbmm_", 1},    {"_scaled_mm", 0},
                                         {"_int_mm", 0}, {"matmul", 0},  {"linear", 0, true}};

}  // namespace

SizeKey size_key(const MeasuredSize& size) { return {size.batch, size.m, size.n, size.k, size.bytes, size.flops}; }

std::optional<ProductSize> product_size(std::string_view operator_name, const OperandShapes& call) {
  const auto* row = std::ranges::find(kProducts, short_name(operator_name), &ProductOperands::name);
  if (row == std::end(kProducts)) return std::nullopt;
  const Shape a = call.shape(row->first);
  const Shape b = call.shape(row->first + 1);
  if (a.size() < 2 || b.size() < 2 || (a.size() != b.size() && b.size() != 2)) return std::nullopt;
  const bool batched = b.size() > 2;
  const int64_t inner = row->transposed ? b.back() : b[b.size() - 2];
  ProductSize size{.batch = 1, .m = a[a.size() - 2], .n = row->transposed ? b[b.size() - 2] : b.back(), .k = a.back()};
  if (inner != size.k) return std::nullopt;
  for (size_t i = 0; i + 2 < a.size(); ++i) (batched ? size.batch : size.m) *= a[i];
  if (size.batch <= 0 || size.m <= 0 || size.n <= 0 || size.k <= 0) return std::nullopt;
  return size;
}

double bare_seconds(const DeviceSpec& spec, const CallWork& work) {
  const double rate = spec.compute_rate(work.kind, work.flops, work.dtype);
  const double compute = work.flops > 0 && rate > 0 ? work.flops / rate : 0;
  const double memory = work.bytes > 0 ? work.bytes / spec.memory_rate(work.kind, work.bytes) : 0;
  return spec.rates(work.kind).fixed + std::max(compute, memory);
}

std::optional<TabledTime> TabledTimes::find(NodeId node, const CallWork& work) {
  const auto& tables = spec_.tables.by_name;
  if (tables.empty()) return std::nullopt;
  const std::string& name = graph_.target(node).name();
  for (const std::string_view key : {std::string_view(name), without_overload(name), to_string(work.kind)}) {
    const auto of_name = tables.find(std::string(key));
    if (of_name == tables.end()) continue;
    const auto of_dtype = of_name->second.find(work.dtype);
    if (of_dtype == of_name->second.end() || of_dtype->second.empty()) continue;
    const BySize& table = of_dtype->second;
    MeasuredSize call{.bytes = work.bytes, .flops = work.flops};
    const bool by_flops = table.front().flops > 0;
    if (table.front().is_product()) {
      const auto size = product_size(name, reader_.read(node));
      if (!size) continue;
      call = {.batch = size->batch, .m = size->m, .n = size->n, .k = size->k};
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
