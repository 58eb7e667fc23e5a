#include "kernels/compiler/operator_table.h"

#include <ATen/Version.h>

#include <algorithm>
#include <initializer_list>
#include <string>
#include <unordered_map>

#include "ir/operators/operator_facts.h"
#include "ir/operators/operator_name.h"

namespace shadowgraph {
namespace {

struct NoKernelReason {
  std::string_view why;
  std::initializer_list<std::string_view> names;  // without namespace, overload and trailing underscore; or a prefix*
};

const NoKernelReason kNoKernel[] = {
    {"it is a matrix product, for which libtorch uses BLAS",
     {"mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot", "addr", "matmul", "linear", "_addmm*",
      "einsum", "_scaled_mm*", "_grouped_mm"}},
    {"it is a convolution, for which libtorch uses oneDNN",
     {"conv1d*", "conv2d*", "conv3d*", "conv_*", "convolution*", "_convolution*", "_conv_depthwise*", "cudnn_conv*",
      "mkldnn_conv*", "miopen_conv*", "slow_conv*", "thnn_conv*"}},
    {"it is attention, for which libtorch has fused kernels",
     {"_scaled_dot_product*", "scaled_dot_product*", "_flash_attention*", "_efficient_attention*",
      "_cudnn_attention*"}},
    {"it is a recurrent layer, for which libtorch has fused kernels",
     {"lstm*", "gru*", "rnn_*", "_thnn_fused*", "_cudnn_rnn*", "mkldnn_rnn*", "_lstm_mps"}},
    {"it is a scan, which the loop language does not support",
     {"cumsum", "cumprod", "logcumsumexp", "cummax", "cummin", "_cummax_helper", "_cummin_helper"}},
    {"it returns indices, which reductions of the loop language do not support",
     {"argmax", "argmin", "max", "min", "sort", "argsort", "topk", "kthvalue", "median", "nanmedian", "mode", "aminmax",
      "searchsorted", "bucketize"}},
    {"it writes at data-dependent positions, so two rows may write the same element",
     {"scatter*", "index_add", "index_put", "_index_put_impl", "_unsafe_index_put", "index_copy", "index_fill",
      "index_reduce", "masked_scatter", "put", "embedding_dense_backward", "embedding_bag", "_embedding_bag*", "histc",
      "bincount"}},
    {"it reduces inner dimensions, which the loop language does not support",
     {"native_batch_norm*", "_native_batch_norm*", "_batch_norm*", "batch_norm*", "cudnn_batch_norm*",
      "native_group_norm*", "group_norm"}},
    {"it reads windows of elements, which the loop language does not support",
     {"max_pool*", "avg_pool*", "adaptive_*", "_adaptive_*", "fractional_*", "upsample_*", "_upsample_*", "im2col",
      "col2im", "unfold_backward", "grid_sampler*", "reflection_pad*", "replication_pad*", "constant_pad_nd"}},
};

bool is_of(std::string_view name, std::string_view pattern) {
  if (pattern.ends_with('*')) return name.starts_with(pattern.substr(0, pattern.size() - 1));
  return name == pattern;
}

}  // namespace

std::string_view why_no_kernel(const Target& target) {
  if (target.kind() != TargetKind::kOperator) return "it is not a libtorch operator";
  const std::string& full = target.name();
  if (namespace_of(full) != "aten") return "it is not an ATen operator";
  if (overload_of(full).ends_with("out")) return "it is an out= form, and kernels allocate their results";
  const std::string_view name = without_underscore(short_name(full));
  for (const NoKernelReason& reason : kNoKernel) {
    if (std::ranges::any_of(reason.names, [&](std::string_view each) { return is_of(name, each); })) return reason.why;
  }
  const OperatorFacts& facts = target.facts();
  if (facts.random || facts.draws) return "it draws random numbers from libtorch's generator";
  if (facts.host_read) return "it copies data to the host";
  if (facts.is_view) return "it is a view and computes nothing";
  if (facts.geometry_only || facts.uninitialized) return "its result depends only on sizes";
  return kNoRow;
}

bool has_two_bytes(ScalarType dtype) { return dtype == ScalarType::Half || dtype == ScalarType::BFloat16; }

Typed multiply_add(Typed a, Typed b, Typed c) {
  // Eager's kernels for these are compiled with FP contraction.
  static const bool contracts = at::get_cpu_capability() != "DEFAULT" && at::get_cpu_capability() != "NO AVX";
  return c10::isFloatingType(c.dtype) && contracts ? apply(Operation::kMultiplyAdd, a, b, c) : a * b + c;
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
