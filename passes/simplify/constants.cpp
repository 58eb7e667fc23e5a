// const-fold: evaluates operators with constant operands.
//
// A node is constant if all its tensor operands are, and its operator is deterministic. Factories that fill (zeros,
// full, arange, eye, ...) and sg::constants that are never written are constant. Constant nodes are run on real
// tensors. If another node needs a constant tensor, an sg::constant replaces its node:
//
//     %0 = sg::input("x")                                 c0 = f32[3] AAAAAAAAAAAAAAAAAAAAAA==
//     %1 = aten::arange(end=3)        : i64[3]            %0 = sg::input("x")
//     %2 = aten::_to_copy(%1, f32)    : f32[3]     ->     %1 = sg::constant(data=c0) : f32[3] @s2
//     %3 = aten::mul.Scalar(%2, 0.0)  : f32[3] @s2        %2 = aten::add.Tensor(self=%0, other=%1)
//     %4 = aten::add.Tensor(%0, %3)
//
// The constant keeps the storage of the tensor that it replaces, so views of it are unchanged.
//
// Never folded:
//
//   - random numbers, host reads, uninitialized tensors, tensors that are written or require a gradient;
//   - outputs of the graph, which the caller may write;
//   - results above max_bytes: a constant takes space in the graph, its file, and memory for the whole run;
//   - results whose dtype or geometry would differ from the recorded one;
//   - results on other devices than the CPU. Constants are on the CPU, so folding would replace a kernel by a copy to
//     the device; also, GPU kernels may differ from the CPU's in the last bit.
//
// Costs an operator call for each constant node, which are few, and 0.2 us for each other node.
#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <functional>

#include "core/calls/node_calls.h"
#include "ir/analysis/identity.h"
#include "ir/analysis/structural_hash.h"
#include "ir/edit/bulk_edits.h"
#include "ir/records.h"
#include "ir/text/tensor_bytes.h"
#include "shadowgraph/capture/fake.h"
#include "shadowgraph/graph/edit.h"
#include "shadowgraph/passes/simplify.h"

namespace shadowgraph {
namespace {

// Larger operands are too expensive to run while folding, whatever the result.
constexpr int64_t kMaxOperandBytes = 1 << 20;

class Folding {
 public:
  Folding(Graph& graph, int64_t max_bytes)
      : graph_(graph),
        max_bytes_(max_bytes),
        effects_(Effects::of(graph)),
        identity_(Identity::of(graph, effects_)),
        calls_(graph),
        known_nodes_(graph.node_capacity(), false),
        to_erase_(graph.node_capacity(), false) {}

  ConstFoldResult run() {
    evaluate();
    replace();
    const int64_t erased = erase_nodes(graph_, to_erase_);
    replacements_.finish(graph_);
    return {.folded = erased, .constants = constants_, .refused = refused_};
  }

 private:
  bool is_fresh(NodeId n, ValueId v) const {
    const StorageId s = graph_.value(v).storage;
    return s.valid() && graph_.storage(s).born == n;
  }

  void evaluate() {
    // The operators run on real tensors, even if a fake mode is active.
    const UnfakeGuard unfake;
    const BelowAutograd below;
    for (NodeId n : graph_.nodes()) {
      const TargetId target = graph_.node(n).target;
      if (target == target_of(Builtin::kConstant)) {
        take_constant(n);
      } else if (is_foldable(n)) {
        evaluate(n);
      }
    }
  }

  void take_constant(NodeId n) {
    const ValueId v = only_result(graph_, n);
    const Argument& data = graph_.arguments(n)[0];
    if (!v.valid() || data.kind != ArgumentKind::kConstant || !is_valid_result(n, v, kMaxOperandBytes, true)) return;
    const at::Tensor& tensor = graph_.constant(data.constant);
    if (!tensor.defined() || tensor.layout() != c10::kStrided || !tensor.device().is_cpu()) return;
    if (is_as_recorded(v, tensor)) tensors_[v] = tensor;
  }

  bool is_valid_result(NodeId n, ValueId v, int64_t max_bytes, bool may_escape) const {
    const Value& value = graph_.value(v);
    if (value.kind != ValueKind::kTensor || !value.storage.valid() || value.layout != c10::kStrided) return false;
    if (!value.device().is_cpu() || value.requires_grad || identity_.object_changes(v)) return false;
    if (!is_fresh(n, v)) return true;  // a view of a constant tensor
    return effects_.final_version(value.storage) == 0 && (may_escape || !identity_.escapes(value.storage)) &&
           graph_.storage(value.storage).bytes <= max_bytes && value.offset == 0;
  }

  bool is_foldable(NodeId n) {
    const Target& target = graph_.target(n);
    if (target.kind() != TargetKind::kOperator || !effects_.is_pure(n) || effects_.random(n)) return false;
    if (effects_.collective(n)) return false;
    const OperatorFacts& facts = target.facts();
    if (facts.uninitialized || facts.resizes) return false;
    bool good = !graph_.results(n).empty();
    graph_.for_each_output(n, [&](ValueId v) { good = good && is_valid_result(n, v, max_bytes_, false); });
    if (!good) return false;
    bool any_operand = false;
    bool all_known = true;
    graph_.for_each_input(n, [&](ValueId v) {
      any_operand = true;
      all_known = all_known && tensors_[v].defined();
    });
    if (!any_operand) return facts.fills;
    return all_known || is_filling_like(n, facts);
  }

  // zeros_like, new_full: only read the geometry of their operand.
  bool is_filling_like(NodeId n, const OperatorFacts& facts) const {
    if (!facts.fills || !facts.geometry_only) return false;
    const Argument& self = graph_.arguments(n)[0];
    if (self.kind != ArgumentKind::kValue) return false;
    const Value& value = graph_.value(self.ref.value);
    return value.kind == ValueKind::kTensor && value.layout == c10::kStrided && value.device().is_cpu() &&
           extent_of(graph_.sizes(self.ref.value), graph_.strides(self.ref.value)).value_or(max_bytes_) < max_bytes_;
  }

  // Returns a tensor of this geometry with arbitrary contents.
  at::Tensor unfilled(ValueId v) const {
    return at::empty_strided(graph_.sizes(v), graph_.strides(v), at::TensorOptions(graph_.value(v).dtype));
  }

  bool is_as_recorded(ValueId v, const at::Tensor& tensor) const {
    return tensor.defined() && tensor.scalar_type() == graph_.value(v).dtype &&
           std::ranges::equal(tensor.sizes(), graph_.sizes(v)) &&
           std::ranges::equal(tensor.strides(), graph_.strides(v)) && !tensor.is_conj() && !tensor.is_neg();
  }

  void evaluate(NodeId n) {
    torch::jit::Stack stack;
    std::vector<at::Tensor> results;
    at::Tensor geometry;
    const auto tensor_of = [&](ValueId v) -> const at::Tensor& {
      const at::Tensor& known = std::as_const(tensors_)[v];
      return known.defined() ? known : geometry = unfilled(v);
    };
    try {
      calls_.push_arguments(n, tensor_of, stack);
      calls_.call(n, stack);
    } catch (const std::exception&) {
      ++refused_;
      return;
    }
    for (const c10::IValue& result : stack) {
      if (result.isTensor()) {
        results.push_back(result.toTensor());
      } else if (result.isTensorList()) {
        for (const at::Tensor& tensor : result.toTensorVector()) results.push_back(tensor);
      }
    }
    size_t i = 0;
    bool good = true;
    graph_.for_each_output(n, [&](ValueId v) {
      good = good && i < results.size() && is_as_recorded(v, results[i]);
      ++i;
    });
    if (!good || i != results.size()) {
      ++refused_;
      return;
    }
    i = 0;
    graph_.for_each_output(n, [&](ValueId v) { tensors_[v] = results[i++]; });
    known_nodes_[n.index] = true;
  }

  // Backwards: erases a constant node that only constant nodes use; replaces others by constants, or keeps a view.
  void replace() {
    std::vector<NodeId> wanted;
    for (NodeId n : graph_.nodes_reversed()) {
      if (!known_nodes_[n.index]) continue;
      bool needed = false;
      bool fresh = true;
      graph_.for_each_output(n, [&](ValueId v) {
        graph_.for_each_use(v, [&](NodeId user) { needed = needed || !to_erase_[user.index]; });
        fresh = fresh && is_fresh(n, v);
      });
      if (needed && !fresh) continue;
      to_erase_[n.index] = true;
      if (needed) wanted.push_back(n);
    }
    if (wanted.empty()) return;
    NodeId position = graph_.first();
    while (position.valid() && is_placeholder(graph_.node(position).target)) position = graph_.node(position).next;
    InsertionPoint at(graph_, position);
    for (auto n = wanted.rbegin(); n != wanted.rend(); ++n) {
      graph_.for_each_output(*n, [&](ValueId v) { make_constant(at, v); });
    }
  }

  void make_constant(InsertionPoint& at, ValueId v) {
    bool needed = false;
    graph_.for_each_use(v, [&](NodeId user) { needed = needed || !to_erase_[user.index]; });
    if (!needed) return;
    const Value value = graph_.value(v);
    const ConstantId data = graph_.add_constant(tensors_[v]);
    const NodeId n = at.insert(target_of(Builtin::kConstant), {Argument::of_constant(data)});
    Node& node = mutable_node(graph_, n);
    node.region = Graph::kRootRegion;
    node.phase = Graph::kForward;
    node.flags = {};
    node.forward = NodeId();
    node.source = StringId();
    const ValueId made = graph_.add_tensor_result(n, {.dtype = value.dtype,
                                                      .sizes = graph_.sizes(v),
                                                      .strides = graph_.strides(v),
                                                      .storage = value.storage,
                                                      .device = value.device()});
    Storage& storage = mutable_storage(graph_, value.storage);
    storage.born = n;
    storage.kind = StorageKind::kConstant;
    graph_.replace_all_uses_with(v, made);
    replacements_.add(v, made);
    ++constants_;
  }

  Graph& graph_;
  const int64_t max_bytes_;
  const Effects effects_;
  const Identity identity_;
  NodeCalls calls_;
  IdMap<ValueId, at::Tensor> tensors_;  // undefined if not constant
  std::vector<bool> known_nodes_;
  std::vector<bool> to_erase_;
  Replacements replacements_;
  int64_t constants_ = 0;
  int64_t refused_ = 0;
};

}  // namespace

ConstFoldResult const_fold(Graph& graph, const ConstFoldOptions& options) {
  return Folding(graph, options.max_bytes).run();
}

PassResult ConstFoldResult::summary() const {
  return {.changed = folded != 0,
          .counters = {{"folded", folded}, {"constants", constants}, {"rejected by their operator", refused}}};
}

// merge-constants: merges constants with equal contents.
//
//     %1 = sg::constant(data=c0) : f32[8,8] @s1        a mask created by every layer or by const-fold
//     %2 = sg::constant(data=c1) : f32[8,8] @s2        erased if c1 has the bytes of c0: uses of %2 become uses of %1
//
// cse cannot merge them, since constants have no operands to compare. With one constant instead of twelve, everything
// computed from them is computed once (run cse afterwards), and files and emitted code contain it once.
//
// Legality. Type, offset and all bytes of the storage are equal bit by bit (NaN is NaN, -0.0 is not 0.0). Neither is
// written, no tensor object changes its geometry, and their views include no lazy conjugates. Neither is an output: two
// distinct output tensors would become one. Constants that share a storage with another placeholder are kept.
//
// One walk over the nodes; the bytes of constants are read once or twice. (ONNX optimizers: deduplicate_initializers.)

namespace {

class ConstantMerging {
 public:
  explicit ConstantMerging(Graph& graph)
      : graph_(graph),
        effects_(Effects::of(graph)),
        identity_(Identity::of(graph, effects_)),
        placeholders_(graph.storage_count(), 0),
        given_(graph.storage_count(), false),
        to_erase_(graph.node_capacity(), false) {
    for (NodeId n : graph.nodes()) {
      const auto give = [&](ValueId v) {
        if (const StorageId s = graph.value(v).storage; s.valid()) given_[s.index] = true;
      };
      if (graph.is_placeholder(n)) {
        graph.for_each_output(n, [&](ValueId v) {
          if (const StorageId s = graph.value(v).storage; s.valid()) ++placeholders_[s.index];
        });
      } else if (is_end(graph.node(n).target) || effects_.unknown(n)) {
        graph.for_each_input(n, give);
      }
    }
  }

  MergeConstantsResult run() {
    MergeConstantsResult result;
    HashIndex known(64);
    for (NodeId n : graph_.nodes()) {
      const ValueId v = mergeable(n);
      if (!v.valid()) continue;
      const auto bytes = tensor_bytes(tensor_of(n));
      if (!bytes) continue;
      const uint64_t contents = std::hash<std::string_view>()(text(bytes->bytes));
      const uint32_t earlier = known.find_or_add(hash_of_type(graph_, v, contents), n.index, [&](uint32_t other) {
        const ValueId w = only_result(graph_, NodeId(other));
        return same_type_and_offset(graph_, v, w) &&
               graph_.storage(graph_.value(v).storage).bytes == graph_.storage(graph_.value(w).storage).bytes &&
               text(tensor_bytes(tensor_of(NodeId(other)))->bytes) == text(bytes->bytes);
      });
      if (earlier == n.index) continue;
      const ValueId kept = only_result(graph_, NodeId(earlier));
      graph_.replace_all_uses_with(v, kept);
      replacements_.add(v, kept);
      replacements_.add(n, NodeId(earlier));
      to_erase_[n.index] = true;
      ++result.merged;
      result.bytes += graph_.storage(graph_.value(kept).storage).bytes;
    }
    replacements_.finish(graph_);
    erase_nodes(graph_, to_erase_);
    return result;
  }

 private:
  static std::string_view text(const std::vector<uint8_t>& bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  const at::Tensor& tensor_of(NodeId n) const { return graph_.constant(graph_.arguments(n)[0].constant); }

  // Returns the value of a constant that may be merged with another; invalid if it may not.
  ValueId mergeable(NodeId n) const {
    if (graph_.node(n).target != target_of(Builtin::kConstant)) return {};
    const ValueId v = only_result(graph_, n);
    if (!v.valid() || graph_.arguments(n)[0].kind != ArgumentKind::kConstant) return {};
    const StorageId s = graph_.value(v).storage;
    if (!s.valid() || placeholders_[s.index] != 1 || given_[s.index] || effects_.final_version(s) != 0) return {};
    if (identity_.object_changes(v) || identity_.has_lazy_views(s) || graph_.value(v).requires_grad) return {};
    const at::Tensor& tensor = tensor_of(n);
    // The whole storage: a view of a larger tensor shows only a part of its contents.
    if (!tensor.defined() || tensor.is_conj() || tensor.is_neg() || graph_.value(v).offset != 0 ||
        graph_.storage(s).bytes != graph_.logical_bytes(v)) {
      return {};
    }
    return v;
  }

  Graph& graph_;
  const Effects effects_;
  const Identity identity_;
  std::vector<uint32_t> placeholders_;  // by storage
  std::vector<bool> given_;             // by storage: operand of sg::output, sg::gradient or an unknown operator
  std::vector<bool> to_erase_;
  Replacements replacements_;
};

}  // namespace

MergeConstantsResult merge_constants(Graph& graph) { return ConstantMerging(graph).run(); }

PassResult MergeConstantsResult::summary() const {
  return PassResult::of_changes({{"merged", merged}, {"bytes", bytes}});
}

}  // namespace shadowgraph
