// Looks up calls of a graph in a device's tables of measured operators (shadowgraph/profile/device_spec.h), and reads
// and writes the tables.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <map>
#include <optional>
#include <string_view>
#include <tuple>
#include <vector>

#include "profiler/time/kernel_work.h"
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/profile/device_spec.h"

namespace shadowgraph {

class JsonPlace;

// The size of a call, by which tables go: that of a product if it is one, else bytes and FLOPs.
MeasuredSize size_of_work(const KernelWork& work);

// Tells sizes apart: batch, m, n, k, bytes, FLOPs.
using SizeKey = std::tuple<int64_t, int64_t, int64_t, int64_t, double, double>;
SizeKey size_key(const MeasuredSize& size);
MeasuredSize measured_size(const SizeKey& key, double seconds);

// Of one value at least; the mean of the middle two.
double median(std::vector<double> values);

struct TabledTime {
  double seconds = 0;
  bool inside = true;  // of the table; otherwise beyond an end
};

class TabledTimes {
 public:
  TabledTimes(const Graph& graph, const DeviceSpec& spec) : graph_(graph), spec_(spec) {}
  // Empty if the device has no table for the call.
  std::optional<TabledTime> find(NodeId node, const KernelWork& work);

 private:
  const Graph& graph_;
  const DeviceSpec& spec_;
  std::map<std::tuple<const OperatorTables::BySize*, KernelClass, SizeKey>, TabledTime> known_;
};

// The key "tables" of a device spec:
//     {"aten::mm": {"bfloat16": [[batch, m, n, k, seconds], ...]}, "pointwise": {"float32": [[bytes, seconds], ...]},
//      "attention": {"bfloat16": [[bytes, flops, seconds], ...]}}
OperatorTables operator_tables_from_json(const JsonPlace& place);  // throws ParseError
nlohmann::json to_json(const OperatorTables& tables);

struct TimedCall {
  double flops = 0;  // of float32's, if it computes; otherwise bytes count
  double bytes = 0;
  double seconds = 0;
};

// The least time of a class is its fixed time, if it is short. The others give rates of what is beyond that. Dtypes'
// factors are left alone.
void fit_rates(std::vector<TimedCall> calls, ClassRates& into);

}  // namespace shadowgraph
