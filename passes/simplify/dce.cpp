// dce: dead code elimination.
//
// Walks backwards with one bit per storage: whether its contents at this point are read later. A node is kept if a
// result of it is used, if it has a side effect, or if it writes or allocates a storage that is read later.
//
//     %1 = aten::empty(...)                    @s1
//     %2 = aten::add_.Tensor(self=%1, ...)     @s1    erased: s1 is not read afterwards
//     %3 = aten::add_.Tensor(self=%0, ...)     @s0    kept: s0 is an input, and the caller still has it
//     %4 = aten::bernoulli(self=%0)            @s2    kept: later random numbers depend on it (unless random=drop)
//
// Removing pure nodes without uses, as in torch.fx, would not be enough: an in-place operator on a dead buffer would be
// kept forever, and a write through a view, whose result is unused, would be removed although the base is read.
//
// A storage is read later if it belongs to an operand of a kept node, of sg::output or sg::gradient, or if the user
// still has it when the graph ends: parameters, buffers, inputs, constants, gradients and optimizer state not freed.
//
// Always kept: parameters, buffers and inputs, host reads, collectives, unknown operators, operators without results,
// and random operators unless random=drop. A graph that restores a random state (docs/checkpoints.md) always keeps
// random operators. Tensors saved for an erased backward do not keep anything alive; kept nodes no longer list them.
//
// One walk each way; about 0.1 us per node.
#include <c10/core/MemoryFormat.h>
#include <c10/core/TensorImpl.h>

#include <algorithm>
#include <array>
#include <limits>

#include "core/calls/functions.h"
#include "ir/analysis/identity.h"
#include "ir/edit/bulk_edits.h"
#include "ir/operators/operator_facts.h"
#include "ir/records.h"
#include "ir/text/tensor_bytes.h"
#include "shadowgraph/graph/analysis.h"
#include "shadowgraph/passes/simplify.h"

namespace shadowgraph {
namespace {

class DeadCode {
 public:
  DeadCode(const Graph& graph, bool drop_random)
      : graph_(graph),
        effects_(Effects::of(graph)),
        drop_random_(drop_random),
        needed_values_(graph.value_capacity(), false),
        needed_storages_(graph.storage_count(), false) {
    for (uint32_t i = 0; i < graph.storage_count(); ++i) needed_storages_[i] = outlives(graph, StorageId(i));
  }

  // By node index.
  std::vector<bool> run() {
    std::vector<bool> dead(graph_.node_capacity(), false);
    for (NodeId n : graph_.nodes_reversed()) {
      if (!is_needed(n)) {
        dead[n.index] = true;
        continue;
      }
      graph_.for_each_input(n, [&](ValueId v) {
        needed_values_[v.index] = true;
        if (const StorageId s = graph_.value(v).storage; s.valid()) needed_storages_[s.index] = true;
      });
    }
    return dead;
  }

 private:
  bool is_effect(TargetId id) const {
    const Target& target = graph_.target(id);
    const OperatorFacts& facts = target.facts();
    return is_end(id) || (is_placeholder(id) && id != target_of(Builtin::kConstant)) || facts.collective ||
           (target.signature().returns.empty() && facts.written.empty());
  }

  bool is_needed(NodeId n) const {
    if (is_effect(graph_.node(n).target) || effects_.host_read(n) || effects_.unknown(n)) return true;
    if (effects_.random(n) && !drop_random_) return true;
    for (const StorageWrite& write : effects_.writes(n)) {
      if (write.storage.index < needed_storages_.size() && needed_storages_[write.storage.index]) return true;
    }
    bool needed = false;
    graph_.for_each_output(n, [&](ValueId v) {
      needed = needed || needed_values_[v.index];
      const StorageId s = graph_.value(v).storage;
      // A constant is kept for its readers; a kept node that writes it also reads it.
      const bool is_allocation = s.valid() && graph_.storage(s).born == n && !is_placeholder(graph_.node(n).target);
      needed = needed || (is_allocation && needed_storages_[s.index]);
    });
    return needed;
  }

  const Graph& graph_;
  const Effects effects_;
  const bool drop_random_;
  std::vector<bool> needed_values_;
  std::vector<bool> needed_storages_;
};

// Returns whether random numbers are drawn twice from one state. Dropping only one draw would shift later ones.
bool replays_random_state(const Graph& graph) {
  for (uint32_t i = 0; i < graph.target_count(); ++i) {
    const std::string& name = graph.target(TargetId(i)).name();
    if (name == exchange_random_state().name() || name == set_random_state().name()) return true;
  }
  return false;
}

}  // namespace

DceResult dce(Graph& graph, const DceOptions& options) {
  const bool drop_random = options.random == DceOptions::Random::kDrop && !replays_random_state(graph);
  const std::vector<bool> dead = DeadCode(graph, drop_random).run();
  return {.erased = erase_nodes(graph, dead)};
}

PassResult DceResult::summary() const { return {.changed = erased != 0, .counters = {{"erased", erased}}}; }

// dead-storage: dead store elimination, and allocations folded into the operator that fills them.
//
// Rules; `@s` is a storage local to the program that is not read in between:
//
//     overwritten   zero_(%1 @s) ... copy_(%1 @s, %2)             the first write is erased
//     self-copy     copy_(%1, %1)                                 erased
//     unfilled      %1 = zeros(..) @s ... copy_(%1, %2)           zeros, ones, full and their _like become empty
//     filled        %1 = empty(..) @s ... zero_(%1) / fill_(%1)   becomes zeros / full, in place of the fill
//     cloned        %1 = empty(..) @s ... copy_(%1, %2)           becomes clone(%2), in place of the copy
//
// A write overwrites a storage if its operator overwrites its operand (zero_, copy_, normal_: ir/operators/) and the
// value covers its storage. Never changed: writes to storages that are visible outside and not overwritten, random
// fills, and results with another geometry than their operand. Dead nodes are left to dce.
//
// Gradients are allocated as zeros and accumulated into, workspaces are cleared before they are filled, functionalized
// programs copy into new buffers. Each costs a write of the whole tensor and a kernel launch.
//
// One walk backwards, one forwards; about 0.3 us per node.

namespace {

class DeadStorage {
 public:
  explicit DeadStorage(Graph& graph)
      : graph_(graph),
        effects_(Effects::of(graph)),
        identity_(Identity::of(graph, effects_)),
        to_erase_(graph.node_capacity(), false),
        kinds_(graph.target_count(), kNotComputed),
        covered_(graph.storage_count(), 0) {
    for (NodeId n : graph.nodes()) graph.for_each_output(n, [&](ValueId v) { cover(v); });
  }

  DeadStorageResult run() {
    drop_overwritten();
    replace_allocations();
    replacements_.finish(graph_);
    erase_nodes(graph_, to_erase_);
    return done_;
  }

 private:
  enum Kind : uint8_t { kNotComputed, kOther, kZero, kFill, kCopy, kFilledFactory, kFilledLike, kEmpty, kEmptyLike };

  Kind kind(NodeId n) {
    const TargetId target = graph_.node(n).target;
    if (target.index >= kinds_.size()) kinds_.resize(target.index + 1, kNotComputed);
    Kind& known = kinds_[target.index];
    if (known == kNotComputed) known = kind_of(graph_.target(target).name());
    return known;
  }

  static Kind kind_of(std::string_view name) {
    if (name == "aten::zero_") return kZero;
    if (name == "aten::fill_.Scalar") return kFill;
    if (name == "aten::copy_") return kCopy;
    if (name == "aten::zeros" || name == "aten::ones" || name == "aten::full") return kFilledFactory;
    if (name == "aten::zeros_like" || name == "aten::ones_like" || name == "aten::full_like") return kFilledLike;
    if (name == "aten::empty.memory_format" || name == "aten::empty_strided") return kEmpty;
    if (name == "aten::empty_like") return kEmptyLike;
    return kOther;
  }

  ValueId operand(NodeId n, size_t position) const {
    const auto arguments = graph_.arguments(n);
    const bool is_value = position < arguments.size() && arguments[position].kind == ArgumentKind::kValue;
    return is_value ? arguments[position].ref.value : ValueId();
  }

  // Adds the bytes of a value to the range of bytes that the values of its storage cover.
  void cover(ValueId v) {
    const Value& value = graph_.value(v);
    if (value.kind != ValueKind::kTensor || !value.storage.valid()) return;
    int64_t& covered = covered_[value.storage.index];
    const auto extent = extent_of(graph_.sizes(v), graph_.strides(v));
    if (value.layout != c10::kStrided || !extent) {
      covered = std::numeric_limits<int64_t>::max();
    } else if (*extent > 0) {
      covered = std::max(covered, (value.offset + *extent) * static_cast<int64_t>(c10::elementSize(value.dtype)));
    }
  }

  // Returns whether every byte reached by any value of the storage is an element of this one.
  bool covers_storage(ValueId v) const {
    const Value& value = graph_.value(v);
    if (!value.storage.valid() || value.layout != c10::kStrided || value.offset != 0) return false;
    const auto extent = extent_of(graph_.sizes(v), graph_.strides(v));
    const int64_t item = static_cast<int64_t>(c10::elementSize(value.dtype));
    if (!extent || *extent != graph_.numel(v) || *extent * item < covered_[value.storage.index]) return false;
    // The number of elements equals the extent, but two of them may coincide: f32[2,2]{1,1} reaches 3.
    return is_dense(view_of(graph_, v));
  }

  // Returns the storage that a node overwrites without reading it; invalid if there is none.
  StorageId whole_write(NodeId n) {
    const OperatorFacts& facts = graph_.facts(n);
    if (!facts.is_in_place || !is_overwritten(facts, 0)) return {};
    const ValueId self = operand(n, 0);
    if (!self.valid() || identity_.object_changes(self) || !covers_storage(self)) return {};
    const StorageId s = graph_.value(self).storage;
    bool reads = false;
    graph_.for_each_value(graph_.arguments(n).subspan(1), [&](ValueId v) { reads |= graph_.value(v).storage == s; });
    return reads ? StorageId() : s;
  }

  // Returns the operand if the node's result is the written operand itself; otherwise invalid.
  ValueId written_in_place(NodeId n) {
    const ValueId result = only_result(graph_, n);
    const ValueId self = operand(n, 0);
    if (!result.valid() || !self.valid() || !same_type_and_offset(graph_, result, self)) return {};
    return graph_.value(result).storage == graph_.value(self).storage && !identity_.object_changes(self) ? self
                                                                                                         : ValueId();
  }

  // Applies `overwritten` and `self-copy`, and collects facts for `unfilled`: backwards, with one bit per storage.
  void drop_overwritten() {
    std::vector<bool> overwritten(graph_.storage_count(), false);  // overwritten before it is read, from here on
    unread_at_allocation_.assign(graph_.storage_count(), false);
    for (NodeId n : graph_.nodes_reversed()) {
      if (drop_dead_write(n, overwritten)) continue;
      const StorageId whole = whole_write(n);
      const bool is_view = graph_.results(n).size() != 0 && effects_.is_pure(n) && makes_views_only(n);
      graph_.for_each_output(n, [&](ValueId v) {
        const StorageId s = graph_.value(v).storage;
        if (s.valid() && graph_.storage(s).born == n) unread_at_allocation_[s.index] = overwritten[s.index];
      });
      if (!is_view) {
        for (const StorageVersion& read : effects_.reads(n)) {
          if (read.storage.index < overwritten.size()) overwritten[read.storage.index] = false;
        }
      }
      if (whole.valid()) overwritten[whole.index] = true;
    }
  }

  // Removes a write that is overwritten before it is read, or that copies a tensor to itself. Returns whether it did.
  bool drop_dead_write(NodeId n, const std::vector<bool>& overwritten) {
    const OperatorFacts& facts = graph_.facts(n);
    if (!facts.is_in_place || !is_overwritten(facts, 0) || facts.random) return false;
    const ValueId self = written_in_place(n);
    if (!self.valid()) return false;
    const StorageId s = graph_.value(self).storage;
    const ValueId source = operand(n, 1);
    const bool copies_itself = kind(n) == kCopy && source.valid() && graph_.value(source).storage == s &&
                               same_type_and_offset(graph_, self, source) && !identity_.has_lazy_views(s);
    if (!overwritten[s.index] && !copies_itself) return false;
    ++(overwritten[s.index] ? done_.overwritten : done_.self_copies);
    const ValueId result = only_result(graph_, n);
    graph_.replace_all_uses_with(result, self);
    replacements_.add(result, self);
    to_erase_[n.index] = true;
    return true;
  }

  bool makes_views_only(NodeId n) {
    bool views = graph_.facts(n).is_view;
    graph_.for_each_output(n, [&](ValueId v) {
      const StorageId s = graph_.value(v).storage;
      views = views && s.valid() && graph_.storage(s).born != n;
    });
    return views;
  }

  // Applies `unfilled`, then `filled` and `cloned`: forwards.
  void replace_allocations() {
    IdMap<StorageId, NodeId> empties;  // storages allocated by empty and not used since
    for (NodeId n : graph_.nodes()) {
      if (to_erase_[n.index]) continue;
      const Kind k = kind(n);
      if (k == kFilledFactory || k == kFilledLike) replace_by_empty(n, k);
      const StorageId whole = whole_write(n);
      if (whole.valid() && empties[whole].valid()) {
        const NodeId allocation = empties[whole];
        if (operand(n, 0) == only_result(graph_, allocation)) fuse(allocation, n);
      }
      graph_.for_each_input(n, [&](ValueId v) {
        if (const StorageId s = graph_.value(v).storage; s.valid() && empties[s].valid()) empties[s] = NodeId();
      });
      const Kind now = kind(n);
      const ValueId result = only_result(graph_, n);
      if ((now == kEmpty || now == kEmptyLike) && result.valid() && is_own(n, result)) {
        empties[graph_.value(result).storage] = n;
      }
    }
  }

  bool is_own(NodeId n, ValueId v) const {
    const StorageId s = graph_.value(v).storage;
    return s.valid() && graph_.storage(s).born == n && !identity_.object_changes(v) && !to_erase_[n.index];
  }

  // zeros(size, dtype, layout, device, pin_memory) and full(size, fill_value, dtype, ...) -> empty(size, dtype, ...,
  // memory_format); zeros_like(self, ...) and full_like(self, fill_value, ...) -> empty_like(self, ...)
  void replace_by_empty(NodeId n, Kind k) {
    const ValueId result = only_result(graph_, n);
    if (!result.valid() || !is_own(n, result) || !unread_at_allocation_[graph_.value(result).storage.index]) return;
    std::vector<Argument> arguments(graph_.arguments(n).begin(), graph_.arguments(n).end());
    const bool has_value = graph_.target(n).signature().name.starts_with("aten::full");
    if (has_value) arguments.erase(arguments.begin() + 1);
    // The dtype may have been inferred from the fill value, or from the default dtype.
    arguments[1] = Argument::of_int(static_cast<int64_t>(graph_.value(result).dtype));
    if (k == kFilledFactory) arguments.push_back(Argument::none());  // memory_format
    const TargetId target = k == kFilledFactory ? graph_.intern_operator("aten::empty.memory_format")
                                                : graph_.intern_operator("aten::empty_like");
    graph_.set_call(n, target, arguments);
    ++done_.unfilled;
  }

  // The write allocates the storage; the allocation is left without uses.
  void fuse(NodeId allocation, NodeId write) {
    const ValueId target_value = only_result(graph_, allocation);
    const ValueId result = only_result(graph_, write);
    const Kind k = kind(write);
    if (!result.valid() || !same_type_and_offset(graph_, target_value, result)) return;
    // Other nodes must not hold the tensor that the write would no longer return.
    uint32_t uses = 0;
    graph_.for_each_use(target_value, [&](NodeId user) { uses += !to_erase_[user.index]; });
    if (k != kZero && k != kFill && k != kCopy) return;
    if (k == kCopy ? !make_clone(write, uses) : !make_filled(allocation, write, uses)) return;
    mutable_storage(graph_, graph_.value(result).storage).born = write;
    to_erase_[allocation.index] = true;
    ++(k == kCopy ? done_.cloned : done_.filled);
  }

  bool make_clone(NodeId write, uint32_t uses) {
    const ValueId result = only_result(graph_, write);
    const ValueId source = operand(write, 1);
    if (uses != 1 || !source.valid() || graph_.value(source).kind != ValueKind::kTensor) return false;
    const Value& from = graph_.value(source);
    const Value& to = graph_.value(result);
    if (from.dtype != to.dtype || from.device() != to.device() || from.layout != c10::kStrided ||
        !std::ranges::equal(graph_.sizes(source), graph_.sizes(result)) || to.requires_grad ||
        identity_.has_lazy_views(from.storage) || identity_.has_lazy_views(to.storage)) {
      return false;
    }
    // clone keeps the source's strides if they are dense, or contiguous ones if requested.
    Argument format = Argument::none();
    if (!is_dense(view_of(graph_, source)) || !std::ranges::equal(graph_.strides(source), graph_.strides(result))) {
      if (!has_contiguous_strides(graph_.sizes(result), graph_.strides(result))) return false;
      format = Argument::of_int(static_cast<int64_t>(c10::MemoryFormat::Contiguous));
    }
    graph_.set_call(write, graph_.intern_operator("aten::clone"), std::array{Argument::of_value(source), format});
    return true;
  }

  bool make_filled(NodeId allocation, NodeId write, uint32_t uses) {
    if (uses != 1 || kind(allocation) != kEmpty) return false;
    const ValueId result = only_result(graph_, write);
    if (!has_contiguous_strides(graph_.sizes(result), graph_.strides(result))) return false;
    if (graph_.value(result).requires_grad) return false;
    const bool zero = kind(write) == kZero;
    const Value& value = graph_.value(result);
    const Argument* pinned = graph_.find_argument(allocation, "pin_memory");
    std::vector<Argument> arguments{graph_.int_list(graph_.sizes(result))};
    if (!zero) arguments.push_back(graph_.arguments(write)[1]);
    arguments.insert(arguments.end(), {Argument::of_int(static_cast<int64_t>(value.dtype)), Argument::none(),
                                       Argument::of_device(value.device()), *pinned});
    graph_.set_call(write, graph_.intern_operator(zero ? "aten::zeros" : "aten::full"), arguments);
    return true;
  }

  Graph& graph_;
  const Effects effects_;
  const Identity identity_;
  std::vector<bool> to_erase_;
  std::vector<Kind> kinds_;       // by target
  std::vector<int64_t> covered_;  // by storage, bytes
  std::vector<bool> unread_at_allocation_;
  Replacements replacements_;
  DeadStorageResult done_;
};

}  // namespace

DeadStorageResult dead_storage(Graph& graph) { return DeadStorage(graph).run(); }

PassResult DeadStorageResult::summary() const {
  return PassResult::of_changes({{"overwritten", overwritten},
                                 {"self-copy", self_copies},
                                 {"unfilled", unfilled},
                                 {"filled", filled},
                                 {"cloned", cloned}});
}

}  // namespace shadowgraph
