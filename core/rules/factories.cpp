// Tensors made from numbers: indices of triangles, ranges whose bounds are tensors, keys of random numbers, tokens.
#include <ATen/native/Resize.h>

#include "core/rules/families.h"
#include "core/rules/registry.h"
#include "shadowgraph/shape_rules.h"

namespace shadowgraph::rules {
namespace {

using at::Scalar;
using at::Tensor;

// ---- Indices of a triangle

int64_t lower_triangle(int64_t rows, int64_t columns, int64_t offset) {
  int64_t count = 0;
  // Rows above the diagonal's start have none; then one more each, until all columns are in.
  const int64_t first = std::max<int64_t>(0, -offset);
  const int64_t full = std::min(rows, std::max(first, columns - offset));
  if (first < full) count += (full - first) * (first + offset + 1 + full + offset) / 2;
  if (full < rows) count += (rows - full) * columns;
  return count;
}

Tensor tril_indices(int64_t rows, int64_t columns, int64_t offset, std::optional<at::ScalarType> dtype,
                    std::optional<at::Layout> /*layout*/, std::optional<at::Device> /*device*/,
                    std::optional<bool> /*pinned*/) {
  TORCH_CHECK(rows >= 0 && columns >= 0, "row and col must be non-negative, got ", rows, " and ", columns);
  return rules::empty({2, lower_triangle(rows, columns, offset)}, dtype.value_or(c10::kLong));
}

Tensor triu_indices(int64_t rows, int64_t columns, int64_t offset, std::optional<at::ScalarType> dtype,
                    std::optional<at::Layout> /*layout*/, std::optional<at::Device> /*device*/,
                    std::optional<bool> /*pinned*/) {
  TORCH_CHECK(rows >= 0 && columns >= 0, "row and col must be non-negative, got ", rows, " and ", columns);
  return rules::empty({2, rows * columns - lower_triangle(rows, columns, offset - 1)}, dtype.value_or(c10::kLong));
}

// ---- Factories whose bounds are tensors: only the number of steps matters

Tensor steps(int64_t count, std::optional<at::ScalarType> dtype) {
  TORCH_CHECK(count >= 0, "number of steps must be non-negative");
  return rules::empty({count}, dtype.value_or(c10::get_default_dtype_as_scalartype()));
}

void check_bound(const Scalar& /*bound*/, const char* /*name*/) {}
void check_bound(const Tensor& bound, const char* name) {
  TORCH_CHECK(bound.dim() == 0, name, " only supports 0-dimensional start and end tensors, but got one with ",
              bound.dim(), " dimension(s).");
}

template <class Start, class End>
void check_bounds(const Start& start, const End& end, const char* name) {
  check_bound(start, name);
  check_bound(end, name);
}

// A result of as many elements keeps its shape.
Tensor& steps_into(Tensor& result, int64_t count) {
  TORCH_CHECK(count >= 0, "number of steps must be non-negative");
  if (result.numel() != count) at::native::resize_output(result, {count});
  return result;
}

template <class Start, class End>
Tensor linspace(const Start& start, const End& end, int64_t count, std::optional<at::ScalarType> dtype,
                std::optional<at::Layout> /*layout*/, std::optional<at::Device> /*device*/,
                std::optional<bool> /*pinned*/) {
  check_bounds(start, end, "linspace");
  return steps(count, dtype);
}

template <class Start, class End>
Tensor& linspace_out(const Start& start, const End& end, int64_t count, Tensor& result) {
  check_bounds(start, end, "linspace");
  return steps_into(result, count);
}

template <class Start, class End>
Tensor logspace(const Start& start, const End& end, int64_t count, double /*base*/, std::optional<at::ScalarType> dtype,
                std::optional<at::Layout> /*layout*/, std::optional<at::Device> /*device*/,
                std::optional<bool> /*pinned*/) {
  check_bounds(start, end, "logspace");
  return steps(count, dtype);
}

template <class Start, class End>
Tensor& logspace_out(const Start& start, const End& end, int64_t count, double /*base*/, Tensor& result) {
  check_bounds(start, end, "logspace");
  return steps_into(result, count);
}

// ---- Contents that do not matter

// The file is not looked at.
Tensor from_file(std::string_view /*name*/, std::optional<bool> /*shared*/, std::optional<int64_t> size,
                 std::optional<at::ScalarType> dtype, std::optional<at::Layout> /*layout*/,
                 std::optional<at::Device> /*device*/, std::optional<bool> /*pinned*/) {
  return rules::empty({size.value_or(0)}, dtype.value_or(c10::get_default_dtype_as_scalartype()));
}

// What orders assertions among other calls.
Tensor dependency_token(std::optional<at::ScalarType> dtype, std::optional<at::Layout> /*layout*/,
                        std::optional<at::Device> /*device*/, std::optional<bool> /*pinned*/,
                        std::optional<at::MemoryFormat> /*format*/) {
  return rules::empty({}, dtype.value_or(c10::get_default_dtype_as_scalartype()));
}

Tensor assertion_with_token(const Tensor& /*x*/, std::string_view /*message*/, const Tensor& token) {
  return rules::empty_like(token);
}

// ---- Random numbers from keys: two words each

void check_key(const Tensor& key, const char* name) {
  TORCH_CHECK(key.dim() >= 1 && key.size(-1) == 2, name, ": key must have shape (*batch, 2), got shape ", key.sizes());
  TORCH_CHECK(key.scalar_type() == c10::kUInt64, name, ": key must have dtype uint64, got ", key.scalar_type());
}

Tensor philox_key_split(const Tensor& key, int64_t count) {
  check_key(key, "_philox_key_split");
  TORCH_CHECK(count > 0, "_philox_key_split: num_splits must be positive, got ", count);
  c10::DimVector sizes{count};
  sizes.append(key.sizes().begin(), key.sizes().end());
  return rules::empty(sizes, key);
}

Tensor philox_key_fold_in(const Tensor& key, int64_t /*data*/) {
  check_key(key, "_philox_key_fold_in");
  return rules::empty_like(key);
}

}  // namespace

void register_factories(RuleRegistry& registry) {
  registry.add("aten::tril_indices", &tril_indices);
  registry.add("aten::triu_indices", &triu_indices);
  registry.add("aten::linspace.Tensor_Tensor", &linspace<Tensor, Tensor>);
  registry.add("aten::linspace.Tensor_Scalar", &linspace<Tensor, Scalar>);
  registry.add("aten::linspace.Scalar_Tensor", &linspace<Scalar, Tensor>);
  registry.add("aten::logspace.Tensor_Tensor", &logspace<Tensor, Tensor>);
  registry.add("aten::logspace.Tensor_Scalar", &logspace<Tensor, Scalar>);
  registry.add("aten::logspace.Scalar_Tensor", &logspace<Scalar, Tensor>);
  registry.add("aten::linspace.Tensor_Tensor_out", &linspace_out<Tensor, Tensor>);
  registry.add("aten::linspace.Tensor_Scalar_out", &linspace_out<Tensor, Scalar>);
  registry.add("aten::linspace.Scalar_Tensor_out", &linspace_out<Scalar, Tensor>);
  registry.add("aten::logspace.Tensor_Tensor_out", &logspace_out<Tensor, Tensor>);
  registry.add("aten::logspace.Tensor_Scalar_out", &logspace_out<Tensor, Scalar>);
  registry.add("aten::logspace.Scalar_Tensor_out", &logspace_out<Scalar, Tensor>);
  registry.add("aten::from_file", &from_file);
  registry.add("aten::_make_dep_token", &dependency_token);
  registry.add("aten::_functional_assert_async.msg", &assertion_with_token);
  registry.add("aten::_philox_key_split", &philox_key_split);
  registry.add("aten::_philox_key_fold_in", &philox_key_fold_in);
}

}  // namespace shadowgraph::rules
