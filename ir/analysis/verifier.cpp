// Checks the rules of shadowgraph/verify.h about what nodes mean, by their numbers there.
#include "ir/analysis/verifier.h"

#include <c10/core/ScalarType.h>

#include <algorithm>

#include "ir/analysis/schema_fit.h"
#include "ir/operators/operator_facts.h"
#include "ir/text/tensor_bytes.h"

namespace shadowgraph {

// ---- 6, 7: schemas --------------------------------------------------------------------------------------------------

// A schema with `...` says nothing of the arguments behind.
void Verifier::signature(NodeId id) {
  const Signature& formals = graph_.target(id).signature();
  const auto arguments = graph_.arguments(id);
  const size_t wanted = formals.arguments.size();
  if (formals.variadic_arguments ? arguments.size() < wanted : arguments.size() != wanted) {
    report(Rule::kArguments, id, "{} arguments, but the schema has {}", arguments.size(), wanted);
  }
  for (size_t i = 0; i < std::min(wanted, arguments.size()); ++i) {
    if (!fits_schema(graph_, arguments[i], formals.arguments[i].type)) {
      report(Rule::kArguments, id, "argument '{}' is not of the kind that the schema has", formals.arguments[i].name);
    }
  }
  const auto results = graph_.results(id);
  // A node without results is an operator whose results nobody recorded (write-only forms).
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
    if (!good) report(Rule::kReturns, id, "result {} is not of the kind that the schema returns", i);
  }
}

// ---- 5, 8, 9, 11: values and storages -------------------------------------------------------------------------------

// A value must be made by one node, once, and lie within its storage.
void Verifier::result(NodeId id, ValueId v) {
  const Value& value = graph_.value(v);
  if (value.producer != id)
    report(Rule::kResults, id, "a result (value id {}) that names another node as its producer", v.index);
  if (results_seen_[v.index]) report(Rule::kResults, id, "value id {} is a result a second time", v.index);
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
  if (storage.device() != value.device()) report(Rule::kStorage, id, "a result is on another device than its storage");
  // Sparse and other layouts have no extent in bytes, and an empty tensor reaches nowhere.
  if (extent && *extent > 0 && value.layout == c10::Layout::Strided && value.offset >= 0 &&
      value.dtype < c10::ScalarType::Undefined) {
    int64_t end = 0;
    const bool overflow = __builtin_add_overflow(*extent, value.offset, &end) ||
                          __builtin_mul_overflow(end, static_cast<int64_t>(c10::elementSize(value.dtype)), &end);
    if (overflow || end > storage.bytes) {
      report(Rule::kExtent, id, "a result reaches to byte {} of a storage of {} bytes",
             overflow ? std::string("2^63 and beyond") : std::to_string(end), storage.bytes);
    }
  }
  lifetime(id, v, true);
}

void Verifier::lifetime(NodeId id, ValueId v, bool as_result) {
  const Value& value = graph_.value(v);
  if (value.kind != ValueKind::kTensor || value.storage.index >= graph_.storage_count()) return;
  const Storage& storage = graph_.storage(value.storage);
  const char* what = as_result ? "a result" : "an argument";
  // A storage without birth was there before the graph.
  if (storage.born.valid() && storage.born != id && !earlier(storage.born, id)) {
    report(Rule::kLifetime, id, "the storage of {} is born after this node, or at an erased one", what);
  }
  if (storage.freed_after.valid() && earlier(storage.freed_after, id)) {
    report(Rule::kLifetime, id, "the storage of {} was freed before this node", what);
  }
}

void Verifier::aliases(NodeId id) {
  const OperatorFacts& facts = graph_.facts(id);
  const auto arguments = graph_.arguments(id);
  const auto results = graph_.results(id);
  const auto storage_of = [&](ValueId v) { return graph_.value(v).storage; };
  for (const OperatorFacts::Alias& alias : facts.aliases) {
    // Operators such as reshape may copy, so only aliases that are certain are checked.
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

// ---- 13 to 17 -------------------------------------------------------------------------------------------------------

// Placeholders, calls, ends: once a later kind has come, an earlier one must not.
void Verifier::placement(NodeId id) {
  const TargetId target = graph_.node(id).target;
  const bool placeholder = target.index <= target_of(Builtin::kConstant).index;
  const bool end = target == target_of(Builtin::kOutput) || target == target_of(Builtin::kGradient);
  if (placeholder && past_placeholders_) report(Rule::kPlaceholders, id, "a placeholder after other nodes");
  past_placeholders_ = past_placeholders_ || !placeholder;
  if (!end && past_calls_) report(Rule::kOutput, id, "a node after sg::output or sg::gradient");
  past_calls_ = past_calls_ || end;
  if (target == target_of(Builtin::kOutput) && ++outputs_ > 1) report(Rule::kOutput, id, "a second sg::output");
}

// A tensor saved as an argument is that argument or shares its storage: autograd may save a view or an unpacked form of
// it.
void Verifier::saved(NodeId id) {
  const auto arguments = graph_.arguments(id);
  for (const SavedTensor& saved : graph_.saved(id)) {
    const Value& value = graph_.value(saved.value);
    if (!live(value.producer)) {
      report(Rule::kSaved, id, "saves a value (id {}) that no live node makes", saved.value.index);
      continue;
    }
    bool found = saved.role == SavedRole::kInternal;
    const auto same = [&](ValueId v) {
      return v == saved.value || (value.storage.valid() && graph_.value(v).storage == value.storage);
    };
    if (saved.role == SavedRole::kArgument && saved.index < arguments.size()) {
      graph_.for_each_value(arguments.subspan(saved.index, 1), [&](ValueId v) { found = found || same(v); });
    } else if (saved.role == SavedRole::kResult) {
      uint32_t flat = 0;
      graph_.for_each_output(id, [&](ValueId v) { found = found || (flat++ == saved.index && same(v)); });
    }
    if (!found) {
      report(Rule::kSaved, id, "a saved tensor is not {} {}",
             saved.role == SavedRole::kArgument ? "argument" : "result", saved.index);
    }
  }
}

// Deaths are told twice, by the node and by the storage; both must agree, in both directions. The other direction is
// checked in run().
void Verifier::frees(NodeId id) {
  for (const StorageId storage : graph_.frees(id)) {
    if (storage_frees_[storage.index].valid())
      report(Rule::kFrees, id, "frees storage id {} a second time", storage.index);
    storage_frees_[storage.index] = id;
    if (graph_.storage(storage).freed_after != id) {
      report(Rule::kFrees, id, "frees storage id {}, which says that it was freed elsewhere", storage.index);
    }
  }
}

void Verifier::node(NodeId id) {
  inputs(id, graph_.arguments(id), 0);
  graph_.for_each_output(id, [&](ValueId v) { result(id, v); });
  signature(id);
  aliases(id);
  placement(id);
  // A forward node that is erased is no error: passes erase forward nodes whose backward still runs.
  const NodeId forward = graph_.node(id).forward;
  if (forward.valid() && !graph_.is_erased(forward) && !earlier(forward, id)) {
    report(Rule::kForward, id, "its forward node does not come before it");
  }
  saved(id);
  frees(id);
}

// All nodes' references are checked before any node's meaning, since a node's meaning asks other nodes.
std::vector<Violation> Verifier::run() {
  regions();
  storages();
  links();
  for (const NodeId id : order_) references(id);
  for (const NodeId id : order_) {
    if (!broken_[id.index]) node(id);
  }
  // With unknown arguments the counts of uses mean nothing.
  if (std::none_of(order_.begin(), order_.end(), [&](NodeId id) { return broken_[id.index]; })) uses();
  for (uint32_t i = 0; i < graph_.storage_count(); ++i) {
    const NodeId freed = graph_.storage(StorageId(i)).freed_after;
    if (live(freed) && storage_frees_[i] != freed) {
      report(Rule::kFrees, freed, "storage id {} says that it was freed after this node, which does not list it", i);
    }
  }
  return std::move(found_);
}

std::string_view to_string(Rule rule) {
  static constexpr std::string_view kNames[] = {
      "?",      "links", "references", "order",   "uses",         "results", "arguments", "returns", "storage",
      "extent", "alias", "lifetime",   "regions", "placeholders", "output",  "forward",   "saved",   "frees"};
  const auto i = static_cast<size_t>(rule);
  return i < std::size(kNames) ? kNames[i] : kNames[0];
}

std::vector<Violation> violations(const Graph& graph) { return Verifier(graph).run(); }

// The message lists every violation: one broken edit often breaks several rules, and the first is seldom the telling
// one.
void verify(const Graph& graph) {
  const std::vector<Violation> found = violations(graph);
  if (found.empty()) return;
  std::string message = fmt::format("the graph breaks {} {} of shadowgraph/verify.h:", found.size(),
                                    found.size() == 1 ? "rule" : "rules");
  for (const Violation& violation : found) {
    message +=
        fmt::format("\n[{} {}] {}", static_cast<int>(violation.rule), to_string(violation.rule), violation.message);
  }
  throw VerifyError(message);
}

}  // namespace shadowgraph
