// Checks a possibly corrupt graph in one walk and lists every violation of shadowgraph/graph/verify.h. Internal to
// ir/analysis.
//
// Nothing is trusted before it is checked. So links and references come first, and a node with a reference out of range
// is not checked further.
#include <c10/core/ScalarType.h>
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ir/operators/operator_facts.h"
#include "ir/records.h"
#include "ir/text/tensor_bytes.h"
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/graph/verify.h"

namespace shadowgraph {

namespace {

// Allows what libtorch converts: a number where a tensor is expected, a value where a number is.
bool fits_schema(const Graph& graph, const Argument& a, TypeClass type, bool optional) {
  if (a.kind == ArgumentKind::kNone) return optional || type == TypeClass::kTensor || type == TypeClass::kAny;
  if (a.kind == ArgumentKind::kOpaque || type == TypeClass::kAny) return true;
  const bool is_value = a.kind == ArgumentKind::kValue;
  const ValueKind value = is_value ? graph.value(a.ref.value).kind : ValueKind::kTensor;
  const bool is_number = a.kind == ArgumentKind::kInt || a.kind == ArgumentKind::kFloat ||
                         a.kind == ArgumentKind::kBool || a.kind == ArgumentKind::kComplex;
  switch (type) {
    case TypeClass::kTensor:
      // A number where a tensor is expected was wrapped by the C++ API (0-dimensional, on the CPU).
      return (is_value && value == ValueKind::kTensor) || a.kind == ArgumentKind::kConstant || is_number;
    case TypeClass::kNumber:
      return (is_value && value != ValueKind::kTensor) || is_number;
    case TypeClass::kInt:
      return a.kind == ArgumentKind::kInt || (is_value && value == ValueKind::kInt);
    case TypeClass::kDtype:
    case TypeClass::kLayout:
    case TypeClass::kMemoryFormat:
      return a.kind == ArgumentKind::kInt;
    case TypeClass::kFloat:
      return a.kind == ArgumentKind::kFloat || (is_value && value == ValueKind::kFloat);
    case TypeClass::kBool:
      return a.kind == ArgumentKind::kBool || (is_value && value == ValueKind::kBool);
    case TypeClass::kString:
      return a.kind == ArgumentKind::kString;
    case TypeClass::kDevice:
      return a.kind == ArgumentKind::kDevice;
    case TypeClass::kGenerator:
      return a.kind == ArgumentKind::kGenerator;
    default:
      return false;
  }
}

bool fits_schema(const Graph& graph, const Argument& a, const FormalType& type) {
  if (type.type != TypeClass::kList) return fits_schema(graph, a, type.type, type.optional);
  switch (a.kind) {
    case ArgumentKind::kNone:
      return type.optional;
    case ArgumentKind::kOpaque:
      return true;
    case ArgumentKind::kIntList:
      return type.element == TypeClass::kInt || type.element == TypeClass::kNumber || type.element == TypeClass::kAny;
    case ArgumentKind::kList: {
      const auto list = graph.list(a);
      return std::all_of(list.begin(), list.end(), [&](const Argument& element) {
        return type.element == TypeClass::kAny || fits_schema(graph, element, type.element, type.element_optional);
      });
    }
    default:
      return false;
  }
}

// A missing result is None: kernels may omit results that a flag disables.
bool result_fits_schema(const Graph& graph, const Argument& a, TypeClass type) {
  if (a.kind == ArgumentKind::kNone) return true;
  if (a.kind == ArgumentKind::kList) return type == TypeClass::kList || type == TypeClass::kAny;
  if (a.kind != ArgumentKind::kValue) return false;
  const bool tensor = graph.value(a.ref.value).kind == ValueKind::kTensor;
  if (type == TypeClass::kTensor) return tensor;
  if (type == TypeClass::kAny) return true;
  return !tensor && fits_schema(graph, a, type, false);
}

class Verifier {
 public:
  explicit Verifier(const Graph& graph)
      : graph_(graph),
        ordinals_(graph.node_capacity(), Numbering::kNone),
        broken_(graph.node_capacity(), false),
        use_counts_(graph.value_capacity(), 0),
        results_seen_(graph.value_capacity(), false),
        storage_frees_(graph.storage_count()) {}
  // Checks the references of all nodes before the semantics of any, which involve other nodes.
  std::vector<Violation> run() {
    regions();
    storages();
    links();
    for (const NodeId id : order_) references(id);
    for (const NodeId id : order_) {
      if (!broken_[id.index]) node(id);
    }
    // Use counts are meaningless if some arguments are unknown.
    if (std::none_of(order_.begin(), order_.end(), [&](NodeId id) { return broken_[id.index]; })) uses();
    for (uint32_t i = 0; i < graph_.storage_count(); ++i) {
      const NodeId freed = graph_.storage(StorageId(i)).freed_after;
      if (live(freed) && storage_frees_[i] != freed) {
        report(Rule::kFrees, freed, "storage id {} is recorded as freed after this node, which does not list it", i);
      }
    }
    return std::move(found_);
  }

 private:
  template <class... A>
  void report(Rule rule, NodeId node, fmt::format_string<A...> format, A&&... values) {
    std::string message = fmt::format(format, std::forward<A>(values)...);
    // Only nodes whose references are valid can be printed.
    if (live(node) && !broken_[node.index]) {
      if (!numbering_) numbering_ = Numbering::of(graph_);
      message += "\n  " + to_text(graph_, node, *numbering_);
    }
    found_.push_back({rule, node, std::move(message)});
  }

  // A node is live if the walk along the links reached it; its record is not trusted.
  bool live(NodeId id) const { return id.index < ordinals_.size() && ordinals_[id.index] != Numbering::kNone; }
  bool earlier(NodeId id, NodeId than) const { return live(id) && ordinals_[id.index] < ordinals_[than.index]; }

  // A cycle in the list ends the link check, since everything else walks along the links.
  void links() {
    NodeId previous;
    for (NodeId n = graph_.first(); n.valid(); n = graph_.node(n).next) {
      if (n.index >= graph_.node_capacity())
        return report(Rule::kLinks, {}, "the node list contains id {}, which is out of range", n.index);
      if (ordinals_[n.index] != Numbering::kNone)
        return report(Rule::kLinks, {}, "the node list contains node id {} twice", n.index);
      if (graph_.is_erased(n))
        return report(Rule::kLinks, {}, "the node list contains id {}, which is erased", n.index);
      // Positions are counted here, since the graph's own order may be invalid.
      ordinals_[n.index] = static_cast<uint32_t>(order_.size());
      order_.push_back(n);
      if (graph_.node(n).previous != previous) {
        report(Rule::kLinks, {}, "the previous node of node id {} is not the one before it in the list", n.index);
      }
      // Check the order labels as well, which is_before() compares.
      if (previous.valid() && !graph_.is_before(previous, n)) {
        report(Rule::kLinks, {}, "is_before() is false for node id {} and its predecessor", n.index);
      }
      previous = n;
    }
    if (graph_.last() != previous) report(Rule::kLinks, {}, "the last node is not the end of the list");
    if (order_.size() != graph_.node_count()) {
      report(Rule::kLinks, {}, "the list contains {} nodes, but the graph counts {}", order_.size(),
             graph_.node_count());
    }
    // A node that is neither erased nor in the list is lost.
    for (uint32_t i = 0; i < graph_.node_capacity(); ++i) {
      if (ordinals_[i] == Numbering::kNone && !graph_.is_erased(NodeId(i))) {
        report(Rule::kLinks, {}, "live node id {} is not in the list", i);
      }
    }
  }

  // Checks that every index in the record is in range. Messages do not print such a node, since printing follows the
  // indices.
  bool references(NodeId id) {
    const Node& n = graph_.node(id);
    // Report the first error only: the rest of the node cannot be trusted.
    const auto bad = [&](const char* what) {
      broken_[id.index] = true;
      report(Rule::kReferences, id, "node id {}: {} is out of range", id.index, what);
      return false;
    };
    if (!graph_.in_bounds(n)) return bad("a run of arguments, results, saved tensors or frees");
    if (n.target.index >= graph_.target_count()) return bad("the target");
    if (!arguments_in_range(graph_.arguments(id), 0, false)) return bad("an argument (or lists nest too deep)");
    if (!arguments_in_range(graph_.results(id), 0, true)) return bad("a result (or lists nest too deep)");
    if (n.region.index >= graph_.region_count()) return bad("the region");
    if (n.phase.index >= graph_.phase_count()) return bad("the phase");
    if (n.source.valid() && n.source.index >= graph_.string_count()) return bad("the source line");
    // An erased forward node is in range, and is allowed.
    if (n.forward.valid() && n.forward.index >= graph_.node_capacity()) return bad("the forward node");
    for (const SavedTensor& saved : graph_.saved(id)) {
      if (saved.value.index >= graph_.value_capacity()) return bad("a saved tensor");
    }
    for (const StorageId storage : graph_.frees(id)) {
      if (storage.index >= graph_.storage_count()) return bad("a freed storage");
    }
    bool values = true;
    graph_.for_each_output(id, [&](ValueId v) { values = values && graph_.in_bounds(graph_.value(v)); });
    return values || bad("the sizes of a result");
  }

  // Checks that lists nest at most kMaxListDepth deep, so that later walks may recurse.
  bool arguments_in_range(std::span<const Argument> arguments, int depth, bool results) {
    return std::all_of(arguments.begin(), arguments.end(), [&](const Argument& a) {
      if (!graph_.in_bounds(a) || a.kind > ArgumentKind::kOpaque) return false;
      if (a.kind != ArgumentKind::kList) return true;
      return depth < kMaxListDepth && arguments_in_range(graph_.list(a), depth + 1, results);
    });
  }

  // Parents come first, so the region tree cannot have a cycle.
  void regions() {
    for (uint32_t i = 0; i < graph_.region_count(); ++i) {
      const Region& region = graph_.region(RegionId(i));
      if (i == 0 ? region.parent.valid() || region.kind != RegionKind::kRoot
                 : region.parent.index >= i || region.kind == RegionKind::kRoot) {
        report(Rule::kRegions, {}, "r{} has an invalid parent: it must be an earlier region, and only r0 is the root",
               i);
      }
      const auto bad_string = [&](StringId s) { return s.valid() && s.index >= graph_.string_count(); };
      if (bad_string(region.name) || bad_string(region.class_name) ||
          (region.target.valid() && region.target.index >= graph_.target_count()) || !graph_.in_bounds(region)) {
        report(Rule::kReferences, {}, "r{}: its name, class, target or arguments are out of range", i);
        continue;
      }
      // Only the number of a composite's arguments is checked; their values may be erased.
      if (region.arguments.size != 0 &&
          (!region.target.valid() ||
           region.arguments.size != graph_.target(region.target).signature().arguments.size())) {
        report(Rule::kRegions, {}, "r{} has {} arguments, which its operator does not accept", i,
               region.arguments.size);
      }
    }
  }

  // Checks storages by themselves; result() checks that values are within their bounds.
  void storages() {
    for (uint32_t i = 0; i < graph_.storage_count(); ++i) {
      const Storage& storage = graph_.storage(StorageId(i));
      if (storage.bytes < 0) report(Rule::kStorage, {}, "storage id {} has {} bytes", i, storage.bytes);
      for (const NodeId n : {storage.born, storage.freed_after}) {
        if (n.valid() && n.index >= graph_.node_capacity()) {
          report(Rule::kReferences, {}, "storage id {} is allocated or freed at node id {}, which is out of range", i,
                 n.index);
        }
      }
    }
  }

  void node(NodeId id) {
    inputs(id, graph_.arguments(id), 0);
    graph_.for_each_output(id, [&](ValueId v) { result(id, v); });
    signature(id);
    aliases(id);
    placement(id);
    // An erased forward node is valid: passes erase forward nodes whose backward still runs.
    const NodeId forward = graph_.node(id).forward;
    if (forward.valid() && !graph_.is_erased(forward) && !earlier(forward, id)) {
      report(Rule::kForward, id, "its forward node does not come before it");
    }
    saved(id);
    frees(id);
  }

  // Checks that an operand's use is in its value's use list and that its producer comes before.
  void inputs(NodeId id, std::span<const Argument> arguments, int depth) {
    for (const Argument& a : arguments) {
      if (a.kind == ArgumentKind::kList && depth < kMaxListDepth) inputs(id, graph_.list(a), depth + 1);
      if (a.kind != ArgumentKind::kValue) continue;
      const ValueId v = a.ref.value;
      ++use_counts_[v.index];
      // This also rejects a node that uses its own result.
      if (!earlier(graph_.value(v).producer, id)) {
        report(Rule::kOrder, id, "uses a value (id {}) that no earlier node produces", v.index);
      } else {
        lifetime(id, v, false);
      }
      if (a.ref.use >= graph_.use_capacity() || graph_.use(a.ref.use).user != id || graph_.use(a.ref.use).value != v) {
        report(Rule::kUses, id, "an argument's use is missing from the use list of value id {}", v.index);
      }
    }
  }

  // Walks along each value's use list, which must contain exactly the uses in arguments.
  void uses() {
    for (uint32_t i = 0; i < graph_.value_capacity(); ++i) {
      const Value& value = graph_.value(ValueId(i));
      uint32_t count = 0;
      uint32_t previous = Argument::kNoUse;
      bool consistent = true;
      // Stops one past the expected count, which also ends a cycle.
      for (uint32_t u = value.first_use; u != Argument::kNoUse && count <= use_counts_[i]; u = graph_.use(u).next) {
        if (u >= graph_.use_capacity() || graph_.use(u).value.index != i || graph_.use(u).previous != previous ||
            !live(graph_.use(u).user)) {
          consistent = false;
          break;
        }
        previous = u;
        ++count;
      }
      if (!consistent || count != use_counts_[i] || value.last_use != previous) {
        report(Rule::kUses, value.producer, "the use list of value id {} does not contain exactly its {} uses", i,
               use_counts_[i]);
      }
    }
  }

  // A schema with `...` does not describe the arguments after it.
  void signature(NodeId id) {
    const Signature& formals = graph_.target(id).signature();
    const auto arguments = graph_.arguments(id);
    const size_t wanted = formals.arguments.size();
    if (formals.variadic_arguments ? arguments.size() < wanted : arguments.size() != wanted) {
      report(Rule::kArguments, id, "{} arguments, but the schema has {}", arguments.size(), wanted);
    }
    for (size_t i = 0; i < std::min(wanted, arguments.size()); ++i) {
      if (!fits_schema(graph_, arguments[i], formals.arguments[i].type)) {
        report(Rule::kArguments, id, "argument '{}' does not match the type in the schema", formals.arguments[i].name);
      }
    }
    const auto results = graph_.results(id);
    // A node without results calls an operator whose results were not recorded (write-only forms).
    if (results.empty() || formals.variadic_returns) return;
    if (results.size() != formals.returns.size()) {
      report(Rule::kReturns, id, "{} results, but the schema returns {}", results.size(), formals.returns.size());
    }
    for (size_t i = 0; i < std::min(results.size(), formals.returns.size()); ++i) {
      const FormalType& type = formals.returns[i].type;
      bool good = result_fits_schema(graph_, results[i], type.type);
      if (good && results[i].kind == ArgumentKind::kList) {
        for (const Argument& element : graph_.list(results[i]))
          good = good && result_fits_schema(graph_, element, type.element);
      }
      if (!good) report(Rule::kReturns, id, "result {} does not match the type in the schema", i);
    }
  }

  bool is_without_memory(const Storage& storage) const {
    return storage.bytes == 0 && storage.born.valid() && !graph_.is_erased(storage.born) &&
           graph_.target(storage.born).name() == "aten::_efficientzerotensor";
  }

  // A value must be produced once, by one node, and fit into its storage.
  void result(NodeId id, ValueId v) {
    const Value& value = graph_.value(v);
    if (value.producer != id)
      report(Rule::kResults, id, "a result (value id {}) has another node as its producer", v.index);
    if (results_seen_[v.index]) report(Rule::kResults, id, "value id {} is a result more than once", v.index);
    results_seen_[v.index] = true;
    if (value.kind != ValueKind::kTensor) return;

    const auto sizes = graph_.sizes(v);
    const auto strides = graph_.strides(v);
    const auto extent = extent_of(sizes, strides);
    if (!extent || value.offset < 0) {
      report(Rule::kExtent, id, "sizes, strides or offset of a result are negative or too large");
    }
    if (!value.storage.valid()) return;
    if (value.storage.index >= graph_.storage_count()) {
      return report(Rule::kStorage, id, "a result has storage id {}, which does not exist", value.storage.index);
    }
    const Storage& storage = graph_.storage(value.storage);
    if (storage.device() != value.device())
      report(Rule::kStorage, id, "a result is on another device than its storage");
    // Other layouts, such as sparse, have no extent in bytes; an empty tensor has extent 0.
    if (extent && *extent > 0 && value.layout == c10::Layout::Strided && value.offset >= 0 &&
        value.dtype < c10::ScalarType::Undefined) {
      int64_t end = 0;
      const bool overflow = __builtin_add_overflow(*extent, value.offset, &end) ||
                            __builtin_mul_overflow(end, static_cast<int64_t>(c10::elementSize(value.dtype)), &end);
      if (overflow || (end > storage.bytes && !is_without_memory(storage))) {
        report(Rule::kExtent, id, "a result extends to byte {} of a storage of {} bytes",
               overflow ? std::string("2^63 and beyond") : std::to_string(end), storage.bytes);
      }
    }
    lifetime(id, v, true);
  }

  void lifetime(NodeId id, ValueId v, bool as_result) {
    const Value& value = graph_.value(v);
    if (value.kind != ValueKind::kTensor || value.storage.index >= graph_.storage_count()) return;
    const Storage& storage = graph_.storage(value.storage);
    const char* what = as_result ? "a result" : "an argument";
    // A storage without an allocating node existed before the graph.
    if (storage.born.valid() && storage.born != id && !earlier(storage.born, id)) {
      report(Rule::kLifetime, id, "the storage of {} is allocated after this node, or at an erased one", what);
    }
    if (storage.freed_after.valid() && earlier(storage.freed_after, id)) {
      report(Rule::kLifetime, id, "the storage of {} was freed before this node", what);
    }
  }

  void aliases(NodeId id) {
    const OperatorFacts& facts = graph_.facts(id);
    const auto arguments = graph_.arguments(id);
    const auto results = graph_.results(id);
    const auto storage_of = [&](ValueId v) { return graph_.value(v).storage; };
    for (const OperatorFacts::Alias& alias : facts.aliases) {
      // Operators such as reshape may copy, so only definite aliases are checked.
      if (!alias.always || alias.argument >= arguments.size() || alias.result >= results.size()) continue;
      std::vector<StorageId> known;
      graph_.for_each_value(arguments.subspan(alias.argument, 1), [&](ValueId v) { known.push_back(storage_of(v)); });
      if (known.empty()) continue;
      std::sort(known.begin(), known.end());
      graph_.for_each_value(results.subspan(alias.result, 1), [&](ValueId v) {
        if (!std::binary_search(known.begin(), known.end(), storage_of(v))) {
          report(Rule::kAlias, id, "result {} must share the storage of argument '{}'", alias.result,
                 graph_.target(id).signature().arguments[alias.argument].name);
        }
      });
    }
  }

  // Placeholders, then calls, then end nodes: a kind must not occur after a later one.
  void placement(NodeId id) {
    const TargetId target = graph_.node(id).target;
    const bool placeholder = target.index <= target_of(Builtin::kConstant).index;
    const bool end = target == target_of(Builtin::kOutput) || target == target_of(Builtin::kGradient);
    if (placeholder && past_placeholders_) report(Rule::kPlaceholders, id, "a placeholder after other nodes");
    past_placeholders_ = past_placeholders_ || !placeholder;
    if (!end && past_calls_) report(Rule::kOutput, id, "a node after sg::output or sg::gradient");
    past_calls_ = past_calls_ || end;
    if (target == target_of(Builtin::kOutput) && ++outputs_ > 1) report(Rule::kOutput, id, "a second sg::output");
  }

  // A tensor saved as an argument is that argument or shares its storage, since autograd may save a view or an unpacked
  // form.
  void saved(NodeId id) {
    for (const SavedTensor& saved : graph_.saved(id)) {
      const Value& value = graph_.value(saved.value);
      if (!live(value.producer)) {
        report(Rule::kSaved, id, "saves a value (id {}) that no live node produces", saved.value.index);
        continue;
      }
      bool found = saved.role == SavedRole::kInternal;
      const auto same = [&](ValueId v) {
        return v == saved.value || (value.storage.valid() && graph_.value(v).storage == value.storage);
      };
      for_each_value_of_role(graph_, id, saved, [&](ValueId v) { found = found || same(v); });
      if (!found) {
        report(Rule::kSaved, id, "a saved tensor is not {} {}",
               saved.role == SavedRole::kArgument ? "argument" : "result", saved.index);
      }
    }
  }

  // Frees are recorded by both node and storage, which must agree in both directions. run() checks the other direction.
  void frees(NodeId id) {
    for (const StorageId storage : graph_.frees(id)) {
      if (storage_frees_[storage.index].valid())
        report(Rule::kFrees, id, "frees storage id {} more than once", storage.index);
      storage_frees_[storage.index] = id;
      if (graph_.storage(storage).freed_after != id) {
        report(Rule::kFrees, id, "frees storage id {}, which is recorded as freed elsewhere", storage.index);
      }
    }
  }

  const Graph& graph_;
  std::vector<Violation> found_;
  std::optional<Numbering> numbering_;
  std::vector<NodeId> order_;
  std::vector<uint32_t> ordinals_;  // position in program order
  std::vector<bool> broken_;        // by node: has a reference out of range
  std::vector<uint32_t> use_counts_;
  std::vector<bool> results_seen_;
  std::vector<NodeId> storage_frees_;
  bool past_placeholders_ = false;
  bool past_calls_ = false;
  uint32_t outputs_ = 0;
};

}  // namespace

std::vector<Violation> violations(const Graph& graph) { return Verifier(graph).run(); }

// The message lists every violation: one wrong edit often breaks several rules, and the first is seldom the most
// informative one.
void verify(const Graph& graph) {
  const std::vector<Violation> found = violations(graph);
  if (found.empty()) return;
  std::string message = fmt::format("the graph violates {} {} of shadowgraph/graph/verify.h:", found.size(),
                                    found.size() == 1 ? "rule" : "rules");
  for (const Violation& violation : found) {
    message +=
        fmt::format("\n[{} {}] {}", static_cast<int>(violation.rule), to_string(violation.rule), violation.message);
  }
  throw GraphError(message);
}

}  // namespace shadowgraph
