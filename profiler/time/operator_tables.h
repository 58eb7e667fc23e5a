// Looks up calls of a graph in a device's tables of measured operators (shadowgraph/profile/operator_tables.h), and reads
// and writes the tables.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <map>
#include <optional>
#include <string_view>
#include <tuple>

#include "profiler/cost/operand_reader.h"
#include "shadowgraph/graph.h"
#include "shadowgraph/profile/device_spec.h"
#include "shadowgraph/profile/kernel_class.h"
#include "shadowgraph/profile/operator_tables.h"

namespace shadowgraph {

class JsonPlace;

// The sizes of the product that a call is: of mm, addmm, bmm, baddbmm, linear and their like. `operator_name` may have an
// overload. Empty for other operators, and for shapes that fit none.
struct ProductSize {
  int64_t batch = 1, m = 0, n = 0, k = 0;
};
std::optional<ProductSize> product_size(std::string_view operator_name, const OperandShapes& call);

struct CallWork {
  KernelClass kind = KernelClass::kOther;
  c10::ScalarType dtype = c10::kFloat;
  double flops = 0;  // of matrix products and their like
  double bytes = 0;  // moved
};
// What the rates of a device say of a call, without its tables: fixed + max(compute, memory).
double bare_seconds(const DeviceSpec& spec, const CallWork& work);

// Tells sizes apart: batch, m, n, k, bytes, FLOPs.
using SizeKey = std::tuple<int64_t, int64_t, int64_t, int64_t, double, double>;
SizeKey size_key(const MeasuredSize& size);

struct TabledTime {
  double seconds = 0;
  bool inside = true;  // of the table; otherwise beyond an end
};

class TabledTimes {
 public:
  TabledTimes(const Graph& graph, const DeviceSpec& spec) : graph_(graph), reader_(graph), spec_(spec) {}
  // Empty if the device has no table for the call.
  std::optional<TabledTime> find(NodeId node, const CallWork& work);

 private:
  const Graph& graph_;
  OperandReader reader_;
  const DeviceSpec& spec_;
  std::map<std::tuple<const OperatorTables::BySize*, KernelClass, SizeKey>, TabledTime> known_;
};

// The key "tables" of a device spec:
//     {"aten::mm": {"bfloat16": [[batch, m, n, k, seconds], ...]}, "pointwise": {"float32": [[bytes, seconds], ...]},
//      "attention": {"bfloat16": [[bytes, flops, seconds], ...]}}
OperatorTables operator_tables_from_json(const JsonPlace& place);  // throws ParseError
nlohmann::json to_json(const OperatorTables& tables);

}  // namespace shadowgraph
