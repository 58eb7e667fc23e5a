// Plans a kernel for nodes of a graph. The operator table gives the computation of each node, all nodes share one
// iteration space, and operands are identified by their location.
//
// The space has the sizes of the reduced tensor, or of the results without a reduction. All reductions have the same
// dimensions. A node computes elements of the space, or of a reduction's result, with the reduced dimensions of size 1
// or without them. So the dimensions of a tensor correspond to some dimensions of the space, the same ones for all its
// readers:
//
//     x [8, 16]    m = mean(x, 1) [8]     y = m * scale [8]     z = amax(x, 1, keepdim) [8, 1]     x - z [8, 16]
//     0, 1         0                      0                     0, -                               0, 1
//
// Tensor contents are tracked by place (storage, offset, geometry), not by value: after x.add_(y) the older value of x
// reads the sum. So a place has one current expression, and a written storage has only one place.
#include "kernels/compiler/lowering.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <tuple>
#include <vector>

#include "kernels/compiler/operator_table.h"
#include "shadowgraph/kernels/kernel.h"

namespace shadowgraph {
namespace {

struct IterationSpace {
  std::vector<int64_t> sizes;
  std::vector<bool> is_reduced;  // by dimension
  bool reduces = false;          // also if the reduced dimensions have size 1, or if there are none
  // By operand of the program: its strides along all dimensions of the space, 0 where it is broadcast.
  std::vector<std::vector<int64_t>> strides;
  std::vector<bool> is_whole;
};

using Dims = std::vector<int64_t>;

bool uses(std::span<const KernelExpression> expressions, KernelOperation operation) {
  return std::ranges::find(expressions, operation, &KernelExpression::operation) != expressions.end();
}

// Returns whether an operand is constant along the reduced dimensions.
bool is_of_row(const IterationSpace& space, const Dims& strides) {
  for (size_t d = 0; d < strides.size(); ++d) {
    if (space.is_reduced[d] && space.sizes[d] != 1 && strides[d] != 0) return false;
  }
  return space.reduces;
}

// Merges adjacent dimensions that all operands traverse like one dimension.
void merge(std::vector<uint32_t>& dims, IterationSpace& space) {
  std::vector<uint32_t> out;
  for (const uint32_t d : dims) {
    const auto steps_on = [&](const Dims& strides) { return strides[out.back()] == strides[d] * space.sizes[d]; };
    if (out.empty() || !std::ranges::all_of(space.strides, steps_on)) {
      out.push_back(d);
      continue;
    }
    space.sizes[out.back()] *= space.sizes[d];
    for (Dims& strides : space.strides) strides[out.back()] = strides[d];
  }
  dims = std::move(out);
}

// Returns whether some non-broadcast operand is contiguous along the last of these dimensions.
bool is_dense(const std::vector<uint32_t>& dims, const IterationSpace& space) {
  for (size_t k = 0; k < space.strides.size(); ++k) {
    if (!dims.empty() && space.strides[k][dims.back()] == 1 && space.is_whole[k]) return true;
  }
  return false;
}

// Sets the dimensions in plan and program: ranks, layouts, sizes, strides, the range. The program must have its
// expressions and stores. Throws UnsupportedError if it uses column indices other than the row's.
void arrange_loops(IterationSpace space, LoweredKernel& plan) {
  KernelProgram& program = plan.program;
  for (size_t k = 0; k < space.strides.size(); ++k) program.operands[k].of_row = is_of_row(space, space.strides[k]);
  const size_t rank = space.sizes.size();
  std::vector<uint32_t> dims;  // of more than one element
  std::vector<uint32_t> reduced;
  for (uint32_t d = 0; d < rank; ++d) {
    if (space.sizes[d] != 1) (space.is_reduced[d] ? reduced : dims).push_back(d);
  }
  if (!space.reduces) {
    // The row is the dimension along which results are contiguous.
    const Dims& lead = space.strides[program.stores[0].operand];
    std::ranges::stable_sort(dims, std::greater(), [&](uint32_t d) { return lead[d]; });
  }
  merge(dims, space);
  merge(reduced, space);
  // The row is reduced if operands are contiguous along it, or if no other dimension is left.
  program.columns = !reduced.empty() && !dims.empty() && !is_dense(reduced, space) && is_dense(dims, space);
  std::vector<uint32_t> row;
  auto& of_rows = space.reduces && !program.columns ? reduced : dims;
  if (!of_rows.empty()) {
    row = {of_rows.back()};
    of_rows.pop_back();
  }
  if (uses(program.expressions, KernelOperation::kColumn) && (program.columns || row.empty() || row[0] + 1 != rank)) {
    throw UnsupportedError("column indices of a dimension other than the row");
  }
  program.outer_rank = static_cast<uint32_t>(dims.size());
  program.reduced_rank = static_cast<uint32_t>(reduced.size());
  dims.insert(dims.end(), reduced.begin(), reduced.end());
  for (const uint32_t d : dims) plan.sizes.push_back(space.sizes[d]);
  plan.sizes.push_back(row.empty() ? 1 : space.sizes[row[0]]);
  for (size_t k = 0; k < space.strides.size(); ++k) {
    for (const uint32_t d : dims) plan.strides.push_back(space.strides[k][d]);
    const int64_t single = space.reduces ? 0 : 1;  // the row is one element
    const int64_t along = row.empty() ? single : space.strides[k][row[0]];
    plan.strides.push_back(along);
    program.operands[k].layout = along == 0   ? KernelLayout::kBroadcast
                                 : along == 1 ? KernelLayout::kContiguous
                                              : KernelLayout::kStrided;
  }
  int64_t rows = 1;
  for (uint32_t d = 0; d < program.outer_rank; ++d) rows *= plan.sizes[d];
  int64_t work = 1;  // per element of the row
  for (uint32_t d = program.outer_rank; d < dims.size(); ++d) work *= plan.sizes[d];
  const bool by_elements = program.runs_by_elements();
  plan.range = by_elements ? plan.sizes.back() : rows;
  plan.row_work = by_elements ? work : work * std::max<int64_t>(plan.sizes.back(), 1);
  if (plan.sizes.back() == 0) plan.range = 0;
}

struct PlacePlan {
  ValueId value;  // the first value at this place
  bool fresh = false;
  bool used = false;  // read or written by the kernel
  bool written = false;
  bool known = false;  // `content` has its expression
  bool gathered = false;
  // Maps its dimensions to those of the space; -1 for size 1 or gathered dimensions. Empty before the first use.
  std::optional<Dims> dims;
  Typed content;
  uint32_t operand = 0;
};

class Planner {
 public:
  Planner(const Graph& graph, std::span<const NodeId> nodes, const KernelOptions& options,
          const std::function<bool(ValueId)>& escapes, std::optional<size_t> part)
      : graph_(graph), nodes_(nodes), options_(options), escapes_(escapes), part_(part), build_(plan_.program) {}

  LoweredKernel run() {
    find_space();
    for (const NodeId node : nodes_) add(node);
    store();
    arrange();
    plan_.scalars = build_.scalars();
    plan_.scalar_arguments = build_.scalar_arguments();
    std::string name = nodes_.size() == 1 ? graph_.target(nodes_[0]).name() : "group";
    std::ranges::replace(name, '.', '_');
    plan_.name = std::move(name);
    return std::move(plan_);
  }

 private:
  using PlaceKey = std::tuple<uint32_t, int64_t, c10::ScalarType, Dims, Dims>;

  Dims sizes_of(ValueId v) const { return {graph_.sizes(v).begin(), graph_.sizes(v).end()}; }
  Dims strides_of(ValueId v) const { return {graph_.strides(v).begin(), graph_.strides(v).end()}; }

  PlacePlan& place_of(ValueId v) {
    const Value& value = graph_.value(v);
    if (value.kind != ValueKind::kTensor || value.layout != c10::kStrided || !value.storage.valid()) {
      throw UnsupportedError("an operand that is not a dense tensor");
    }
    if (device_ && *device_ != value.device()) throw UnsupportedError("operands on several devices");
    device_ = value.device();
    PlaceKey key(value.storage.index, value.offset, value.dtype, sizes_of(v), strides_of(v));
    const auto [it, is_new] = places_.try_emplace(std::move(key), static_cast<uint32_t>(order_.size()));
    if (is_new) {
      order_.push_back({.value = v});
      in_storage_[value.storage.index].push_back(it->second);
    }
    by_value_[v.index] = it->second;
    return order_[it->second];
  }

  // OperatorCall::Content.
  Typed content(ValueId v, const Dims* dims) {
    PlacePlan& place = place_of(v);
    if (place.gathered) throw UnsupportedError("a tensor that is both gathered from and read elementwise");
    set_dims(place, dims == nullptr ? along(sizes_of(v), node_dims_) : placed(sizes_of(v), *dims));
    if (!place.known) {
      check_unwritten(v, place);
      use(place);
      place.content = build_.load(place.operand, graph_.value(v).dtype);
      place.known = true;
    }
    return place.content;
  }

  // OperatorCall::Source.
  uint32_t source(ValueId v, const Dims& dims) {
    PlacePlan& place = place_of(v);
    if (place.written || place.known)
      throw UnsupportedError("a gather from a tensor that is computed or written in the kernel");
    place.gathered = true;
    set_dims(place, placed(sizes_of(v), dims));
    check_unwritten(v, place);
    use(place);
    return place.operand;
  }

  // Maps dimensions of the current result to those of the space; -1 stays -1.
  Dims placed(const Dims& sizes, const Dims& dims) const {
    Dims out(dims.size(), -1);
    for (size_t d = 0; d < dims.size(); ++d) {
      if (dims[d] >= 0 && sizes[d] != 1) out[d] = node_dims_[static_cast<size_t>(dims[d])];
    }
    return out;
  }

  // Returns the dimensions of the space for `sizes`, broadcast to the dimensions `to`.
  Dims along(const Dims& sizes, const Dims& to) const {
    if (sizes.size() > to.size()) throw UnsupportedError("an operand of higher rank");
    const size_t shift = to.size() - sizes.size();
    Dims out(sizes.size(), -1);
    for (size_t d = 0; d < sizes.size(); ++d) {
      if (sizes[d] == 1) continue;
      out[d] = to[d + shift];
      if (space_[static_cast<size_t>(out[d])] != sizes[d])
        throw UnsupportedError("an operand that does not broadcast to the result");
    }
    return out;
  }

  static void set_dims(PlacePlan& place, Dims dims) {
    if (place.dims && *place.dims != dims) throw UnsupportedError("a tensor that is read with different dimensions");
    place.dims = std::move(dims);
  }

  // Rejects reads of a place that a write to another place of the storage may have changed.
  void check_unwritten(ValueId v, const PlacePlan& place) {
    for (const uint32_t other : in_storage_[graph_.value(v).storage.index]) {
      if (&order_[other] != &place && order_[other].written) throw UnsupportedError("a view of a written tensor");
    }
  }

  void use(PlacePlan& place) {
    if (place.used) return;
    place.used = true;
    place.operand = static_cast<uint32_t>(plan_.inputs.size());
    plan_.inputs.push_back(place.value);
    plan_.program.operands.push_back({.dtype = graph_.value(place.value).dtype});
  }

  const KernelRow& row_of(NodeId node) const {
    const Target& target = graph_.target(node);
    const KernelRow* row = target.kind() == TargetKind::kOperator ? find_kernel_row(target.name()) : nullptr;
    if (row == nullptr)
      throw UnsupportedError(fmt::format("no kernel for {}: {}", target.name(), why_no_kernel(target)));
    if (row->inexact && options_.exact) throw UnsupportedError(target.name() + " is inexact");
    if (row->make_second != nullptr && !part_) throw UnsupportedError("results that need several programs");
    return *row;
  }
  bool is_second() const { return part_ == size_t{1}; }
  ReducedDimensions reduced_by(const KernelRow& row) const { return is_second() ? row.reduced_second : row.reduced; }

  OperatorCall call_of(NodeId node) {
    return OperatorCall(
        graph_, node, build_, [this](ValueId v, const Dims* dims) { return content(v, dims); },
        [this](ValueId v, const Dims& dims) { return source(v, dims); });
  }

  // Returns a tensor with one element per computation of the node.
  ValueId shape_of(NodeId node, const KernelRow& row) const {
    const Argument* shape = row.writes.empty() ? graph_.results(node).data() : &graph_.arguments(node)[row.writes[0]];
    if (reduced_by(row) != nullptr) shape = &graph_.arguments(node)[row.input];
    if (shape == nullptr || shape->kind != ArgumentKind::kValue) throw UnsupportedError("no result");
    return shape->ref.value;
  }

  // Sets the iteration space: the sizes of the reduced tensor, or of the first result.
  void find_space() {
    std::optional<Dims> reduced;
    for (const NodeId node : nodes_) {
      const KernelRow& row = row_of(node);
      if (reduced_by(row) == nullptr) continue;
      const OperatorCall call = call_of(node);
      Dims dims = reduced_by(row)(call);
      plan_.decisive |= call.decisive();
      const ValueId input = shape_of(node, row);
      if (graph_.numel(input) == 0) throw UnsupportedError("a reduction of an empty tensor");
      if (reduced && (*reduced != dims || space_ != sizes_of(input)))
        throw UnsupportedError("reductions over different dimensions");
      space_ = sizes_of(input);
      reduced = std::move(dims);
    }
    reduces_ = reduced.has_value();
    if (!reduces_) space_ = sizes_of(shape_of(nodes_[0], row_of(nodes_[0])));
    is_reduced_.assign(space_.size(), false);
    for (const int64_t dim : reduced.value_or(Dims())) is_reduced_[static_cast<size_t>(dim)] = true;
    for (size_t d = 0; d < space_.size(); ++d) {
      all_.push_back(static_cast<int64_t>(d));
      kept_sizes_.push_back(is_reduced_[d] ? 1 : space_[d]);
      if (is_reduced_[d]) continue;
      others_.push_back(static_cast<int64_t>(d));
      other_sizes_.push_back(space_[d]);
    }
  }

  // Returns the dimensions of the space for a result with these sizes.
  const Dims& dims_of_result(const Dims& sizes) const {
    if (sizes == space_ || (reduces_ && sizes == kept_sizes_)) return all_;
    if (reduces_ && sizes == other_sizes_) return others_;
    throw UnsupportedError("nodes with different shapes");
  }

  void add(NodeId node) {
    const KernelRow& row = row_of(node);
    for (const Argument& argument : graph_.arguments(node)) {
      if (argument.kind == ArgumentKind::kConstant) throw UnsupportedError("a constant tensor");
      if (argument.kind == ArgumentKind::kComplex) throw UnsupportedError("complex numbers");
    }
    const OperatorCall call = call_of(node);
    // The result operand of an in-place operator is its `self`, even if it does not read it (fill_).
    if (graph_.facts(node).is_in_place && !graph_.arguments(node).empty() &&
        graph_.arguments(node)[0].kind == ArgumentKind::kValue) {
      place_of(graph_.arguments(node)[0].ref.value);
    }
    const Dims shape = sizes_of(shape_of(node, row));
    node_dims_ = dims_of_result(shape);
    const size_t before = plan_.program.expressions.size();
    const std::vector<Typed> made = is_second() ? row.make_second(call) : row.make(call);
    const std::span expressions = std::span(plan_.program.expressions).subspan(before);
    // Kernels use IEEE 754's square roots; libtorch's (MKL's) differ by up to an ulp.
    if (options_.exact && uses(expressions, KernelOperation::kSquareRoot)) {
      throw UnsupportedError("square roots are inexact");
    }
    if (shape != space_ && uses(expressions, KernelOperation::kColumn))
      throw UnsupportedError("column indices of another row");
    plan_.decisive |= call.decisive();
    const bool reducing = reduced_by(row) != nullptr;
    for (size_t i = 0; i < row.writes.size() && i < made.size(); ++i) {
      const Argument& written = graph_.arguments(node)[row.writes[i]];
      if (written.kind == ArgumentKind::kValue) finish(node, written.ref.value, made[i], shape, reducing);
    }
    const auto results = graph_.results(node);
    const size_t from = is_second() ? row.second_results : 0;
    const size_t to = row.make_second != nullptr && !is_second() ? row.second_results : results.size();
    for (size_t i = from; i < to && i - from < made.size(); ++i) {
      if (results[i].kind != ArgumentKind::kValue) continue;
      finish(node, results[i].ref.value, made[i - from], shape, reducing);
    }
  }

  void finish(NodeId node, ValueId result, Typed made, const Dims& shape, bool reducing) {
    const Value& value = graph_.value(result);
    const bool fresh = value.storage.valid() && graph_.storage(value.storage).born == node;
    const Dims sizes = sizes_of(result);
    PlacePlan& place = place_of(result);
    const bool in_place = graph_.facts(node).is_in_place || graph_.results(node).empty();
    if (!fresh && !in_place) throw UnsupportedError("a result that is a view");
    if (sizes != shape && !reducing) throw UnsupportedError("an in-place operator whose self is broadcast");
    if (place.gathered) throw UnsupportedError("a write to a tensor that is gathered from");
    set_dims(place, along(sizes, dims_of_result(sizes)));
    if (fresh) {
      place.fresh = true;
    } else if (!place.fresh) {
      use(place);
    }
    place.written = true;
    place.content = build_.convert(made, value.dtype);
    place.known = true;
    if (in_storage_[value.storage.index].size() != 1) throw UnsupportedError("views of a written tensor");
    results_.push_back(result);
  }

  void store() {
    for (PlacePlan& place : order_) {
      if (!place.fresh) continue;
      const uint32_t storage = graph_.value(place.value).storage.index;
      const bool wanted = std::ranges::any_of(
          results_, [&](ValueId v) { return graph_.value(v).storage.index == storage && escapes_(v); });
      if (!wanted) continue;
      place.used = true;
      place.operand = static_cast<uint32_t>(plan_.program.operands.size());
      plan_.outputs.push_back(place.value);
      plan_.program.operands.push_back({.dtype = graph_.value(place.value).dtype});
    }
    for (const PlacePlan& place : order_) {
      if (!place.used || !place.written) continue;
      plan_.program.operands[place.operand].written = true;
      plan_.program.stores.push_back({place.operand, place.content.expression});
    }
    if (plan_.program.stores.empty()) throw UnsupportedError("no needed results");
    for (const ValueId result : results_) {
      const PlacePlan& place = order_[by_value_.at(result.index)];
      if (place.used && place.value != result) plan_.same_tensor.push_back({result, place.value});
    }
  }

  // Returns strides along the iteration space; 0 where an operand is broadcast.
  Dims strides_in_space(const PlacePlan& place) const {
    const Dims sizes = sizes_of(place.value), strides = strides_of(place.value);
    Dims out(space_.size(), 0);
    for (size_t d = 0; d < sizes.size(); ++d) {
      if (place.written && sizes[d] > 1 && strides[d] == 0) throw UnsupportedError("a write to an expanded tensor");
      if ((*place.dims)[d] >= 0) out[static_cast<size_t>((*place.dims)[d])] = strides[d];
    }
    return out;
  }

  void arrange() {
    std::vector<const PlacePlan*> used;
    for (const PlacePlan& place : order_) {
      if (place.used) used.push_back(&place);
    }
    std::ranges::sort(used, {}, &PlacePlan::operand);
    IterationSpace space{.sizes = space_, .is_reduced = is_reduced_, .reduces = reduces_};
    for (const PlacePlan* place : used) {
      space.strides.push_back(strides_in_space(*place));
      space.is_whole.push_back(sizes_of(place->value) == space_);
    }
    arrange_loops(std::move(space), plan_);
  }

  const Graph& graph_;
  std::span<const NodeId> nodes_;
  const KernelOptions& options_;
  const std::function<bool(ValueId)>& escapes_;
  const std::optional<size_t> part_;
  LoweredKernel plan_;
  ExpressionBuilder build_;
  std::optional<c10::Device> device_;
  bool reduces_ = false;
  Dims space_;
  std::vector<bool> is_reduced_;
  Dims all_, others_;              // all dimensions of the space, and those that are not reduced
  Dims kept_sizes_, other_sizes_;  // sizes of a reduction's result, with and without dimensions of size 1
  Dims node_dims_;                 // of the current node
  std::deque<PlacePlan> order_;
  std::map<PlaceKey, uint32_t> places_;
  std::map<uint32_t, std::vector<uint32_t>> in_storage_;
  std::map<uint32_t, uint32_t> by_value_;
  std::vector<ValueId> results_;
};

}  // namespace

std::optional<LoweredKernel> lower_kernel(const Graph& graph, std::span<const NodeId> nodes,
                                          const KernelOptions& options, const std::function<bool(ValueId)>& escapes,
                                          std::string* reason) {
  try {
    LoweredKernel plan = Planner(graph, nodes, options, escapes, std::nullopt).run();
    // An index out of range is only found after earlier elements are done, so no input may have been modified.
    const bool writes = std::ranges::any_of(std::span(plan.program.operands).first(plan.inputs.size()),
                                            [](const KernelOperand& operand) { return operand.written; });
    if (plan.program.has_checks() && writes) throw UnsupportedError("index checks in a kernel that writes in place");
    return plan;
  } catch (const UnsupportedError& error) {
    if (reason != nullptr) *reason = error.what();
    return std::nullopt;
  }
}

std::vector<LoweredKernel> lower_parts(const Graph& graph, NodeId node, const KernelOptions& options) {
  const auto all = [](ValueId) { return true; };
  const KernelRow* row =
      graph.target(node).kind() == TargetKind::kOperator ? find_kernel_row(graph.target(node).name()) : nullptr;
  std::vector<LoweredKernel> plans;
  if (row == nullptr || row->make_second == nullptr) {
    plans.push_back(Planner(graph, {&node, 1}, options, all, std::nullopt).run());
    return plans;
  }
  const auto results = graph.results(node);
  const std::span<const Argument> parts[] = {results.first(row->second_results), results.subspan(row->second_results)};
  for (size_t part = 0; part < std::size(parts); ++part) {
    if (std::ranges::find(parts[part], ArgumentKind::kValue, &Argument::kind) == parts[part].end()) continue;
    plans.push_back(Planner(graph, {&node, 1}, options, all, part).run());
  }
  return plans;
}

}  // namespace shadowgraph
