// Operator classes: rules implemented in code instead of a pattern. A rule such as `reshape`, `cat` or `matmul` names
// no dimensions, since these follow from the call's sizes and lists.
//
// A builder fills the FactorBuilder of one call, and throws Misfit if the call cannot belong to the class; it then has
// no rule. The table of classes is at the end.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shadowgraph/profile/operator_costs.h"
#include "sharding/rules/node_factors.h"

namespace shadowgraph {
namespace {

struct ClassRow {
  std::string_view word;  // name in a rule: "reshape"
  ClassBuilder build;
};

// Returns a dimension counted from the front (-1 is the last). Throws Misfit beyond the rank; a tensor without
// dimensions has dimension 0, as in PyTorch.
size_t wrapped(int64_t dim, size_t rank) {
  const auto size = static_cast<int64_t>(std::max<size_t>(rank, 1));
  const int64_t at = dim < 0 ? dim + size : dim;
  if (at < 0 || at >= size) throw Misfit(fmt::format("dimension {} is out of range for rank {}", dim, rank));
  return static_cast<size_t>(at);
}

// Returns the first tensor operand, the source of a view. Throws Misfit without one.
TensorFactors& self_of(FactorBuilder& b) {
  if (b.made.operands.empty()) throw Misfit("the call has no tensor operand");
  return b.made.operands[0];
}

void name_dims(FactorBuilder& b, TensorFactors& tensor) {
  for (size_t d = 0; d < tensor.dims.size(); ++d) {
    if (tensor.dims[d].empty()) tensor.dims[d] = {b.factor(fmt::format("d{}", d), tensor.sizes[d])};
  }
}

// Passes partial values of every kind from the first operand to the results. Correct for operators that only move
// elements: each stays a part of the same sum or maximum.
void view_passes_partial(FactorBuilder& b) {
  const std::string& argument = b.call.signature().arguments.at(self_of(b).argument).name;
  b.linear({{argument}});
  b.monotone({{argument}}, false);
}

// Assigns the factors of `whole` to the tensor's dimensions, from the right. Dimensions of size 1 are replicated.
void broadcast_to(TensorFactors& tensor, const TensorFactors& whole) {
  const size_t rank = tensor.dims.size();
  if (rank > whole.dims.size()) throw Misfit("an operand has more dimensions than the result");
  for (size_t d = 0; d < rank; ++d) {
    const size_t of = whole.dims.size() - rank + d;
    if (tensor.sizes[d] == whole.sizes[of]) {
      tensor.dims[d] = whole.dims[of];
    } else if (tensor.sizes[d] != 1) {
      throw Misfit(fmt::format("sizes {} and {} cannot be broadcast", tensor.sizes[d], whole.sizes[of]));
    }
  }
}

// Returns the strides of the first result, or of the first operand.
std::vector<int64_t> strides_of(FactorBuilder& b, bool of_result) {
  const Graph& graph = b.call.graph();
  std::vector<int64_t> strides;
  const auto take = [&](ValueId value) {
    if (strides.empty()) strides.assign(graph.strides(value).begin(), graph.strides(value).end());
  };
  of_result ? graph.for_each_output(b.call.node(), take) : graph.for_each_input(b.call.node(), take);
  return strides;
}

using DimList = std::vector<int64_t>;

void move_dims(FactorBuilder& b, const std::vector<size_t>& from) {
  TensorFactors& self = self_of(b);
  name_dims(b, self);
  TensorFactors& result = b.result(0);
  if (from.size() != result.dims.size()) throw Misfit("the result has an unexpected rank");
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

// squeeze, unsqueeze: add and remove dimensions of size 1. A removed dimension must not have size 1 only by sharding.
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
    if (at == self.dims.size() || self.sizes[at] != result.sizes[d]) throw Misfit("the result has unexpected sizes");
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

// Finds the common factors of two shapes, from the left: [6, 4] and [2, 12] are (2 3) 4 and 2 (3 4). Where there are
// none, everything up to the next common boundary is not sharded: [2, 3] and [3, 2].
void fit_together(FactorBuilder& b, TensorFactors& from, TensorFactors& to) {
  const auto product = [](const DimList& sizes) { return product_of(Shape(sizes)); };
  if (product(from.sizes) != product(to.sizes) || product(from.sizes) == 0) {
    b.whole(from);
    b.whole(to);
    return;
  }
  size_t i = 0, j = 0;
  int64_t left = 1;  // remainder of from's dimension i - 1
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

// Returns true if elements are in this order without gaps, as [2, 3] with strides {3, 1}.
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
  // For an operand with another order or gaps, the strides arguments do not describe a plain view.
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

void pass_others(FactorBuilder& b, TensorFactors& from, size_t dim, TensorFactors& to, size_t to_dim) {
  size_t at = 0;
  for (size_t d = 0; d < from.dims.size(); ++d) {
    if (d == dim) continue;
    if (at == to_dim) ++at;
    if (at >= to.dims.size() || to.sizes[at] != from.sizes[d]) throw Misfit("the result has unexpected sizes");
    if (from.dims[d].empty()) from.dims[d] = {b.factor(fmt::format("d{}", d), from.sizes[d])};
    to.dims[at++] = from.dims[d];
  }
}

// diagonal(offset, dim1, dim2) and its gradient: the other dimensions pass in order; the diagonal is last.
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

// slice, slice_backward, narrow: one of several equal pieces can be sharded like all: [0:64] of 128 is half of (2 x).
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
  if (dim >= self.dims.size()) throw Misfit("slice of a tensor without dimensions");
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

// Splits dimension `dim` of `whole` into equal pieces: (n x), each of them x. Returns x, or nullopt for unequal pieces,
// which are not sharded there.
std::optional<FactorId> equal_pieces(FactorBuilder& b, TensorFactors& whole, size_t dim,
                                     const std::vector<TensorFactors*>& parts) {
  bool equal = !parts.empty();
  for (const TensorFactors* part : parts) equal = equal && part->sizes.at(dim) == parts[0]->sizes.at(dim);
  equal = equal && parts[0]->sizes[dim] * static_cast<int64_t>(parts.size()) == whole.sizes[dim];
  for (TensorFactors* part : parts) pass_others(b, whole, dim, *part, dim);
  if (!equal) {
    whole.dims[dim] = {b.factor("_", whole.sizes[dim], true)};
    for (TensorFactors* part : parts) part->dims[dim] = {b.factor("_", part->sizes[dim], true)};
    return std::nullopt;
  }
  const FactorId piece = b.factor("x", parts[0]->sizes[dim]);
  whole.dims[dim] = {b.factor("n", static_cast<int64_t>(parts.size()), true), piece};
  if (parts.size() == 1) whole.dims[dim] = {piece};
  for (TensorFactors* part : parts) part->dims[dim] = {piece};
  return piece;
}

// split(split_size), split_with_sizes(split_sizes), chunk(chunks)
void split(const RuleText& rule, FactorBuilder& b) {
  TensorFactors& self = self_of(b);
  if (self.dims.empty()) throw Misfit("split of a tensor without dimensions");
  const size_t dim = wrapped(b.call.integer("dim", 0), self.dims.size());
  std::vector<TensorFactors*> parts;
  for (TensorFactors& result : b.made.results) parts.push_back(&result);
  const std::optional<FactorId> piece = equal_pieces(b, self, dim, parts);
  for (const std::string_view argument : {"split_size", "split_sizes"}) {
    if (piece && b.call.position(argument) >= 0) b.scaled(argument, {*piece});
  }
  view_passes_partial(b);
}

void cat(const RuleText& rule, FactorBuilder& b) {
  TensorFactors& result = b.result(0);
  const size_t dim = wrapped(b.call.integer("dim", 0), result.dims.size());
  std::vector<TensorFactors*> parts;
  for (TensorFactors& operand : b.made.operands) {
    if (operand.sizes.size() != 1 || operand.sizes[0] != 0)
      parts.push_back(&operand);  // skip torch.cat's legacy empty tensors
  }
  if (parts.empty() || result.dims.empty()) throw Misfit("cat without tensors");
  equal_pieces(b, result, dim, parts);
  view_passes_partial(b);
}

// constant_pad_nd: pairs from the last dimension on. Padded dimensions are not sharded.
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
  if (result.dims.size() < self.dims.size()) throw Misfit("the result has too few dimensions");
  const size_t more = result.dims.size() - self.dims.size();
  for (size_t d = 0; d < result.dims.size(); ++d) {
    const int64_t size = d < more ? 1 : self.sizes[d - more];
    if (size == 0 || result.sizes[d] % size != 0) throw Misfit("the result has unexpected sizes");
    if (result.sizes[d] != size) result.dims[d] = {b.factor("r", result.sizes[d] / size, true)};
    if (d >= more) result.dims[d].push_back(self.dims[d - more][0]);
  }
}

void pointwise(const RuleText& rule, FactorBuilder& b) {
  TensorFactors& first = b.made.results.empty() ? self_of(b) : b.result(0);
  name_dims(b, first);
  for (TensorFactors& result : b.made.results) {
    if (&result != &first && result.sizes != first.sizes) throw Misfit("the results differ in size");
    result.dims = first.dims;
  }
  for (TensorFactors& operand : b.made.operands) {
    if (&operand != &first) broadcast_to(operand, first);
  }
}

// Likewise for each index of the lists: _foreach_mul_, _fused_adamw_. Lists as long as the first are matched by index;
// other tensors, and tensors of one element, are replicated.
void foreach_tensor(const RuleText& rule, FactorBuilder& b) {
  b.made.independent = true;
  const std::vector<TensorFactors*> first = b.operands(self_of(b).argument);
  for (size_t i = 0; i < first.size(); ++i) {
    for (size_t d = 0; d < first[i]->dims.size(); ++d) {
      first[i]->dims[d] = {b.factor(fmt::format("t{}.{}", i, d), first[i]->sizes[d])};
    }
  }
  bool whole = false;
  const auto follow = [&](const std::vector<TensorFactors*>& list) {
    for (size_t i = 0; i < list.size(); ++i) {
      TensorFactors& tensor = *list[i];
      if (list.size() == first.size() && tensor.sizes == first[i]->sizes) {
        tensor.dims = first[i]->dims;
      } else {  // a tensor of several elements is read as a whole
        whole |= std::ranges::any_of(tensor.sizes, [](int64_t size) { return size != 1; });
      }
    }
  };
  for (size_t i = 0; i < b.call.signature().arguments.size(); ++i) {
    if (i != self_of(b).argument) follow(b.operands(static_cast<uint16_t>(i)));
  }
  for (size_t r = 0; r < b.call.signature().returns.size(); ++r) {
    std::vector<TensorFactors*> list;
    for (TensorFactors& result : b.made.results) {
      if (result.argument == r) list.push_back(&result);
    }
    if (!list.empty()) follow(list);
  }
  for (Factor& factor : b.made.factors) factor.whole |= whole;
}

void factory(const RuleText& rule, FactorBuilder& b) {
  TensorFactors& made = b.result(0);
  name_dims(b, made);
  for (TensorFactors& operand : b.made.operands) {
    if (operand.sizes == made.sizes) operand.dims = made.dims;
  }
  if (b.call.position("size") >= 0) b.sizes("size");
  if (b.call.position("stride") >= 0) b.strides("stride");
}

// A result like another tensor does not read that tensor, so a partial one is accepted too.
void like(const RuleText& rule, FactorBuilder& b) {
  TensorFactors& made = b.result(0);
  TensorFactors& self = self_of(b);
  name_dims(b, made);
  if (b.call.position("size") >= 0) {
    factory(rule, b);
    if (self.sizes != made.sizes) b.whole(self);
  } else if (self.sizes == made.sizes) {
    self.dims = made.dims;
  }
  for (const PartialOp op : {PartialOp::kSum, PartialOp::kAverage, PartialOp::kMax, PartialOp::kMin}) {
    AxisStrategy strategy{.name = std::string(to_string(op))};
    strategy.operands.assign(b.made.tensors, Placement::partial(op));
    strategy.results.assign(b.made.results.size(), Placement::replicate());
    b.made.partial.push_back(std::move(strategy));
  }
}

// The words of the rule give the treatment of reduced dimensions:
//
//     reduction sum    results are partial over sharded reduced dimensions, and partial operands pass through
//     reduction count  the same, but the sum is not linear in the operand
//     reduction whole  reduced dimensions are not sharded
void reduction(const RuleText& rule, FactorBuilder& b) {
  TensorFactors& self = self_of(b);
  std::vector<bool> reduced(self.dims.size(), false);
  const DimList dims = b.call.integers(b.call.position("dim") >= 0 ? "dim" : "dims");
  for (const int64_t dim : dims) {
    if (!reduced.empty()) reduced[wrapped(dim, reduced.size())] = true;
  }
  if (dims.empty()) reduced.assign(reduced.size(), true);
  const std::string_view word = rule.words.empty() ? std::string_view() : rule.words[0];
  const bool counts = word == "count";
  const std::optional<PartialOp> op = counts ? PartialOp::kSum : find_named<PartialOp>(word);
  name_dims(b, self);
  for (size_t d = 0; d < reduced.size(); ++d) {
    if (!reduced[d]) continue;
    Factor& factor = b.made.factors[self.dims[d][0]];
    factor.whole = !op.has_value();
    if (op) factor.op = *op;
  }
  for (TensorFactors& result : b.made.results) {
    const bool kept = result.dims.size() == self.dims.size();
    size_t at = 0;
    for (size_t d = 0; d < self.dims.size(); ++d) {
      if (reduced[d]) {
        at += kept ? 1 : 0;
        continue;
      }
      if (at >= result.dims.size() || result.sizes[at] != self.sizes[d])
        throw Misfit("the result has unexpected sizes");
      result.dims[at++] = self.dims[d];
    }
  }
  const std::string argument = b.call.signature().arguments.at(self.argument).name;
  if (!counts && (op == PartialOp::kSum || op == PartialOp::kAverage)) b.linear({{argument}});
  if (op == PartialOp::kMax || op == PartialOp::kMin) {
    // A maximum of partial maxima is a partial maximum; not so for minima.
    b.monotone({{argument}}, false);
    std::erase_if(b.made.partial, [&](const AxisStrategy& strategy) { return strategy.name != to_string(*op); });
  }
}

void matmul(const RuleText& rule, FactorBuilder& b) {
  if (b.made.operands.size() < 2) throw Misfit("matmul needs two tensors");
  TensorFactors& left = b.made.operands[0];
  TensorFactors& right = b.made.operands[1];
  TensorFactors& result = b.result(0);
  const size_t rank = result.dims.size();
  name_dims(b, result);
  const size_t matrix = (left.dims.size() > 1 ? 1U : 0U) + (right.dims.size() > 1 ? 1U : 0U);
  if (left.dims.empty() || right.dims.empty() || rank < matrix) throw Misfit("matmul of a tensor without dimensions");
  const FactorId k = b.factor("k", left.sizes.back());
  left.dims.back() = {k};
  right.dims[right.dims.size() > 1 ? right.dims.size() - 2 : 0] = {k};
  if (left.dims.size() > 1) left.dims[left.dims.size() - 2] = result.dims[rank - matrix];
  if (right.dims.size() > 1) right.dims.back() = result.dims[rank - 1];
  for (TensorFactors* tensor : {&left, &right}) {
    const size_t batches = tensor->dims.size() > 2 ? tensor->dims.size() - 2 : 0;
    if (batches + matrix > rank) throw Misfit("the result has too few dimensions");
    for (size_t d = 0; d < batches; ++d) {
      const size_t of = rank - matrix - batches + d;
      if (tensor->sizes[d] == result.sizes[of]) tensor->dims[d] = result.dims[of];
    }
  }
}

// Grouped products: _grouped_mm. A 2-d operand has its groups one after another, ending at `offs`. The dimension along
// which groups are concatenated cannot be sharded, nor can the groups themselves.
//
//     self [m k]    mat2 [g k n]  -> [m n]     m, g whole
//     self [g m k]  mat2 [k n]    -> [m n]     n, g whole
//     self [m k]    mat2 [k n]    -> [g m n]   k, g whole
//     self [g m k]  mat2 [g k n]  -> [g m n]
//
// The kernels require rows and columns aligned to 16 bytes, so dimensions are split in multiples of 16 bytes.
void grouped_product(const RuleText& rule, FactorBuilder& b) {
  TensorFactors* const left = b.operand("self");
  TensorFactors* const right = b.operand("mat2");
  TensorFactors& result = b.result(0);
  if (left == nullptr || right == nullptr) throw Misfit("a grouped product needs two tensors");
  for (const TensorFactors* tensor : {left, right}) {
    if (tensor->dims.size() != 2 && tensor->dims.size() != 3) throw Misfit("grouped products take 2-d or 3-d tensors");
  }
  const bool flat_left = left->dims.size() == 2;
  const bool flat_right = right->dims.size() == 2;
  const auto aligned = [&](const char* name, int64_t extent, c10::ScalarType dtype, bool whole) {
    const int64_t step = 16 / static_cast<int64_t>(c10::elementSize(dtype));
    const bool divides = extent % step == 0;
    std::vector<FactorId> factors{b.factor(name, divides ? extent / step : extent, whole || !divides)};
    if (divides) factors.push_back(b.factor(fmt::format("{}_step", name), step, true));
    return factors;
  };
  const TensorFactors& grouped = !flat_left ? *left : !flat_right ? *right : result;
  const std::vector<FactorId> g{b.factor("g", grouped.sizes[0], flat_left || flat_right)};
  const std::vector<FactorId> m =
      aligned("m", left->sizes[left->sizes.size() - 2], left->dtype, flat_left && !flat_right);
  const std::vector<FactorId> k = aligned("k", left->sizes.back(), left->dtype, flat_left && flat_right);
  const std::vector<FactorId> n = aligned("n", right->sizes.back(), right->dtype, flat_right && !flat_left);
  left->dims = flat_left ? std::vector{m, k} : std::vector{g, m, k};
  right->dims = flat_right ? std::vector{k, n} : std::vector{g, k, n};
  result.dims = flat_left == flat_right ? std::vector{g, m, n} : std::vector{m, n};
  if (TensorFactors* const offsets = b.operand("offs")) b.whole(*offsets);
  // A scale per row or column is sharded with it. Other scales prevent sharding.
  for (const auto& [name, by] : {std::pair("scale_a", &m), std::pair("scale_b", &n)}) {
    TensorFactors* const scales = b.operand(name);
    if (scales == nullptr) continue;
    const int64_t lines = by == &m ? left->sizes[left->sizes.size() - 2] : right->sizes.back();
    const bool groups = !(by == &m ? flat_left : flat_right);
    if (scales->sizes.size() == (groups ? 2U : 1U) && scales->sizes.back() == lines) {
      if (groups) scales->dims[0] = g;
      scales->dims.back() = *by;
    } else {
      for (Factor& factor : b.made.factors) factor.whole = true;
    }
  }
}

// Uses the equation as the pattern: "bij,bjk->bik".
void einsum(const RuleText& rule, FactorBuilder& b) {
  const Argument* equation = b.call.argument("equation");
  if (equation == nullptr || equation->kind != ArgumentKind::kString) throw Misfit("einsum without an equation");
  std::string text = b.call.graph().text(equation->string);
  std::erase(text, ' ');
  const size_t arrow = text.find("->");
  if (arrow == text.npos || text.find('.') != text.npos) throw Misfit("einsum without an arrow, or with an ellipsis");
  std::array<int64_t, 256> factors{};
  factors.fill(-1);
  const auto spread = [&](std::string_view letters, TensorFactors& tensor) {
    if (letters.size() != tensor.dims.size()) throw Misfit("a tensor's rank differs from its einsum subscripts");
    for (size_t d = 0; d < letters.size(); ++d) {
      int64_t& factor = factors[static_cast<unsigned char>(letters[d])];
      if (factor < 0) factor = b.factor(std::string(1, letters[d]), tensor.sizes[d]);
      if (b.made.factors[static_cast<size_t>(factor)].extent != tensor.sizes[d]) throw Misfit("einsum that broadcasts");
      tensor.dims[d] = {static_cast<FactorId>(factor)};
    }
  };
  std::string_view rest = std::string_view(text).substr(0, arrow);
  for (TensorFactors& operand : b.made.operands) {
    const size_t comma = std::min(rest.find(','), rest.size());
    spread(rest.substr(0, comma), operand);
    rest.remove_prefix(std::min(comma + 1, rest.size()));
  }
  spread(std::string_view(text).substr(arrow + 2), b.result(0));
}

// The indexed dimensions of self, and the position of the indices' dimensions in the result.
struct Indexed {
  std::vector<bool> dims;  // of self
  size_t rank = 0;         // of the broadcast indices
  size_t place = 0;        // position of their first dimension in the result
  std::vector<TensorFactors*> indices;
};

Indexed indexed(FactorBuilder& b) {
  Indexed found;
  TensorFactors& self = self_of(b);
  found.dims.assign(self.dims.size(), false);
  const Argument* list = b.call.argument("indices");
  if (list == nullptr || list->kind != ArgumentKind::kList) throw Misfit("the call has no indices");
  found.indices = b.operands(static_cast<uint16_t>(b.call.position("indices")));
  size_t d = 0, runs = 0;
  for (const Argument& index : b.call.graph().list(*list)) {
    if (d >= self.dims.size()) throw Misfit("the call has more indices than dimensions");
    found.dims[d] = index.kind != ArgumentKind::kNone;
    if (found.dims[d] && (d == 0 || !found.dims[d - 1]) && runs++ == 0) found.place = d;
    ++d;
  }
  if (runs > 1) found.place = 0;  // not adjacent: the indices' dimensions come first
  for (const TensorFactors* index : found.indices) {
    if (index->operand < 0 || !c10::isIntegralType(index->dtype, false))
      throw Misfit("an index is not a tensor of integers");
    found.rank = std::max(found.rank, index->dims.size());
  }
  return found;
}

void index(const RuleText& rule, FactorBuilder& b) {
  const Indexed by = indexed(b);
  TensorFactors& self = self_of(b);
  TensorFactors& result = b.result(0);
  name_dims(b, result);
  size_t at = 0;
  for (size_t d = 0; d < self.dims.size(); ++d) {
    if (at == by.place) at += by.rank;
    if (by.dims[d]) continue;
    if (at >= result.dims.size() || self.sizes[d] != result.sizes[at]) throw Misfit("the result has unexpected sizes");
    self.dims[d] = result.dims[at++];
  }
  for (TensorFactors* tensor : by.indices) {
    for (size_t d = 0; d < tensor->dims.size(); ++d) {
      const size_t of = by.place + by.rank - tensor->dims.size() + d;
      if (of >= result.dims.size()) throw Misfit("the result has unexpected sizes");
      if (tensor->sizes[d] == result.sizes[of]) tensor->dims[d] = result.dims[of];
    }
  }
}

// Passes dimensions that are not indexed. Which of two values written to the same place wins is undefined.
void index_put(const RuleText& rule, FactorBuilder& b) {
  const Indexed by = indexed(b);
  TensorFactors& self = self_of(b);
  TensorFactors& result = b.result(0);
  TensorFactors* values = b.operand("values");
  if (values == nullptr) throw Misfit("the call has no values");
  name_dims(b, self);
  result.dims = self.dims;
  // The dimensions of the values, as in the result of indexing.
  std::vector<std::optional<size_t>> taken;
  for (size_t d = 0; d < self.dims.size(); ++d) {
    if (taken.size() == by.place) taken.insert(taken.end(), by.rank, std::nullopt);
    if (by.dims[d]) {
      b.made.factors[self.dims[d][0]].whole = true;
    } else {
      taken.push_back(d);
    }
  }
  if (taken.size() == by.place) taken.insert(taken.end(), by.rank, std::nullopt);
  const size_t rank = values->dims.size();
  if (rank > taken.size()) throw Misfit("the values have more dimensions than the indexed result");
  for (size_t d = 0; d < rank; ++d) {
    const std::optional<size_t> of = taken[taken.size() - rank + d];
    if (of && values->sizes[d] == self.sizes[*of]) values->dims[d] = self.dims[*of];
  }
}

// An sg::alias is the same tensor as its source, or an unknown part of its storage.
void alias(const RuleText& rule, FactorBuilder& b) {
  if (self_of(b).sizes != b.result(0).sizes || strides_of(b, false) != strides_of(b, true)) {
    throw Misfit("the alias has another geometry than its source");
  }
  pointwise(rule, b);
  view_passes_partial(b);
}

void placeholder(const RuleText& rule, FactorBuilder& b) {
  for (TensorFactors& result : b.made.results) name_dims(b, result);
}

// A gradient has the layout of its parameter, an output any layout.
void end(const RuleText& rule, FactorBuilder& b) {
  for (TensorFactors& operand : b.made.operands) {
    const TensorFactors& first = b.made.operands[0];
    if (b.call.position("gradient") >= 0 && operand.sizes == first.sizes && &operand != &first) {
      operand.dims = first.dims;
    } else {
      name_dims(b, operand);
    }
  }
}

void whole(const RuleText& rule, FactorBuilder& b) {
  for (TensorFactors& operand : b.made.operands) b.whole(operand);
  for (TensorFactors& result : b.made.results) b.whole(result);
}

constexpr std::array kClasses = std::to_array<ClassRow>({
    {"pointwise", pointwise},
    {"foreach", foreach_tensor},
    {"matmul", matmul},
    {"einsum", einsum},
    {"grouped_product", grouped_product},
    {"index", index},
    {"index_put", index_put},
    {"alias", alias},
    {"factory", factory},
    {"like", like},
    {"reduction", reduction},
    {"whole", whole},
    {"placeholder", placeholder},
    {"end", end},
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

ClassBuilder find_class(std::string_view word) {
  const auto found = std::ranges::find(kClasses, word, &ClassRow::word);
  return found != kClasses.end() ? found->build : nullptr;
}

}  // namespace shadowgraph
