#include "kernels/compiler/operator_table.h"

#include <ATen/Version.h>

#include <algorithm>
#include <string>
#include <unordered_map>

namespace shadowgraph {

namespace {

bool eager_contracts() {
  static const bool contracts = at::get_cpu_capability() != "DEFAULT" && at::get_cpu_capability() != "NO AVX";
  return contracts;
}

}  // namespace

Typed constant_of(const Call& call, double value, Typed like) {
  return {call.build.constant(value, like.dtype).expression, like.dtype};
}

bool has_two_bytes(ScalarType dtype) { return dtype == ScalarType::Half || dtype == ScalarType::BFloat16; }

Typed multiply_add(const Call& call, Typed a, Typed b, Typed c) {
  if (c10::isFloatingType(c.dtype) && eager_contracts()) return call.apply(Operation::kMultiplyAdd, a, b, c);
  return call.apply(Operation::kAdd, call.apply(Operation::kMultiply, a, b), c);
}

const KernelRow* find_kernel_row(std::string_view name) {
  static const auto rows = [] {
    std::unordered_map<std::string, KernelRow> by_name;
    for (const auto& table : {pointwise_rows(), row_reduction_rows(), optimizer_rows(), gather_rows()}) {
      for (const KernelRow& row : table) by_name.emplace(row.name, row);
    }
    return by_name;
  }();
  if (!name.starts_with("aten::")) return nullptr;
  name.remove_prefix(6);
  const size_t dot = name.find('.');
  const std::string_view overload = dot == name.npos ? std::string_view() : name.substr(dot + 1);
  std::string base(name.substr(0, dot));
  if (overload == "out" || overload.ends_with("_out")) return nullptr;
  auto found = rows.find(std::string(name));
  if (found == rows.end()) found = rows.find(base);
  if (found == rows.end() && base.ends_with('_') && !base.starts_with("__")) {
    base.pop_back();
    found = rows.find(base + std::string(name.substr(std::min(dot, name.size()))));
    if (found == rows.end()) found = rows.find(base);
  }
  return found == rows.end() ? nullptr : &found->second;
}

}  // namespace shadowgraph
