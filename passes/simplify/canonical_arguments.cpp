#include "passes/simplify/canonical_arguments.h"

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "ir/analysis/identity.h"

namespace shadowgraph {

// Where a negative number counts from the end, in the rank of self or of the result.
struct DimensionRow {
  std::string_view target;
  std::array<std::string_view, 2> arguments;
  bool of_result = false;
};
namespace {

constexpr DimensionRow kDimensions[] = {
    {"aten::transpose.int", {"dim0", "dim1"}},
    {"aten::permute", {"dims"}},
    {"aten::select.int", {"dim"}},
    {"aten::slice.Tensor", {"dim"}},
    {"aten::narrow", {"dim"}},
    {"aten::split.Tensor", {"dim"}},
    {"aten::split_with_sizes", {"dim"}},
    {"aten::unbind.int", {"dim"}},
    {"aten::squeeze.dim", {"dim"}},
    {"aten::squeeze.dims", {"dim"}},
    {"aten::unsqueeze", {"dim"}, true},
    {"aten::stack", {"dim"}, true},
    {"aten::cat", {"dim"}, true},
    {"aten::_softmax", {"dim"}},
    {"aten::_log_softmax", {"dim"}},
    {"aten::_softmax_backward_data", {"dim"}},
    {"aten::_log_softmax_backward_data", {"dim"}},
    {"aten::sum.dim_IntList", {"dim"}},
    {"aten::mean.dim", {"dim"}},
    {"aten::amax", {"dim"}},
    {"aten::amin", {"dim"}},
    {"aten::any.dim", {"dim"}},
    {"aten::all.dim", {"dim"}},
    {"aten::argmax", {"dim"}},
    {"aten::argmin", {"dim"}},
    {"aten::max.dim", {"dim"}},
    {"aten::min.dim", {"dim"}},
    {"aten::var.correction", {"dim"}},
    {"aten::std.correction", {"dim"}},
    {"aten::var_mean.correction", {"dim"}},
    {"aten::logsumexp", {"dim"}},
    {"aten::cumsum", {"dim"}},
    {"aten::cumprod", {"dim"}},
    {"aten::gather", {"dim"}},
    {"aten::index_select", {"dim"}},
    {"aten::index_add", {"dim"}},
    {"aten::scatter.src", {"dim"}},
    {"aten::scatter.value", {"dim"}},
    {"aten::scatter_add", {"dim"}},
    {"aten::topk", {"dim"}},
    {"aten::sort", {"dim"}},
    {"aten::sort.stable", {"dim"}},
    {"aten::flip", {"dims"}},
};

// Operators whose size argument may hold -1 for what follows from the others; the result's sizes say it.
constexpr std::string_view kSized[] = {"aten::view", "aten::_unsafe_view", "aten::reshape", "aten::expand"};

ValueId self_of(const Graph& graph, NodeId n) {
  const auto arguments = graph.arguments(n);
  if (arguments.empty() || arguments[0].kind != ArgumentKind::kValue) return {};
  const ValueId v = arguments[0].ref.value;
  return graph.value(v).kind == ValueKind::kTensor ? v : ValueId();
}

bool normalize_dimensions(Graph& graph, NodeId n, const DimensionRow& row) {
  ValueId model;
  const auto take = [&](ValueId v) {
    if (!model.valid()) model = v;
  };
  if (row.of_result) {
    graph.for_each_output(n, take);
  } else {
    graph.for_each_input(n, take);
  }
  if (!model.valid() || graph.value(model).kind != ValueKind::kTensor) return false;
  // A number has dimension 0 and -1, as a tensor of one dimension has.
  const int64_t rank = std::max<int64_t>(graph.value(model).rank, 1);
  bool changed = false;
  const auto& formals = graph.target(n).signature().arguments;
  for (size_t i = 0; i < formals.size(); ++i) {
    if (formals[i].name.empty() || std::ranges::find(row.arguments, formals[i].name) == row.arguments.end()) continue;
    const Argument& argument = graph.arguments(n)[i];
    if (argument.kind == ArgumentKind::kInt && argument.i < 0 && argument.i >= -rank) {
      graph.set_argument(n, i, Argument::of_int(argument.i + rank));
      changed = true;
    } else if (argument.kind == ArgumentKind::kIntList) {
      const auto ints = graph.ints(argument);
      if (std::ranges::none_of(ints, [&](int64_t d) { return d < 0 && d >= -rank; })) continue;
      std::vector<int64_t> dims(ints.begin(), ints.end());
      for (int64_t& d : dims) d += d < 0 ? rank : 0;
      graph.set_argument(n, i, graph.int_list(dims));
      changed = true;
    }
  }
  return changed;
}

bool normalize_sizes(Graph& graph, NodeId n) {
  const ValueId result = only_result(graph, n);
  const auto arguments = graph.arguments(n);
  if (!result.valid() || arguments.size() < 2 || arguments[1].kind != ArgumentKind::kIntList) return false;
  const auto ints = graph.ints(arguments[1]);
  if (std::ranges::find(ints, -1) == ints.end() || ints.size() != graph.value(result).rank) return false;
  const std::vector<int64_t> sizes(graph.sizes(result).begin(), graph.sizes(result).end());
  graph.set_argument(n, 1, graph.int_list(sizes));
  return true;
}

bool normalize_slice(Graph& graph, NodeId n) {
  const ValueId self = self_of(graph, n);
  const auto arguments = graph.arguments(n);
  if (!self.valid() || arguments.size() != 5 || arguments[1].kind != ArgumentKind::kInt) return false;
  const int64_t dim = arguments[1].i;
  if (dim < 0 || dim >= static_cast<int64_t>(graph.value(self).rank)) return false;
  const int64_t size = graph.sizes(self)[static_cast<size_t>(dim)];
  // Slices clamp their bounds; the clamped ones say what is taken.
  const auto bound = [&](size_t position, int64_t missing) -> std::optional<int64_t> {
    const Argument& a = arguments[position];
    if (a.kind != ArgumentKind::kInt && a.kind != ArgumentKind::kNone) return std::nullopt;
    const int64_t given = a.kind == ArgumentKind::kInt ? a.i : missing;
    return std::clamp<int64_t>(given < 0 ? given + size : given, 0, size);
  };
  const auto start = bound(2, 0);
  const auto end = bound(3, size);
  if (!start || !end) return false;
  const auto is = [](const Argument& a, int64_t i) { return a.kind == ArgumentKind::kInt && a.i == i; };
  if (is(arguments[2], *start) && is(arguments[3], std::max(*start, *end))) return false;
  graph.set_argument(n, 2, Argument::of_int(*start));
  graph.set_argument(n, 3, Argument::of_int(std::max(*start, *end)));
  return true;
}

// alpha=1.0 and alpha=1 multiply by the same.
bool normalize_alpha(Graph& graph, NodeId n) {
  const ValueId result = only_result(graph, n);
  const auto arguments = graph.arguments(n);
  if (!result.valid() || arguments.size() != 3) return false;
  if (!c10::isFloatingType(graph.value(result).dtype)) return false;
  if (arguments[2].kind != ArgumentKind::kFloat || arguments[2].d != 1.0) return false;
  graph.set_argument(n, 2, Argument::of_int(1));
  return true;
}

}  // namespace

ArgumentForm argument_form_of(std::string_view target) {
  ArgumentForm form;
  const auto row = std::ranges::find(kDimensions, target, &DimensionRow::target);
  if (row != std::end(kDimensions)) form.dimensions = &*row;
  form.sized = std::ranges::find(kSized, target) != std::end(kSized);
  form.slice = target == "aten::slice.Tensor";
  form.alpha = target.starts_with("aten::add.") || target.starts_with("aten::sub.");
  return form;
}

bool canonicalize_arguments(Graph& graph, NodeId node, const ArgumentForm& form) {
  bool changed = false;
  if (form.dimensions != nullptr) changed = normalize_dimensions(graph, node, *form.dimensions);
  if (form.sized) changed = normalize_sizes(graph, node) || changed;
  if (form.slice) changed = normalize_slice(graph, node) || changed;
  if (form.alpha) changed = normalize_alpha(graph, node) || changed;
  return changed;
}

}  // namespace shadowgraph
