// Runs functional operators in place.
//
//   1. For every storage, finds the last node that reads its contents (views only pass them on), and for placeholders
//      the write-back that overwrites them as a whole.
//   2. In program order, decides for each node whether it may overwrite an operand. If so, merges the result's storage
//      into the operand's, so that chains work: the merged storage's last reader is the result's.
//   3. Builds a new graph in which nodes are copied, called in place, turned from a scatter into a copy_ to a view, or
//      omitted. All decisions are in Reinplacer, all edits in Build.
//
// Designed for functional graphs. In other graphs, storages that the program itself writes are left unchanged.
#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/calls/functions.h"
#include "ir/analysis/identity.h"
#include "ir/operators/operator_facts.h"
#include "ir/operators/operator_forms.h"
#include "passes/functional/lazy_bits.h"
#include "passes/rewrite/node_emitter.h"
#include "shadowgraph/graph/analysis.h"
#include "shadowgraph/passes/functional.h"

namespace shadowgraph {
namespace {

// An operator that returns its first operand with a part replaced, and the view of that part.
struct Scatter {
  const char* name;
  const char* view;
};

constexpr Scatter kScatters[] = {{"aten::slice_scatter", "aten::slice.Tensor"},
                                 {"aten::select_scatter", "aten::select.int"},
                                 {"aten::diagonal_scatter", "aten::diagonal"},
                                 {"aten::as_strided_scatter", "aten::as_strided"}};

// Returns nullptr for other operators.
const Scatter* scatter_of(const Target& target) {
  const auto found = std::ranges::find(kScatters, target.name(), &Scatter::name);
  return found == std::end(kScatters) ? nullptr : found;
}

int64_t int_or(const Argument& argument, int64_t otherwise) {
  return argument.kind == ArgumentKind::kInt ? argument.i : otherwise;
}

void erase_dimension(TensorGeometry& geometry, size_t dim) {
  geometry.sizes.erase(geometry.sizes.begin() + static_cast<std::ptrdiff_t>(dim));
  geometry.strides.erase(geometry.strides.begin() + static_cast<std::ptrdiff_t>(dim));
}

}  // namespace

class Reinplacer {
 public:
  explicit Reinplacer(const Graph& graph)
      : old_(graph),
        bits_(lazy_bits_of(graph)),
        storages_(graph.storage_count()),
        into_(graph.storage_count()),
        original_searched_(graph.target_count()) {
    collect_facts();
  }

  // Returns whether there is anything to do.
  bool decide() {
    uint32_t ordinal = 0;
    for (const NodeId n : old_.nodes()) {
      ++ordinal;
      if (std::as_const(decisions_)[n].kind != Kind::kCopy) continue;  // a scatter that was removed with its source
      if (!decide_operator(n, ordinal) && !decide_scatter(n, ordinal)) decide_write_back(n);
    }
    result.changed = result.operators + result.scatters + result.write_backs > 0;
    return result.changed;
  }

  Graph build();

  ReinplaceResult result;

 private:
  enum class Kind : uint8_t {
    kCopy,     // the node as it is
    kInPlace,  // its in-place form
    kView,     // a scatter: its view, and a copy to that view
    kOmitted,  // the first operand already contains the result
  };
  struct Decision {
    Kind kind = Kind::kCopy;
    const Target* target = nullptr;  // kInPlace
  };
  // A written operand, and the result that it replaces.
  struct Write {
    ValueId operand, made;
  };
  struct StorageFacts {
    uint32_t last_read = 0;         // ordinal
    uint32_t read_before = 0;       // the previous reader
    uint32_t write_back = 0;        // ordinal of the copy that overwrites it as a whole; 0 if none
    bool given = false;             // belongs to a placeholder
    bool written = false;           // by the original program, except write-backs
    bool saved = false;             // saved for backward
    bool read_in_backward = false;  // backward has read the saved tensor
    bool returned = false;          // by sg::output or sg::gradient
  };

  class Build;

  // Computes StorageFacts in one walk: the last readers of contents, and the write-backs of placeholders.
  void collect_facts() {
    uint32_t ordinal = 0;
    const AliasAnalysis aliases = AliasAnalysis::of(old_);
    for (const NodeId n : old_.nodes()) {
      ordinal_[n] = ++ordinal;
      const TargetId target = old_.node(n).target;
      const OperatorFacts& facts = old_.facts(target);
      const auto arguments = old_.arguments(n);
      if (is_placeholder(target)) {
        old_.for_each_output(n, [&](ValueId v) {
          if (old_.value(v).storage.valid()) storages_[old_.value(v).storage.index].given = true;
        });
      }
      for (const SavedTensor& saved : old_.saved(n)) {
        const StorageId storage = old_.value(saved.value).storage;
        if (storage.valid()) storages_[storage.index].saved = true;
      }
      if (facts.is_view && !facts.unknown) continue;
      const bool backward = old_.node(n).phase == Graph::kBackward || old_.node(n).forward.valid();
      const bool writes = facts.unknown || (!facts.written.empty() && writes_now(old_, n, facts));
      const bool is_write_back = writes && old_.target(n).name() == "aten::copy_";
      for (size_t i = 0; i < arguments.size(); ++i) {
        const bool written = writes && (facts.unknown || std::ranges::find(facts.written, i) != facts.written.end());
        old_.for_each_value(arguments.subspan(i, 1), [&](ValueId v) {
          const StorageId id = old_.value(v).storage;
          if (!id.valid()) return;
          StorageFacts& storage = storages_[id.index];
          if (written) {
            const StridedView view = view_of(old_, v);
            const auto [first, last] = aliases.bytes_used(id);
            const bool whole = is_dense(view) && view.bytes().first <= first && last <= view.bytes().second;
            if (is_write_back && storage.given && whole && storage.write_back == 0) {
              storage.write_back = ordinal;
              return;  // the old contents are not read
            }
            storage.written = true;
          }
          // After the write-back, reads are of the new contents.
          if (storage.write_back != 0 && !written) return;
          if (storage.last_read != ordinal) storage.read_before = std::exchange(storage.last_read, ordinal);
          storage.read_in_backward = storage.read_in_backward || backward;
          if (is_end(target)) storage.returned = true;
        });
      }
    }
  }

  // Returns the storage that a result's storage was merged into, possibly through several merges.
  StorageId merged(StorageId storage) {
    while (into_[storage.index].valid()) storage = into_[storage.index];
    return storage;
  }

  // Returns whether the storage of `value` is not read after this node, except by `except`, and may be overwritten.
  bool is_dead_after(ValueId value, uint32_t ordinal, NodeId except = NodeId()) {
    const StorageId id = old_.value(value).storage;
    if (!id.valid()) return false;
    const StorageFacts& storage = storages_[id.index];
    const uint32_t last = except.valid() ? ordinal_[except] : ordinal;
    // The program's own writes depend on the contents in ways that `last_read` does not include.
    if (storage.written || storage.last_read > last) return false;
    // A placeholder's storage may only be written if the program overwrites it later anyway.
    if (storage.given && (storage.write_back == 0 || storage.write_back < ordinal)) return false;
    // Saved for a backward that is not in this graph, or has not read it yet: it may still run.
    return !storage.saved || storage.read_in_backward;
  }

  // Returns whether a result may use its operand's memory from this node on.
  bool may_take(ValueId operand, ValueId result, uint32_t ordinal, NodeId except = NodeId()) {
    const Value& a = old_.value(operand);
    const Value& b = old_.value(result);
    if (a.layout != c10::Layout::Strided || !a.storage.valid() || !b.storage.valid() || a.storage == b.storage) {
      return false;
    }
    // The result would be stored as its conjugate or negative.
    if (bits_[operand] != 0) return false;
    // The result must fit in place of the operand: same geometry and size, not shared, no element twice (expand()).
    if (a.dtype != b.dtype || a.device() != b.device() ||
        !same_geometry(view_of(old_, operand), view_of(old_, result)) ||
        internal_overlap(view_of(old_, operand)) != Overlap::kNone ||
        old_.storage(a.storage).bytes != old_.storage(b.storage).bytes || storages_[b.storage.index].given ||
        storages_[b.storage.index].written) {
      return false;
    }
    if (!is_dead_after(operand, ordinal, except)) return false;
    // Memory that a write-back overwrites must not be read afterwards under another name, nor be returned.
    const uint32_t limit = storages_[merged(a.storage).index].write_back;
    const StorageFacts& taken = storages_[b.storage.index];
    return limit == 0 || (taken.last_read <= limit && !taken.returned);
  }

  // Facts about the result's storage become facts about the operand's.
  void merge(ValueId operand, ValueId result) {
    into_[old_.value(result).storage.index] = merged(old_.value(operand).storage);
  }

  // Pairs the operands that an in-place operator writes with the corresponding results; empty if that is impossible. A
  // functional call returns its results first and then the written arguments.
  std::vector<Write> writes_of(NodeId n, const OperatorFacts& facts) const {
    const auto arguments = old_.arguments(n);
    const auto results = old_.results(n);
    if (results.size() < facts.written.size()) return {};
    const size_t fresh = results.size() - facts.written.size();
    std::vector<Write> writes;
    for (size_t w = 0; w < facts.written.size(); ++w) {
      std::vector<ValueId> operands;
      std::vector<ValueId> made;
      old_.for_each_value(arguments.subspan(facts.written[w], 1), [&](ValueId v) { operands.push_back(v); });
      old_.for_each_value(results.subspan(fresh + w, 1), [&](ValueId v) { made.push_back(v); });
      if (operands.size() != made.size()) return {};
      for (size_t i = 0; i < made.size(); ++i) writes.push_back({operands[i], made[i]});
    }
    return writes;
  }

  // Returns whether a written storage is also another operand: add_(x, x.t()) reads what it has written.
  bool reads_what_it_writes(NodeId n, const OperatorFacts& facts, std::span<const Write> writes) {
    const auto arguments = old_.arguments(n);
    bool found = false;
    for (size_t i = 0; i < arguments.size(); ++i) {
      const bool is_written = std::ranges::find(facts.written, i) != facts.written.end();
      old_.for_each_value(arguments.subspan(i, 1), [&](ValueId v) {
        const StorageId storage = old_.value(v).storage;
        uint32_t same = 0;
        for (const Write& write : writes) {
          if (storage.valid() && merged(storage) == merged(old_.value(write.operand).storage)) ++same;
        }
        found = found || same > (is_written ? 1U : 0U);
      });
    }
    return found;
  }

  // Returns whether a value computed from the place that it is scattered into can be computed in place. With %2 =
  // mul(%1, 2) and %3 = slice_scatter(%0, %2), where %1 is that slice of %0, mul_(%1, 2) suffices. %1 must have the
  // layout of the slice, and the kernel must compute the same bits there: some sum in another order for other strides.
  bool makes_scatter_redundant(NodeId n, uint32_t ordinal, const Target& target, const Write& write, NodeId scatter) {
    const auto arguments = old_.arguments(scatter);
    const auto place = region(scatter);
    const Value& value = old_.value(write.operand);
    if (!place || bits_[write.operand] != 0 || arguments[0].kind != ArgumentKind::kValue || !value.storage.valid() ||
        old_.value(arguments[0].ref.value).storage != value.storage || place->dtype != value.dtype ||
        old_.value(write.made).dtype != value.dtype || storages_[old_.value(write.made).storage.index].saved) {
      return false;
    }
    const StridedView there{place->sizes, place->strides, place->offset, place->itemsize()};
    const StridedView dense = view_of(old_, write.made);
    if (!std::ranges::equal(dense.sizes, there.sizes)) return false;
    const FunctionalForm* form = functional_form(target);
    const bool same_bits =
        form && ((form->target.facts().pointwise && !form->target.facts().random && is_layout_independent(old_, n)) ||
                 same_elements({dense.sizes, dense.strides, 0, 1}, {there.sizes, there.strides, 0, 1}));
    // Nothing may read the place between the two.
    const StorageFacts& storage = storages_[value.storage.index];
    const bool alone = storage.last_read == ordinal_[scatter] && storage.read_before <= ordinal;
    const ValueId whole = old_.results(scatter).front().ref.value;
    return same_bits && same_geometry(there, view_of(old_, write.operand)) && alone &&
           may_take(arguments[0].ref.value, whole, ordinal, scatter);
  }

  // Runs an operator in place, and removes the scatter that is the only reader of the result if possible.
  bool decide_operator(NodeId n, uint32_t ordinal) {
    const Target* target = in_place(n);
    if (target == nullptr) return false;
    const OperatorFacts& facts = target->facts();
    const std::vector<Write> writes = writes_of(n, facts);
    if (writes.empty()) return false;
    NodeId scatter;
    if (writes.size() == 1 && !old_.has_uses(writes[0].made)) return false;
    if (writes.size() == 1) scatter = only_scatter(writes[0].made);
    if (reads_what_it_writes(n, facts, writes)) return false;
    const bool redundant = scatter.valid() && makes_scatter_redundant(n, ordinal, *target, writes[0], scatter);
    for (const Write& write : writes) {
      if (!redundant && !may_take(write.operand, write.made, ordinal)) return false;
    }
    decisions_[n] = {Kind::kInPlace, target};
    for (const Write& write : writes) merge(write.operand, write.made);
    ++result.operators;
    if (redundant) {
      decisions_[scatter].kind = Kind::kOmitted;
      merge(old_.arguments(scatter)[0].ref.value, old_.results(scatter).front().ref.value);
      ++result.scatters;
    }
    return true;
  }

  // slice_scatter(base, source) becomes a copy_ to the slice of base, if the old base is not needed.
  bool decide_scatter(NodeId n, uint32_t ordinal) {
    const auto arguments = old_.arguments(n);
    if (scatter_of(old_.target(n)) == nullptr || arguments[0].kind != ArgumentKind::kValue ||
        arguments[1].kind != ArgumentKind::kValue) {
      return false;
    }
    const ValueId base = arguments[0].ref.value;
    const ValueId source = arguments[1].ref.value;
    const ValueId whole = old_.results(n).front().ref.value;
    const StorageId from = old_.value(source).storage;
    // A source that was merged into the base's memory would be overwritten while it is read.
    if (!region(n) || !from.valid() || !may_take(base, whole, ordinal) ||
        merged(from) == merged(old_.value(base).storage)) {
      return false;
    }
    decisions_[n].kind = Kind::kView;
    merge(base, whole);
    ++result.scatters;
    return true;
  }

  // Removes copy_(x, y) if y was computed in the memory of x.
  bool decide_write_back(NodeId n) {
    const auto arguments = old_.arguments(n);
    if (old_.target(n).name() != "aten::copy_" || arguments[0].kind != ArgumentKind::kValue ||
        arguments[1].kind != ArgumentKind::kValue) {
      return false;
    }
    const ValueId to = arguments[0].ref.value;
    const ValueId from = arguments[1].ref.value;
    const StorageId a = old_.value(to).storage;
    const StorageId b = old_.value(from).storage;
    if (!a.valid() || !b.valid() || a == b || merged(a) != merged(b) ||
        old_.value(to).dtype != old_.value(from).dtype || !same_geometry(view_of(old_, to), view_of(old_, from))) {
      return false;
    }
    decisions_[n].kind = Kind::kOmitted;
    ++result.write_backs;
    return true;
  }

  // Returns where a scatter writes, as a view of its first operand; nullopt for invalid dimensions.
  std::optional<TensorGeometry> region(NodeId n) const {
    const auto arguments = old_.arguments(n);
    const ValueId base = arguments[0].ref.value;
    TensorGeometry geometry = TensorGeometry::of(old_, base);
    const std::string& name = old_.target(n).name();
    const auto rank = static_cast<int64_t>(geometry.sizes.size());
    const auto wrapped = [&](int64_t dim) { return dim < 0 ? dim + rank : dim; };
    // as_strided is relative to the start of the storage; the others are relative to the base.
    if (name == "aten::as_strided_scatter") {
      const auto sizes = old_.ints(arguments[2]);
      const auto strides = old_.ints(arguments[3]);
      geometry.sizes.assign(sizes.begin(), sizes.end());
      geometry.strides.assign(strides.begin(), strides.end());
      geometry.offset = int_or(arguments[4], geometry.offset);
      return geometry;
    }
    if (name == "aten::diagonal_scatter") {
      const int64_t offset = int_or(arguments[2], 0);
      const auto first = static_cast<size_t>(wrapped(int_or(arguments[3], 0)));
      const auto second = static_cast<size_t>(wrapped(int_or(arguments[4], 1)));
      if (first >= geometry.sizes.size() || second >= geometry.sizes.size()) return std::nullopt;
      const int64_t length = offset >= 0 ? std::min(geometry.sizes[first], geometry.sizes[second] - offset)
                                         : std::min(geometry.sizes[first] + offset, geometry.sizes[second]);
      if (length <= 0) return std::nullopt;
      geometry.offset += offset >= 0 ? offset * geometry.strides[second] : -offset * geometry.strides[first];
      const int64_t stride = geometry.strides[first] + geometry.strides[second];
      for (const size_t d : {std::max(first, second), std::min(first, second)}) erase_dimension(geometry, d);
      geometry.sizes.push_back(length);
      geometry.strides.push_back(stride);
      return geometry;
    }
    const auto dim = static_cast<size_t>(wrapped(int_or(arguments[2], 0)));
    if (dim >= geometry.sizes.size()) return std::nullopt;
    const int64_t size = geometry.sizes[dim];
    const int64_t stride = geometry.strides[dim];
    if (name == "aten::select_scatter") {
      const int64_t index = int_or(arguments[3], 0);
      geometry.offset += (index < 0 ? index + size : index) * stride;
      erase_dimension(geometry, dim);
      return geometry;
    }
    const auto clamped = [&](int64_t at) { return std::clamp<int64_t>(at < 0 ? at + size : at, 0, size); };
    const int64_t start = clamped(int_or(arguments[3], 0));
    const int64_t end = std::max(start, clamped(int_or(arguments[4], size)));
    const int64_t step = int_or(arguments[5], 1);
    geometry.offset += start * stride;
    geometry.sizes[dim] = (end - start + step - 1) / step;
    geometry.strides[dim] = stride * step;
    return geometry;
  }

  // Returns the scatter that is the only user of `value`, as its source and not also as its base.
  NodeId only_scatter(ValueId value) const {
    NodeId found;
    uint32_t uses = 0;
    old_.for_each_use(value, [&](NodeId user) {
      ++uses;
      found = user;
    });
    if (uses != 1 || scatter_of(old_.target(found)) == nullptr) return {};
    const Argument& source = old_.arguments(found)[1];
    return source.kind == ArgumentKind::kValue && source.ref.value == value ? found : NodeId();
  }

  const Target* in_place(NodeId n) {
    const TargetId id = old_.node(n).target;
    const Target& target = old_.target(id);
    if (target.kind() == TargetKind::kOperator) return in_place_form(target);
    // Functional calls (core/calls/functions.h) become the original in-place operator again.
    if (target.kind() != TargetKind::kFunction) return nullptr;
    if (!original_searched_[id.index]) {
      original_searched_[id.index] = true;
      if (auto original = operator_of_functional_call(target)) {
        originals_.push_back(std::make_unique<const Target>(std::move(*original)));
        original_of_[id] = originals_.back().get();
      }
    }
    return original_of_[id];
  }

  const Graph& old_;
  const IdMap<ValueId, uint8_t> bits_;
  std::vector<StorageFacts> storages_;
  std::vector<StorageId> into_;  // by storage: the storage it was merged into
  IdMap<NodeId, uint32_t> ordinal_;
  IdMap<NodeId, Decision> decisions_;
  std::vector<std::unique_ptr<const Target>> originals_;  // of functional calls
  IdMap<TargetId, const Target*> original_of_;
  std::vector<bool> original_searched_;
};

// Creates each node as decided, in a new graph.
class Reinplacer::Build {
  // Comes first, since its type is deduced.
  auto value_of() const {
    return [this](ValueId v) { return now_[v]; };
  }

 public:
  explicit Build(Reinplacer& decided)
      : decided_(decided), old_(decided.old_), emitter_(old_, new_), carried_(old_, new_) {}

  Graph run() {
    for (const NodeId n : old_.nodes()) {
      const Decision decision = std::as_const(decided_.decisions_)[n];
      carried_.enter_region(old_.node(n).region, value_of());
      emitter_.stand_for(n, carried_.replacement_of(old_.node(n).forward));
      std::vector<Argument> arguments = emitter_.mapped(old_.arguments(n), value_of());
      if (decision.kind == Kind::kCopy) copy(n, arguments);
      if (decision.kind == Kind::kInPlace) call_in_place(n, *decision.target, arguments);
      if (decision.kind == Kind::kView) scatter_to_view(n, arguments);
      if (decision.kind == Kind::kOmitted) {
        old_.for_each_output(n, [&](ValueId v) { now_[v] = arguments[0].ref.value; });
      }
      carried_.done(n);
    }
    carried_.finish(value_of(), [&](StorageId s) { return std::as_const(storages_)[decided_.merged(s)]; });
    return std::move(new_);
  }

 private:
  // Merged storages become one, allocated with the first of them.
  StorageId storage_of(StorageId old, NodeId born) {
    StorageId& storage = storages_[decided_.merged(old)];
    if (!storage.valid()) storage = carried_.storage(decided_.merged(old), born);
    return storage;
  }

  // Creates a result, with the geometry and storage of `like`: itself, or the operand that is written instead.
  ValueId define(NodeId node, ValueId old, ValueId like) {
    TensorMeta spec = old_.meta(like);
    spec.requires_grad = old_.value(old).requires_grad;
    if (spec.storage.valid()) spec.storage = storage_of(spec.storage, node);
    const ValueId result = new_.new_value(node, old_.value(like).kind, spec);
    now_[old] = result;
    return result;
  }

  template <class Like>
  std::vector<Argument> results_like(NodeId node, std::span<const Argument> results, Like&& like) {
    return emitter_.mapped(results, [&](ValueId v) { return define(node, v, like(v)); });
  }
  std::vector<Argument> same_results(NodeId node, std::span<const Argument> results) {
    return results_like(node, results, [](ValueId v) { return v; });
  }

  void copy(NodeId n, const std::vector<Argument>& arguments) {
    const NodeId node = emitter_.append(carried_.target(old_.node(n).target), arguments);
    finish(n, node, same_results(node, old_.results(n)));
  }

  void finish(NodeId n, NodeId node, const std::vector<Argument>& results) {
    new_.set_results(node, results);
    carried_.node(n, node);
    carried_.saved(n, node, value_of());
  }

  void call_in_place(NodeId n, const Target& target, const std::vector<Argument>& arguments) {
    const OperatorFacts& facts = target.facts();
    const auto results = old_.results(n);
    const NodeId node = emitter_.append(carried_.target(target), arguments);
    const size_t fresh = results.size() - facts.written.size();
    std::vector<Argument> copies = same_results(node, results.subspan(0, fresh));
    for (size_t w = 0; w < facts.written.size(); ++w) {
      std::vector<ValueId> operands;
      old_.for_each_value(old_.arguments(n).subspan(facts.written[w], 1), [&](ValueId v) { operands.push_back(v); });
      // relu_ returns its operand as another value; _foreach_add_ returns nothing, so readers take the operand.
      const bool returned =
          std::ranges::find(facts.aliases, facts.written[w], &OperatorFacts::Alias::argument) != facts.aliases.end();
      size_t next = 0;
      const auto operand = [&](ValueId) { return operands[next++]; };
      if (returned) {
        copies.push_back(results_like(node, results.subspan(fresh + w, 1), operand).front());
      } else {
        old_.for_each_value(results.subspan(fresh + w, 1), [&](ValueId v) { now_[v] = value_of()(operand(v)); });
      }
    }
    finish(n, node, copies);
  }

  // slice_scatter(base, source) returns a new tensor with a part replaced. If possible, the base is written.
  void scatter_to_view(NodeId n, std::vector<Argument>& arguments) {
    const Scatter& scatter = *scatter_of(old_.target(n));
    const TensorGeometry place = *decided_.region(n);
    const Argument source = arguments[1];
    const ValueId base = arguments[0].ref.value;
    arguments.erase(arguments.begin() + 1);
    const NodeId node = emitter_.append(emitter_.target(scatter.view), arguments);
    const StorageId storage = new_.value(base).storage;
    const ValueId view = emitter_.add_result(node, place, storage);
    carried_.node(n, emitter_.append(emitter_.target("aten::copy_"),
                                     {Argument::of_value(view), source, Argument::of_bool(false)}));
    emitter_.add_result(new_.last(), place, storage);
    now_[old_.results(n).front().ref.value] = base;
  }

  Reinplacer& decided_;
  const Graph& old_;
  Graph new_;
  NodeEmitter emitter_;
  GraphRebuild carried_;
  IdMap<ValueId, ValueId> now_;
  IdMap<StorageId, StorageId> storages_;
};

Graph Reinplacer::build() { return Build(*this).run(); }

ReinplaceResult reinplace(Graph& graph) {
  Reinplacer reinplacer(graph);
  if (reinplacer.decide()) graph = reinplacer.build();
  return reinplacer.result;
}

PassResult ReinplaceResult::summary() const {
  return {.changed = changed,
          .counters = {{"operators", operators}, {"scatters", scatters}, {"write_backs", write_backs}}};
}

}  // namespace shadowgraph
