// Classes of operators that move elements about: they reorder dimensions, regroup them in the same order, or take
// pieces.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "shadowgraph/profile/operand_shapes.h"
#include "sharding/rules/class_parts.h"

namespace shadowgraph {

std::vector<int64_t> strides_of(FactorBuilder& b, bool of_result) {
  const Graph& graph = b.call.graph();
  std::vector<int64_t> strides;
  const auto take = [&](ValueId value) {
    if (strides.empty()) strides.assign(graph.strides(value).begin(), graph.strides(value).end());
  };
  of_result ? graph.for_each_output(b.call.node(), take) : graph.for_each_input(b.call.node(), take);
  return strides;
}

namespace {

using DimList = std::vector<int64_t>;

// ---- Views that move dimensions

void move_dims(FactorBuilder& b, const std::vector<size_t>& from) {
  TensorFactors& self = self_of(b);
  name_dims(b, self);
  TensorFactors& result = b.result(0);
  if (from.size() != result.dims.size()) throw Misfit("its result has other dimensions");
  for (size_t d = 0; d < from.size(); ++d) result.dims[d] = self.dims.at(from[d]);
  view_passes_partial(b);
}

void permute(const RuleText& rule, FactorBuilder& b) {
  std::vector<size_t> from;
  for (const int64_t dim : b.call.integers("dims")) from.push_back(wrapped(dim, self_of(b).dims.size()));
  move_dims(b, from);
}

// transpose(dim0, dim1), swapaxes(axis0, axis1), t()
void transpose(const RuleText& rule, FactorBuilder& b) {
  const size_t rank = self_of(b).dims.size();
  std::vector<size_t> from(rank);
  std::iota(from.begin(), from.end(), size_t{0});
  const auto dim = [&](const char* name, const char* other, int64_t otherwise) {
    return wrapped(b.call.integer(name, b.call.integer(other, otherwise)), rank);
  };
  if (rank > 1) std::swap(from[dim("dim0", "axis0", 0)], from[dim("dim1", "axis1", 1)]);
  move_dims(b, from);
}

// squeeze, unsqueeze: dimensions of one element come and go. A dimension that goes if it has one element must not come
// to have one.
void squeeze(const RuleText& rule, FactorBuilder& b) {
  TensorFactors& self = self_of(b);
  TensorFactors& result = b.result(0);
  name_dims(b, self);
  if (self.dims.size() >= result.dims.size()) {
    DimList dims = b.call.integers("dim");
    if (b.call.position("dim") < 0) {
      dims.resize(self.dims.size());
      std::iota(dims.begin(), dims.end(), 0);
    }
    for (const int64_t dim : dims) {
      if (!self.dims.empty()) b.made.factors[self.dims[wrapped(dim, self.dims.size())][0]].whole = true;
    }
  }
  size_t at = 0;
  for (size_t d = 0; d < result.dims.size(); ++d) {
    if (result.sizes[d] == 1) continue;
    while (at < self.dims.size() && self.sizes[at] == 1) ++at;
    if (at == self.dims.size() || self.sizes[at] != result.sizes[d]) throw Misfit("its result has other dimensions");
    result.dims[d] = self.dims[at++];
  }
  view_passes_partial(b);
}

void expand(const RuleText& rule, FactorBuilder& b) {
  TensorFactors& result = b.result(0);
  name_dims(b, result);
  broadcast_to(self_of(b), result);
  if (b.call.position("size") >= 0) b.sizes("size");
  view_passes_partial(b);
}

// ---- Views that keep the order of elements

// Finds the factors that two shapes have in common, from the left: [6, 4] and [2, 12] are (2 3) 4 and 2 (3 4). Where
// they have none, all of both up to the next common boundary is whole: [2, 3] and [3, 2].
void fit_together(FactorBuilder& b, TensorFactors& from, TensorFactors& to) {
  const auto product = [](const DimList& sizes) { return product_of(Shape(sizes)); };
  if (product(from.sizes) != product(to.sizes) || product(from.sizes) == 0) {
    b.whole(from);
    b.whole(to);
    return;
  }
  size_t i = 0;
  size_t j = 0;
  int64_t left = 1;  // of from's dimension i - 1
  int64_t right = 1;
  size_t number = 0;
  while (true) {
    while (left == 1 && i < from.sizes.size()) left = from.sizes[i++];
    while (right == 1 && j < to.sizes.size()) right = to.sizes[j++];
    if (left == 1 && right == 1) break;
    const int64_t common = std::gcd(left, right);
    if (common > 1) {
      const FactorId f = b.factor(fmt::format("f{}", number++), common);
      from.dims[i - 1].push_back(f);
      to.dims[j - 1].push_back(f);
      left /= common;
      right /= common;
      continue;
    }
    int64_t before = left;
    int64_t behind = right;
    from.dims[i - 1].push_back(b.factor("_", left, true));
    to.dims[j - 1].push_back(b.factor("_", right, true));
    while (before != behind) {
      TensorFactors& shorter = before < behind ? from : to;
      size_t& at = before < behind ? i : j;
      int64_t& sum = before < behind ? before : behind;
      sum *= shorter.sizes[at];
      shorter.dims[at].push_back(b.factor("_", shorter.sizes[at], true));
      ++at;
    }
    left = right = 1;
  }
}

// Says whether elements lie in this order without gaps, as [2, 3] with strides {3, 1}.
bool is_dense(DimList sizes, DimList strides) {
  std::vector<size_t> order;
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] != 1) order.push_back(d);
  }
  std::sort(order.begin(), order.end(), [&](size_t a, size_t c) { return strides[a] < strides[c]; });
  int64_t expected = 1;
  for (const size_t d : order) {
    if (strides[d] != expected) return false;
    expected = saturating_multiply(expected, sizes[d]);
  }
  return true;
}

void reshape(const RuleText& rule, FactorBuilder& b) {
  TensorFactors& self = self_of(b);
  TensorFactors& result = b.result(0);
  // An operand whose elements have another order or gaps gives no plain view with strides as arguments.
  if (b.call.position("stride") >= 0) {
    const bool dense = is_dense(result.sizes, strides_of(b, true)) &&
                       (b.call.position("storage_offset") < 0 ||
                        (is_dense(self.sizes, strides_of(b, false)) && b.call.integer("storage_offset", 0) == 0));
    const DimList strides = strides_of(b, true);
    const DimList before = strides_of(b, false);
    const bool in_order =
        std::is_sorted(strides.rbegin(), strides.rend()) && std::is_sorted(before.rbegin(), before.rend());
    if (!dense || (b.call.position("storage_offset") >= 0 && !in_order)) {
      b.whole(self);
      b.whole(result);
      return;
    }
    b.strides("stride");
  }
  fit_together(b, self, result);
  for (const std::string_view argument : {"size", "shape", "sizes"}) {
    if (b.call.position(argument) >= 0 && b.call.position("dim") < 0) b.sizes(argument);
  }
  view_passes_partial(b);
}

// ---- Pieces

// Lets all dimensions but one pass.
void pass_others(FactorBuilder& b, TensorFactors& from, size_t dim, TensorFactors& to, size_t to_dim) {
  size_t at = 0;
  for (size_t d = 0; d < from.dims.size(); ++d) {
    if (d == dim) continue;
    if (at == to_dim) ++at;
    if (at >= to.dims.size() || to.sizes[at] != from.sizes[d]) throw Misfit("its result has other dimensions");
    if (from.dims[d].empty()) from.dims[d] = {b.factor(fmt::format("d{}", d), from.sizes[d])};
    to.dims[at++] = from.dims[d];
  }
}

// diagonal(offset, dim1, dim2), and its gradient: the others pass, in their order; the diagonal is last.
void diagonal(const RuleText& rule, FactorBuilder& b) {
  const bool backward = b.call.position("input_sizes") >= 0;
  TensorFactors& whole = backward ? b.result(0) : self_of(b);
  TensorFactors& part = backward ? self_of(b) : b.result(0);
  name_dims(b, whole);
  const size_t first = wrapped(b.call.integer("dim1", 0), whole.dims.size());
  const size_t second = wrapped(b.call.integer("dim2", 1), whole.dims.size());
  size_t at = 0;
  for (size_t d = 0; d < whole.dims.size(); ++d) {
    if (d == first || d == second) {
      b.made.factors[whole.dims[d][0]].whole = true;
    } else {
      part.dims.at(at++) = whole.dims[d];
    }
  }
  b.linear({{backward ? "grad_output" : "self"}});
}

// slice, slice_backward, narrow: a piece of equal pieces may be cut as all of them are: [0:64] of 128 is half of (2 x).
void piece(FactorBuilder& b, TensorFactors& whole, TensorFactors& part, size_t dim, int64_t start, int64_t step,
           std::string_view start_name, std::string_view length_name) {
  pass_others(b, whole, dim, part, dim);
  const int64_t size = whole.sizes[dim];
  const int64_t length = part.sizes[dim];
  if (step == 1 && length > 0 && size % length == 0 && start % length == 0) {
    const FactorId x = b.factor("x", length);
    whole.dims[dim] = {b.factor("n", size / length, true), x};
    if (size == length) whole.dims[dim] = {x};
    part.dims[dim] = {x};
    b.scaled(start_name, {x});
    b.scaled(length_name, {x});
    return;
  }
  whole.dims[dim] = {b.factor("_", size, true)};
  part.dims[dim] = {b.factor("_", length, true)};
}

int64_t start_of(FactorBuilder& b, int64_t size) {
  const int64_t start = b.call.integer("start", 0);
  return std::clamp<int64_t>(start < 0 ? start + size : start, 0, size);
}

void slice(const RuleText& rule, FactorBuilder& b) {
  TensorFactors& self = self_of(b);
  TensorFactors& result = b.result(0);
  const size_t dim = wrapped(b.call.integer("dim", 0), self.dims.size());
  if (dim >= self.dims.size()) throw Misfit("a tensor without dimensions");
  piece(b, self, result, dim, start_of(b, self.sizes[dim]), b.call.integer("step", 1), "start",
        b.call.position("end") >= 0 ? "end" : "length");
  view_passes_partial(b);
}

void slice_backward(const RuleText& rule, FactorBuilder& b) {
  TensorFactors& grad = self_of(b);
  TensorFactors& result = b.result(0);
  const size_t dim = wrapped(b.call.integer("dim", 0), result.dims.size());
  piece(b, result, grad, dim, start_of(b, result.sizes.at(dim)), b.call.integer("step", 1), "start", "end");
  b.sizes("input_sizes");
  b.linear({{"grad_output"}});
}

// Cuts equal pieces along `dim` of `whole`: (n x), each of them x. Unequal pieces are not cut there.
void equal_pieces(FactorBuilder& b, TensorFactors& whole, size_t dim, const std::vector<TensorFactors*>& parts,
                  FactorId* piece) {
  bool equal = !parts.empty();
  for (const TensorFactors* part : parts) equal = equal && part->sizes.at(dim) == parts[0]->sizes.at(dim);
  equal = equal && parts[0]->sizes[dim] * static_cast<int64_t>(parts.size()) == whole.sizes[dim];
  for (TensorFactors* part : parts) pass_others(b, whole, dim, *part, dim);
  if (!equal) {
    whole.dims[dim] = {b.factor("_", whole.sizes[dim], true)};
    for (TensorFactors* part : parts) part->dims[dim] = {b.factor("_", part->sizes[dim], true)};
    return;
  }
  *piece = b.factor("x", parts[0]->sizes[dim]);
  whole.dims[dim] = {b.factor("n", static_cast<int64_t>(parts.size()), true), *piece};
  if (parts.size() == 1) whole.dims[dim] = {*piece};
  for (TensorFactors* part : parts) part->dims[dim] = {*piece};
}

// split(split_size), split_with_sizes(split_sizes), chunk(chunks)
void split(const RuleText& rule, FactorBuilder& b) {
  TensorFactors& self = self_of(b);
  if (self.dims.empty()) throw Misfit("a tensor without dimensions");
  const size_t dim = wrapped(b.call.integer("dim", 0), self.dims.size());
  std::vector<TensorFactors*> parts;
  for (TensorFactors& result : b.made.results) parts.push_back(&result);
  constexpr FactorId kNone = 0xFFFF;
  FactorId piece = kNone;
  equal_pieces(b, self, dim, parts, &piece);
  if (piece != kNone) {
    for (const std::string_view argument : {"split_size", "split_sizes"}) {
      if (b.call.position(argument) >= 0) b.scaled(argument, {piece});
    }
  }
  view_passes_partial(b);
}

void cat(const RuleText& rule, FactorBuilder& b) {
  TensorFactors& result = b.result(0);
  const size_t dim = wrapped(b.call.integer("dim", 0), result.dims.size());
  std::vector<TensorFactors*> parts;
  for (TensorFactors& operand : b.made.operands) {
    if (operand.sizes.size() != 1 || operand.sizes[0] != 0) parts.push_back(&operand);  // the legacy empty one
  }
  if (parts.empty() || result.dims.empty()) throw Misfit("nothing to join");
  FactorId piece = 0;
  equal_pieces(b, result, dim, parts, &piece);
  passes_partial(b, b.call.signature().arguments.at(self_of(b).argument).name);
}

// constant_pad_nd: pairs from the last dimension on. A dimension with padding is not cut.
void pad(const RuleText& rule, FactorBuilder& b) {
  TensorFactors& self = self_of(b);
  TensorFactors& result = b.result(0);
  const DimList pads = b.call.integers("pad");
  name_dims(b, self);
  for (size_t d = 0; d < self.dims.size(); ++d) {
    const size_t pair = (self.dims.size() - 1 - d) * 2;
    if (pair + 1 < pads.size() && (pads[pair] != 0 || pads[pair + 1] != 0)) {
      b.made.factors[self.dims[d][0]].whole = true;
      result.dims.at(d) = {b.factor("_", result.sizes.at(d), true)};
    } else {
      result.dims.at(d) = self.dims[d];
    }
  }
}

// repeat(repeats): [2, x] of x. New dimensions come first.
void repeat(const RuleText& rule, FactorBuilder& b) {
  TensorFactors& self = self_of(b);
  TensorFactors& result = b.result(0);
  name_dims(b, self);
  if (result.dims.size() < self.dims.size()) throw Misfit("its result has fewer dimensions");
  const size_t more = result.dims.size() - self.dims.size();
  for (size_t d = 0; d < result.dims.size(); ++d) {
    const int64_t size = d < more ? 1 : self.sizes[d - more];
    if (size == 0 || result.sizes[d] % size != 0) throw Misfit("its result has other sizes");
    if (result.sizes[d] != size) result.dims[d] = {b.factor("r", result.sizes[d] / size, true)};
    if (d >= more) result.dims[d].push_back(self.dims[d - more][0]);
  }
}

constexpr std::array kViewClasses = std::to_array<ClassRow>({
    {"repeat", repeat},
    {"permute", permute},
    {"transpose", transpose},
    {"squeeze", squeeze},
    {"expand", expand},
    {"reshape", reshape},
    {"slice", slice},
    {"slice_backward", slice_backward},
    {"diagonal", diagonal},
    {"split", split},
    {"cat", cat},
    {"pad", pad},
});

}  // namespace

std::span<const ClassRow> view_classes() { return kViewClasses; }

}  // namespace shadowgraph
