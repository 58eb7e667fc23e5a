// What single calls of operators were measured to take on a device, by size.
//
// A table is of one operator ("aten::gelu", "aten::add.Tensor") or of one class of kernels ("matmul"), and of one dtype.
// A call goes by the table of its operator, else by that of its class. A size that is in the table takes what was
// measured. For others, what the device's rates say is scaled by how much slower the sizes near them were. Within the
// table that is interpolated; beyond an end it is that end's.
//
//     OperatorTables tables = read_operator_csv("gemm.csv");
//     spec.tables.add(tables);
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "shadowgraph/export.h"

namespace SHADOWGRAPH_API shadowgraph {

// A matrix product has m, n, k and batch: `batch` times (m x k) by (k x n). Anything else has `bytes` that it moves, and
// `flops` where it computes so much that its bytes do not say how long it takes.
struct MeasuredSize {
  int64_t batch = 0, m = 0, n = 0, k = 0;
  double bytes = 0;
  double flops = 0;
  double seconds = 0;  // 0 is none
  bool is_product() const { return m > 0; }
  friend bool operator==(const MeasuredSize&, const MeasuredSize&) = default;
};

struct OperatorTables {
  using BySize = std::vector<MeasuredSize>;  // all products, or all by bytes, or all by bytes and FLOPs; each size once
  std::map<std::string, std::map<c10::ScalarType, BySize>> by_name;

  bool empty() const { return by_name.empty(); }
  // Takes over what the other has; of a size that both have, what the other says.
  void add(const OperatorTables& other);
  friend bool operator==(const OperatorTables&, const OperatorTables&) = default;
};

// Reads lines of comma-separated values, after one with the columns' names, in any order:
//
//   - operator: an operator or a class; dtype: as torch calls it; seconds;
//   - m, n, k, and batch (1 if absent), for matrix products;
//   - bytes, and flops, for others.
//
// A size that is there several times takes the median. Throws ParseError, with file and line, and FileError.
OperatorTables read_operator_csv(const std::string& path);

}  // namespace shadowgraph
