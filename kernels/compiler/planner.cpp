// A kernel from nodes of a graph: what each node computes by the operator table, one iteration space for all, operands by
// where they lie.
//
// What a tensor holds is known by its place (storage, offset, geometry), not by its value: after x.add_(y) the older value
// of x reads the sum. So a place has one current expression, and a storage that is written has one place only.
#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <tuple>

#include "kernels/compiler/operator_table.h"
#include "shadowgraph/kernels/kernel.h"

namespace shadowgraph {
namespace {

using Dims = std::vector<int64_t>;

struct PlacePlan {
  ValueId value;  // the first met here
  bool fresh = false;
  bool used = false;  // an operand
  bool written = false;
  bool known = false;  // `content` is
  bool of_row = false;
  Typed content;
  uint32_t operand = 0;
};

class Planner {
 public:
  Planner(const Graph& graph, std::span<const NodeId> nodes, const KernelOptions& options,
          const std::function<bool(ValueId)>& escapes)
      : graph_(graph), nodes_(nodes), options_(options), escapes_(escapes), build_(plan_.program) {}

  KernelPlan run() {
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
      throw KernelError("an operand that is no dense tensor");
    }
    if (device_ && *device_ != value.device()) throw KernelError("operands on several devices");
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

  Typed content(ValueId v) {
    PlacePlan& place = place_of(v);
    if (!place.known) {
      check_unwritten(v, place);
      use(place);
      place.content = build_.load(place.operand, graph_.value(v).dtype);
      place.known = true;
    }
    if (place.of_row) throw KernelError("a result of a reduction that is read as a tensor");
    return place.content;
  }

  // A read of what a write of another place of the storage may have changed.
  void check_unwritten(ValueId v, const PlacePlan& place) {
    for (const uint32_t other : in_storage_[graph_.value(v).storage.index]) {
      if (&order_[other] != &place && order_[other].written) throw KernelError("a view of a tensor that is written");
    }
  }

  void use(PlacePlan& place) {
    if (place.used) return;
    place.used = true;
    place.operand = static_cast<uint32_t>(plan_.inputs.size());
    plan_.inputs.push_back(place.value);
    plan_.program.operands.push_back({.dtype = graph_.value(place.value).dtype});
  }

  void add(NodeId node) {
    const Target& target = graph_.target(node);
    const OperatorRow* row = target.kind() == TargetKind::kOperator ? find_operator_row(target.name()) : nullptr;
    if (row == nullptr) throw KernelError("no kernel is made of " + target.name());
    if (row->inexact && options_.exact) throw KernelError(target.name() + " is inexact");
    for (const Argument& argument : graph_.arguments(node)) {
      if (argument.kind == ArgumentKind::kConstant) throw KernelError("a tensor that the graph holds");
      if (argument.kind == ArgumentKind::kComplex) throw KernelError("complex numbers");
    }
    const OperatorCall call(graph_, node, build_, [this](ValueId v) { return content(v); });
    // What an in-place operator writes is its self, also if it does not read it (fill_): the result is not there yet.
    if (graph_.facts(node).is_in_place && !graph_.arguments(node).empty() &&
        graph_.arguments(node)[0].kind == ArgumentKind::kValue) {
      place_of(graph_.arguments(node)[0].ref.value);
    }
    space(node, *row, call);
    const size_t before = plan_.program.expressions.size();
    const std::vector<Typed> made = row->make(call);
    if (options_.exact) refuse_roots(before);
    plan_.decisive |= call.decisive();
    const auto results = graph_.results(node);
    for (size_t i = 0; i < results.size() && i < made.size(); ++i) {
      if (results[i].kind != ArgumentKind::kValue) continue;
      finish(node, results[i].ref.value, made[i], row->row_dims != nullptr);
    }
  }

  // Roots here are IEEE 754's, libtorch's (MKL's) up to an ulp off.
  void refuse_roots(size_t first) const {
    const std::span made = std::span(plan_.program.expressions).subspan(first);
    if (std::ranges::find(made, KernelOperation::kSquareRoot, &KernelExpression::operation) != made.end()) {
      throw KernelError("square roots are inexact");
    }
  }

  // The iteration space: sizes of the first result, or of the operand whose rows are reduced.
  void space(NodeId node, const OperatorRow& row, const OperatorCall& call) {
    ValueId shape =
        graph_.results(node)[0].kind == ArgumentKind::kValue ? graph_.results(node)[0].ref.value : ValueId();
    int64_t row_dims = 0;
    if (row.row_dims != nullptr) {
      if (nodes_.size() != 1) throw KernelError("a reduction among other nodes");
      row_dims = row.row_dims(call);
      shape = graph_.arguments(node)[row.input].ref.value;
      if (graph_.numel(shape) == 0) throw KernelError("a reduction of nothing");
      reduces_ = true;
    }
    if (!shape.valid()) throw KernelError("no result");
    const Dims sizes = sizes_of(shape);
    if (!has_space_) {
      has_space_ = true;
      space_ = sizes;
      row_dims_ = row_dims;
    } else if (space_ != sizes) {
      throw KernelError("nodes of several shapes");
    }
  }

  void finish(NodeId node, ValueId result, Typed made, bool reducing) {
    const Value& value = graph_.value(result);
    const bool fresh = value.storage.valid() && graph_.storage(value.storage).born == node;
    const bool full = sizes_of(result) == space_;
    PlacePlan& place = place_of(result);
    if (!fresh && !graph_.facts(node).is_in_place) throw KernelError("a result that is a view");
    if (!full && !reducing) throw KernelError("an in-place operator whose self is broadcast");
    if (fresh) {
      place.fresh = true;
    } else if (!place.fresh) {
      use(place);
    }
    place.of_row = reducing && !full;
    place.written = true;
    place.content = build_.convert(made, value.dtype);
    place.known = true;
    if (in_storage_[value.storage.index].size() != 1) throw KernelError("views of a tensor that is written");
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
    if (plan_.program.stores.empty()) throw KernelError("nothing that is needed");
    for (const ValueId result : results_) {
      const PlacePlan& place = order_[by_value_.at(result.index)];
      if (place.used && place.value != result) plan_.same_tensor.push_back({result, place.value});
    }
  }

  // ---- Dimensions

  // Strides along the iteration space; 0 where an operand is broadcast.
  Dims strides_in_space(const PlacePlan& place) const {
    const Dims sizes = sizes_of(place.value);
    const Dims strides = strides_of(place.value);
    Dims out(space_.size(), 0);
    // What a reduction leaves has the outer dimensions, kept or not those of the row after them.
    const bool leading = place.of_row && sizes.size() + static_cast<size_t>(row_dims_) == space_.size();
    if (sizes.size() > space_.size()) throw KernelError("an operand of higher rank");
    const size_t shift = leading ? 0 : space_.size() - sizes.size();
    for (size_t d = 0; d < sizes.size(); ++d) {
      if (sizes[d] == space_[d + shift]) {
        out[d + shift] = sizes[d] == 1 ? 0 : strides[d];
      } else if (sizes[d] != 1) {
        throw KernelError("an operand that does not fit");
      }
      if (place.written && !place.of_row && sizes[d] > 1 && strides[d] == 0)
        throw KernelError("a write to an expanded tensor");
    }
    return out;
  }

  void arrange() {
    std::vector<const PlacePlan*> used;
    for (const PlacePlan& place : order_) {
      if (place.used) used.push_back(&place);
    }
    std::ranges::sort(used, {}, &PlacePlan::operand);
    std::vector<Dims> strides;
    for (const PlacePlan* place : used) strides.push_back(strides_in_space(*place));

    const size_t outer = space_.size() - static_cast<size_t>(row_dims_);
    Dims sizes = space_;
    std::vector<uint32_t> dims;  // of more than one element
    for (uint32_t d = 0; d < outer; ++d) {
      if (sizes[d] != 1) dims.push_back(d);
    }
    if (!reduces_) {
      // The dimension along which results are dense is the row.
      const Dims& lead = strides[plan_.program.stores[0].operand];
      std::ranges::stable_sort(dims, std::greater(), [&](uint32_t d) { return lead[d]; });
    }
    std::vector<uint32_t> row;
    for (auto d = static_cast<uint32_t>(outer); d < space_.size(); ++d) {
      if (sizes[d] != 1) row.push_back(d);
    }
    merge(dims, sizes, strides);
    merge(row, sizes, strides);
    if (row.size() > 1) throw KernelError("a reduction over dimensions that lie apart");
    if (!reduces_ && !dims.empty()) {
      row = {dims.back()};
      dims.pop_back();
    }
    plan_.program.outer_rank = static_cast<uint32_t>(dims.size());
    for (const uint32_t d : dims) plan_.sizes.push_back(sizes[d]);
    plan_.sizes.push_back(row.empty() ? 1 : sizes[row[0]]);
    for (size_t k = 0; k < used.size(); ++k) {
      for (const uint32_t d : dims) plan_.strides.push_back(strides[k][d]);
      const int64_t along = row.empty() ? 1 : strides[k][row[0]];
      plan_.strides.push_back(along);
      KernelOperand& operand = plan_.program.operands[used[k]->operand];
      operand.layout = used[k]->of_row || along == 0 ? KernelLayout::kBroadcast
                       : along == 1                  ? KernelLayout::kContiguous
                                                     : KernelLayout::kStrided;
    }
    int64_t rows = 1;
    for (size_t d = 0; d + 1 < plan_.sizes.size(); ++d) rows *= plan_.sizes[d];
    const bool by_elements = dims.empty() && !plan_.program.has_reductions();
    plan_.range = by_elements ? plan_.sizes.back() : rows;
    plan_.row_work = by_elements ? 1 : std::max<int64_t>(plan_.sizes.back(), 1);
    if (plan_.sizes.back() == 0) plan_.range = 0;
  }

  // Neighbours along which all operands step as along one dimension.
  static void merge(std::vector<uint32_t>& dims, Dims& sizes, std::vector<Dims>& strides) {
    std::vector<uint32_t> out;
    for (const uint32_t d : dims) {
      const bool fits =
          !out.empty() && std::ranges::all_of(strides, [&](const Dims& s) { return s[out.back()] == s[d] * sizes[d]; });
      if (!fits) {
        out.push_back(d);
        continue;
      }
      sizes[out.back()] *= sizes[d];
      for (Dims& s : strides) s[out.back()] = s[d];
    }
    dims = std::move(out);
  }

  const Graph& graph_;
  std::span<const NodeId> nodes_;
  const KernelOptions& options_;
  const std::function<bool(ValueId)>& escapes_;
  KernelPlan plan_;
  ExpressionBuilder build_;
  std::optional<c10::Device> device_;
  bool has_space_ = false;
  bool reduces_ = false;
  Dims space_;
  int64_t row_dims_ = 0;
  std::deque<PlacePlan> order_;
  std::map<PlaceKey, uint32_t> places_;
  std::map<uint32_t, std::vector<uint32_t>> in_storage_;
  std::map<uint32_t, uint32_t> by_value_;
  std::vector<ValueId> results_;
};

}  // namespace

std::optional<KernelPlan> plan_kernel(const Graph& graph, std::span<const NodeId> nodes, const KernelOptions& options,
                                      const std::function<bool(ValueId)>& escapes, std::string* reason) {
  try {
    return Planner(graph, nodes, options, escapes).run();
  } catch (const KernelError& error) {
    if (reason != nullptr) *reason = error.what();
    return std::nullopt;
  }
}

}  // namespace shadowgraph
