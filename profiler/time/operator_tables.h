// Looks up calls in, reads and writes a device's tables of measured operators (shadowgraph/profile/device_spec.h).
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "profiler/time/kernel_work.h"
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/profile/device_spec.h"

namespace shadowgraph {

class JsonPlace;

// Returns the size of a call as a table key: that of a product if it is one, else bytes and FLOPs.
MeasuredSize size_of_work(const KernelWork& work);

// Table key: batch, m, n, k, bytes, FLOPs.
using SizeKey = std::tuple<int64_t, int64_t, int64_t, int64_t, double, double>;
SizeKey size_key(const MeasuredSize& size);
MeasuredSize measured_size(const SizeKey& key, double seconds);

// Needs at least one value; averages the middle two.
double median(std::vector<double> values);

struct TabledTime {
  double seconds = 0;
  bool inside = true;  // within the table's range; otherwise extrapolated
};

class TabledTimes {
 public:
  TabledTimes(const Graph& graph, const DeviceSpec& spec) : graph_(graph), spec_(spec) {}
  // Returns nullopt if the device has no table for the call.
  std::optional<TabledTime> find(NodeId node, const KernelWork& work);

 private:
  const Graph& graph_;
  const DeviceSpec& spec_;
  std::map<std::tuple<const OperatorTables::BySize*, KernelClass, SizeKey>, TabledTime> known_;
};

// The key "tables" of a device spec, in JSON:
//     {"aten::mm": {"bfloat16": [[batch, m, n, k, seconds], ...]}, "pointwise": {"float32": [[bytes, seconds], ...]},
//      "attention": {"bfloat16": [[bytes, flops, seconds], ...]}}
OperatorTables operator_tables_from_json(const JsonPlace& place);  // throws ParseError
nlohmann::json to_json(const OperatorTables& tables);

struct TimedCall {
  double flops = 0;  // float32-equivalent, if compute-bound; otherwise bytes count
  double bytes = 0, seconds = 0;
};

// The shortest time of a class is its fixed time, if it is short. The other calls give rates for the time beyond that.
// Dtype factors are not changed.
void fit_rates(std::vector<TimedCall> calls, ClassRates& into);

}  // namespace shadowgraph
