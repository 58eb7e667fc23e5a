// Canonical forms of operator arguments, and the pass canonicalize.
#include <ATen/TensorUtils.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <optional>
#include <string_view>
#include <vector>

#include "ir/analysis/identity.h"
#include "ir/analysis/structural_hash.h"
#include "ir/edit/bulk_edits.h"
#include "ir/operators/operator_facts.h"
#include "ir/operators/operator_name.h"
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/passes/simplify.h"

namespace shadowgraph {

namespace {

// Arguments of an operator that have several equivalent spellings.
struct ArgumentForm {
  std::string_view dimensions, dimensions_of_result;  // as in the table of operators
  bool sized = false;
  bool slice = false;
  bool alpha = false;
};

// Returns the tensor argument at a position; invalid if there is none.
ValueId tensor_argument(const Graph& graph, NodeId n, size_t position) {
  const auto arguments = graph.arguments(n);
  if (position >= arguments.size() || arguments[position].kind != ArgumentKind::kValue) return {};
  const ValueId v = arguments[position].ref.value;
  return graph.value(v).kind == ValueKind::kTensor ? v : ValueId();
}

bool normalize_dimensions(Graph& graph, NodeId n, const ArgumentForm& form) {
  ValueId model;
  const auto take = [&](ValueId v) {
    if (!model.valid()) model = v;
  };
  const bool of_result = !form.dimensions_of_result.empty();
  if (of_result) {
    graph.for_each_output(n, take);
  } else {
    graph.for_each_input(n, take);
  }
  if (!model.valid() || graph.value(model).kind != ValueKind::kTensor) return false;
  // A scalar tensor accepts dimensions 0 and -1, like a 1-D tensor.
  const int64_t rank = std::max<int64_t>(graph.value(model).rank, 1);
  bool changed = false;
  const auto& formals = graph.target(n).signature().arguments;
  for (size_t i = 0; i < formals.size(); ++i) {
    bool named = false;
    for_each_name(of_result ? form.dimensions_of_result : form.dimensions,
                  [&](std::string_view name) { named = named || name == formals[i].name; });
    if (!named) continue;
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
  const ValueId self = tensor_argument(graph, n, 0);
  const auto arguments = graph.arguments(n);
  if (!self.valid() || arguments.size() != 5 || arguments[1].kind != ArgumentKind::kInt) return false;
  const int64_t dim = arguments[1].i;
  if (dim < 0 || dim >= static_cast<int64_t>(graph.value(self).rank)) return false;
  const int64_t size = graph.sizes(self)[static_cast<size_t>(dim)];
  // Slices clamp their bounds, so the clamped ones are canonical.
  const auto bound = [&](size_t position, int64_t missing) -> std::optional<int64_t> {
    const Argument& a = arguments[position];
    if (a.kind != ArgumentKind::kInt && a.kind != ArgumentKind::kNone) return std::nullopt;
    const int64_t given = a.kind == ArgumentKind::kInt ? a.i : missing;
    return std::clamp<int64_t>(given < 0 ? given + size : given, 0, size);
  };
  const auto start = bound(2, 0);
  const auto end = bound(3, size);
  if (!start || !end) return false;
  const int64_t stop = std::max(*start, *end);
  const auto is = [](const Argument& a, int64_t i) { return a.kind == ArgumentKind::kInt && a.i == i; };
  if (is(arguments[2], *start) && is(arguments[3], stop)) return false;
  graph.set_argument(n, 2, Argument::of_int(*start));
  graph.set_argument(n, 3, Argument::of_int(stop));
  return true;
}

// alpha=1.0 and alpha=1 are the same factor.
bool normalize_alpha(Graph& graph, NodeId n) {
  const ValueId result = only_result(graph, n);
  const auto arguments = graph.arguments(n);
  if (!result.valid() || arguments.size() != 3 || !c10::isFloatingType(graph.value(result).dtype)) return false;
  if (arguments[2].kind != ArgumentKind::kFloat || arguments[2].d != 1.0) return false;
  graph.set_argument(n, 2, Argument::of_int(1));
  return true;
}

ArgumentForm argument_form_of(std::string_view target) {
  const OperatorRow row = operator_row(target);
  return {.dimensions = row.dimensions,
          .dimensions_of_result = row.dimensions_of_result,
          .sized = static_cast<bool>(row.is & OperatorFact::kInfersSizes),
          .slice = target == "aten::slice.Tensor",
          .alpha = target.starts_with("aten::add.") || target.starts_with("aten::sub.")};
}

// Returns whether it changed an argument.
bool canonicalize_arguments(Graph& graph, NodeId node, const ArgumentForm& form) {
  const bool has_dimensions = !form.dimensions.empty() || !form.dimensions_of_result.empty();
  bool changed = has_dimensions && normalize_dimensions(graph, node, form);
  if (form.sized) changed = normalize_sizes(graph, node) || changed;
  if (form.slice) changed = normalize_slice(graph, node) || changed;
  if (form.alpha) changed = normalize_alpha(graph, node) || changed;
  return changed;
}

}  // namespace

// canonicalize: one form for equivalent views, copies and arguments, by local rules that change no bit.
//
//     same-view    %b has the storage and the geometry of an earlier %a          uses of %b become uses of %a
//                  t(t(x)), view(x, its own sizes), detach, alias, contiguous of a contiguous tensor, permute and back
//     view-chain   t(permute(x)) with another result                             one permute of x
//                  view(view(x, a), b)                                           view(x, b), if x's strides allow it
//     exact-copy   clone(x), _to_copy(x), mul(x, 1), div(x, 1), sub(x, 0)        x, if neither is written afterwards,
//                  and add(x, 0) of integers                                     and not both are visible outside
//     arguments    dim=-1 -> dim=1; view size [-1, 8] -> [4, 8]; slice bounds clipped to the size; alpha=1.0 -> 1
//     dead-view    an unused view                                                erased
//
// x + 0.0 is not an exact copy: it turns -0.0 into 0.0. x * 1.0 is exact except for signalling NaNs (made quiet).
//
// The same computation then has the same text, whatever the program called, which helps CSE, fusion and the search for
// repeats. Captures of training steps contain hundreds of detach and t.
//
// Legality. A view may replace another if neither tensor object changes its geometry (ir/analysis/identity.h); complex
// tensors and lazy negatives are left unchanged. A copy equals its source only while neither is written.
//
// One walk forwards, two back; about 0.5 us per node. Idempotent.

namespace {

enum class Form : uint8_t { kNotComputed, kOther, kPermutation, kView, kCopy, kTimesOne, kMinusZero, kPlusZero };

// Properties of a target for the rules, computed once per target, since names are compared with a dozen others.
struct TargetNotes {
  Form form = Form::kNotComputed;
  ArgumentForm arguments;
};

// Each form is handled by one rule, which checks the arguments.
TargetNotes notes_of(std::string_view name) {
  TargetNotes notes{.form = Form::kOther, .arguments = argument_form_of(name)};
  if (name == "aten::t" || name == "aten::transpose.int" || name == "aten::permute") notes.form = Form::kPermutation;
  if (name == "aten::view") notes.form = Form::kView;
  if (name == "aten::clone" || name == "aten::_to_copy") notes.form = Form::kCopy;
  if (name.starts_with("aten::mul.") || name.starts_with("aten::div.")) notes.form = Form::kTimesOne;
  if (name.starts_with("aten::sub.")) notes.form = Form::kMinusZero;
  if (name.starts_with("aten::add.")) notes.form = Form::kPlusZero;
  return notes;
}

class Canonicalizer {
 public:
  explicit Canonicalizer(Graph& graph)
      : graph_(graph),
        effects_(Effects::of(graph)),
        to_erase_(graph.node_capacity(), false),
        notes_(graph.target_count()),
        versions_(graph.storage_count(), 0),
        shared_with_output_(graph.value_capacity(), false),
        views_(graph.node_count()) {
    // Outputs are returned to the caller, who sees flags that the graph itself does not use.
    for (NodeId n : graph.nodes()) {
      if (is_end(graph.node(n).target))
        graph.for_each_input(n, [&](ValueId v) { shared_with_output_[v.index] = true; });
    }
    // First, since dead conjugates or views of another dtype would block other rules.
    drop_dead_views();
    identity_ = Identity::of(graph, effects_, to_erase_);
  }

  // One walk: operands are already canonical, so chains of any length are shortened link by link.
  CanonicalizeResult run() {
    for (NodeId n : graph_.nodes()) {
      if (to_erase_[n.index]) continue;
      done_.arguments += canonicalize_arguments(graph_, n, notes(n).arguments) ? 1 : 0;
      const ValueId result = only_result(graph_, n);
      if (result.valid() && is_pure_call(n)) {
        if (is_view(n, result)) {
          // Repeat, since the middle view may not have been shortened itself but its operand is a view of this kind.
          while (shorten_chain(n, result)) ++done_.view_chains;
          replace_by_same_view(n, result);
        } else {
          replace_exact_copy(n, result);
        }
      }
      remember(n);
    }
    drop_dead_views();
    replacements_.finish(graph_);
    erase_nodes(graph_, to_erase_);
    return done_;
  }

 private:
  const TargetNotes& notes(NodeId n) {
    const TargetId target = graph_.node(n).target;
    if (target.index >= notes_.size()) notes_.resize(target.index + 1);
    TargetNotes& known = notes_[target.index];
    if (known.form == Form::kNotComputed) known = notes_of(graph_.target(target).name());
    return known;
  }

  // Excludes random nodes and user-defined functions, whatever their schemas declare.
  bool is_pure_call(NodeId n) const {
    const TargetId target = graph_.node(n).target;
    if (is_placeholder(target) || is_end(target) || !effects_.is_pure(n) || effects_.random(n)) return false;
    return graph_.target(target).kind() != TargetKind::kFunction;
  }

  // The storage of a view is allocated elsewhere.
  bool is_view(NodeId n, ValueId result) const {
    const StorageId s = graph_.value(result).storage;
    return s.valid() && graph_.storage(s).born != n;
  }

  // Returns whether rules about geometry apply.
  bool is_plain(ValueId v) const {
    const Value& value = graph_.value(v);
    return value.kind == ValueKind::kTensor && value.storage.valid() && value.layout == c10::kStrided &&
           !identity_.has_lazy_views(value.storage) && !identity_.object_changes(v);
  }

  // Nodes are only marked here and erased together at the end: separately, each would search for a node for its frees.
  void replace(NodeId n, ValueId of, ValueId with) {
    graph_.replace_all_uses_with(of, with);
    if (shared_with_output_[of.index]) shared_with_output_[with.index] = true;
    replacements_.add(of, with);
    replacements_.add(n, graph_.value(with).producer);
    to_erase_[n.index] = true;
  }

  uint64_t view_hash(ValueId v) const {
    const Value& value = graph_.value(v);
    return hash_of_type(graph_, v, mixed(value.storage.index, static_cast<uint64_t>(value.offset)));
  }

  // Values are recorded by place after the node, so that a later view of the same place finds the first one.
  void remember(NodeId n) {
    for (const StorageWrite& write : effects_.writes(n)) {
      if (write.storage.index < versions_.size()) versions_[write.storage.index] = write.after;
    }
    if (to_erase_[n.index]) return;
    graph_.for_each_output(n, [&](ValueId v) {
      if (is_plain(v)) first_at(v);
    });
  }

  // Returns the first value with the geometry of `v` at the same place, which may be `v`.
  ValueId first_at(ValueId v) {
    return ValueId(views_.find_or_add(view_hash(v), v.index,
                                      [&](uint32_t known) { return same_place(graph_, ValueId(known), v); }));
  }

  // A view of the same elements as an earlier value is replaced by that value:
  //
  //     %1 = view(%0, [6]), %2 = view(%1, [2, 3])      %2 is %0, if %0 has these sizes and strides
  void replace_by_same_view(NodeId n, ValueId result) {
    if (!is_plain(result)) return;
    const ValueId earlier = first_at(result);
    if (earlier == result) return;
    // The caller sees whether outputs require a gradient.
    const bool same_gradient = graph_.value(earlier).requires_grad == graph_.value(result).requires_grad;
    if (!same_gradient && shared_with_output_[result.index]) return;
    replace(n, result, earlier);
    ++done_.same_views;
  }

  // Returns the dimensions of self in the order of the result; empty if unknown.
  std::vector<int64_t> permutation(NodeId n, int64_t rank) const {
    std::vector<int64_t> order(static_cast<size_t>(rank));
    std::iota(order.begin(), order.end(), int64_t{0});
    const auto arguments = graph_.arguments(n);
    if (arguments.size() == 1) {  // t
      std::ranges::reverse(order);
    } else if (arguments.size() == 3) {  // transpose; dimensions are already non-negative
      if (arguments[1].kind != ArgumentKind::kInt || arguments[2].kind != ArgumentKind::kInt) return {};
      const int64_t a = arguments[1].i;
      const int64_t b = arguments[2].i;
      if (a < 0 || b < 0 || a >= rank || b >= rank) return {};
      std::swap(order[static_cast<size_t>(a)], order[static_cast<size_t>(b)]);
    } else {  // permute
      if (arguments[1].kind != ArgumentKind::kIntList) return {};
      const auto dims = graph_.ints(arguments[1]);
      if (dims.size() != order.size()) return {};
      order.assign(dims.begin(), dims.end());
      if (std::ranges::any_of(order, [&](int64_t d) { return d < 0 || d >= rank; })) return {};
    }
    return order;
  }

  // Makes a view of a view a view of the base; the middle one is then often dead:
  //
  //     %1 = t(%0), %2 = t(%1)                  %2 = permute(%0, [0, 1]), which same-view then removes
  //     %1 = view(%0, a), %2 = view(%1, b)      %2 = view(%0, b)
  bool shorten_chain(NodeId n, ValueId result) {
    const Form form = notes(n).form;
    if (form != Form::kPermutation && form != Form::kView) return false;
    const ValueId middle = tensor_argument(graph_, n, 0);
    if (!middle.valid() || !is_plain(middle) || !is_plain(result)) return false;
    const NodeId inner = graph_.value(middle).producer;
    if (notes(inner).form != form || !is_pure_call(inner)) return false;
    const ValueId base = tensor_argument(graph_, inner, 0);
    if (!base.valid() || !is_plain(base) || graph_.value(base).storage != graph_.value(result).storage) return false;
    if (form == Form::kView) {
      // The view of a non-contiguous base may not exist, or may have other strides than the chain.
      const auto strides =
          at::detail::computeStride(graph_.sizes(base), graph_.strides(base), c10::IntArrayRef(graph_.sizes(result)));
      if (!strides || !std::ranges::equal(*strides, graph_.strides(result))) return false;
      graph_.set_argument(n, 0, Argument::of_value(base));
    } else {
      const auto rank = static_cast<int64_t>(graph_.value(base).rank);
      const std::vector<int64_t> first = permutation(inner, rank);
      const std::vector<int64_t> second = permutation(n, rank);
      if (first.empty() || second.empty()) return false;
      std::vector<int64_t> both;
      for (const int64_t d : second) both.push_back(first[static_cast<size_t>(d)]);
      graph_.set_call(n, graph_.intern_operator("aten::permute"),
                      std::array{Argument::of_value(base), graph_.int_list(both)});
    }
    return true;
  }

  // -0.0 is not 0: x + -0.0 and x + 0.0 differ for x = -0.0.
  static bool is_number(const Argument& a, double number) {
    if (a.kind == ArgumentKind::kInt) return static_cast<double>(a.i) == number;
    return a.kind == ArgumentKind::kFloat && a.d == number && !std::signbit(a.d);
  }

  // Returns whether the result is bitwise equal to the first argument. Adding 0 is only for integers, x - 0 always.
  bool is_exact_copy(NodeId n) {
    const auto arguments = graph_.arguments(n);
    const auto other = [&](double number) { return arguments.size() > 1 && is_number(arguments[1], number); };
    const auto plain_alpha = [&] { return arguments.size() == 3 && arguments[2].kind == ArgumentKind::kInt; };
    switch (notes(n).form) {
      case Form::kCopy:
        return true;
      case Form::kTimesOne:
        return other(1) && arguments.size() == 2;
      case Form::kMinusZero:
        return other(0) && plain_alpha();
      case Form::kPlusZero:
        return other(0) && plain_alpha() && c10::isIntegralType(graph_.value(only_result(graph_, n)).dtype, false);
      default:
        return false;
    }
  }

  // A copy may be removed if the two tensors are indistinguishable: neither is written afterwards, at most one is
  // visible outside the graph, and lifetimes stay the same.
  void replace_exact_copy(NodeId n, ValueId result) {
    if (!is_exact_copy(n) || !is_plain(result)) return;
    const ValueId source = tensor_argument(graph_, n, 0);
    if (!source.valid() || !is_plain(source) || !same_type(graph_, source, result)) return;
    const Value& from = graph_.value(source);
    const Value& to = graph_.value(result);
    if (identity_.escapes(to.storage) && identity_.escapes(from.storage)) return;
    if (outlives(graph_, to.storage)) return;
    if (effects_.final_version(to.storage) != 0) return;
    // A write to the source after the copy, or later, would show in the copy.
    if (effects_.final_version(from.storage) != versions_[from.storage.index]) return;
    // Not a small copy of a large tensor, which would then stay alive; outputs keep their offset.
    if (graph_.storage(from.storage).bytes != graph_.storage(to.storage).bytes || from.offset != to.offset) return;
    if (from.requires_grad != to.requires_grad && shared_with_output_[result.index]) return;
    if (identity_.escapes(to.storage)) identity_.set_escapes(from.storage);
    replace(n, result, source);
    ++done_.exact_copies;
  }

  // Unused views block rules: one of another dtype prevents changes to its storage. From the end, for chains.
  void drop_dead_views() {
    for (NodeId n : graph_.nodes_reversed()) {
      if (to_erase_[n.index] || !is_pure_call(n)) continue;
      bool dead = false;
      graph_.for_each_output(n, [&](ValueId) { dead = true; });
      graph_.for_each_output(n, [&](ValueId v) {
        dead = dead && is_view(n, v);
        graph_.for_each_use(v, [&](NodeId user) { dead = dead && to_erase_[user.index]; });
      });
      if (!dead) continue;
      to_erase_[n.index] = true;
      ++done_.dead_views;
    }
  }

  Graph& graph_;
  const Effects effects_;
  Identity identity_;
  std::vector<bool> to_erase_;
  std::vector<TargetNotes> notes_;        // by target
  std::vector<uint32_t> versions_;        // of storages, at the current node
  std::vector<bool> shared_with_output_;  // by value: operand of sg::output or sg::gradient
  HashIndex views_;                       // values by storage and geometry, the first of each
  Replacements replacements_;
  CanonicalizeResult done_;
};

}  // namespace

CanonicalizeResult canonicalize(Graph& graph) { return Canonicalizer(graph).run(); }

PassResult CanonicalizeResult::summary() const {
  return PassResult::of_changes({{"same-view", same_views},
                                 {"view-chain", view_chains},
                                 {"exact-copy", exact_copies},
                                 {"arguments", arguments},
                                 {"dead-view", dead_views}});
}

}  // namespace shadowgraph
