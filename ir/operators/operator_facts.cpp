// Facts may be conservative (assume a write, an alias, a change) but never optimistic, or passes would silently change
// programs.
#include "ir/operators/operator_facts.h"

#include <ATen/core/enum_tag.h>

#include <algorithm>

#include "ir/operators/known_target.h"
#include "ir/operators/operator_name.h"
#include "shadowgraph/graph/libtorch.h"

namespace shadowgraph {
namespace {

// Returns whether two formals may alias: schemas declare alias sets, Tensor(a) and Tensor(a|b).
bool share_alias_set(const Formal& a, const Formal& b) {
  return std::ranges::any_of(
      a.alias_sets, [&](const std::string& set) { return std::ranges::find(b.alias_sets, set) != b.alias_sets.end(); });
}

void read_signature(const Signature& signature, OperatorFacts& facts) {
  bool writes_other_than_out = false;
  for (size_t i = 0; i < signature.arguments.size(); ++i) {
    const Formal& argument = signature.arguments[i];
    if (argument.type.type == TypeClass::kGenerator) facts.generators.push_back(static_cast<uint16_t>(i));
    if (argument.writes) {
      facts.written.push_back(static_cast<uint16_t>(i));
      (argument.out ? facts.is_out_variant : writes_other_than_out) = true;
    }
  }
  facts.is_in_place = writes_other_than_out;
  for (size_t r = 0; r < signature.returns.size(); ++r) {
    const Formal& result = signature.returns[r];
    for (size_t i = 0; i < signature.arguments.size(); ++i) {
      if (share_alias_set(result, signature.arguments[i])) {
        // With alternatives, (a|b), it aliases only one of them.
        facts.aliases.push_back({static_cast<uint16_t>(r), static_cast<uint16_t>(i), result.alias_sets.size() == 1});
      }
    }
  }
}

bool is_in(const std::vector<uint16_t>& positions, size_t position) {
  return std::find(positions.begin(), positions.end(), position) != positions.end();
}

// Adds the facts of a table row. Argument names that this overload does not have are skipped, since a row applies to
// all overloads.
void apply(const OperatorRow& row, const Signature& signature, OperatorFacts& facts) {
  for_each_name(row.writes, [&](std::string_view name) {
    const auto position = signature.position_of(name);
    if (position && !is_in(facts.written, *position)) facts.written.push_back(static_cast<uint16_t>(*position));
  });
  std::sort(facts.written.begin(), facts.written.end());
  if (const auto when = signature.position_of(row.when)) facts.write_condition = static_cast<int>(*when);
  const bool maybe_alias = row.is & OperatorFact::kMaybeAlias;
  if (maybe_alias) {
    for (OperatorFacts::Alias& alias : facts.aliases) alias.always = false;
  }
  if (const auto source = signature.position_of(row.alias_of)) {
    facts.aliases.push_back({0, static_cast<uint16_t>(*source), !maybe_alias});
  }
  facts.uninitialized = row.is & OperatorFact::kUninitialized;
  facts.pointwise = row.is & OperatorFact::kPointwise;
  facts.host_read = row.is & OperatorFact::kHostRead;
  facts.resizes = row.is & OperatorFact::kResizes;
  facts.takes_storage = row.is & OperatorFact::kTakesStorage;
  facts.conjugates = row.is & OperatorFact::kConjugates;
  facts.negates = row.is & OperatorFact::kNegates;
}

// Determines the contents that a call does not read: those it fully overwrites, and those of operands of which it reads
// only the geometry. A write without a read discards the old contents, so passes can drop earlier writes.
void derive_contents(const Signature& signature, OperatorFact is, OperatorFacts& facts) {
  const bool overwrites = is & OperatorFact::kOverwrites;
  const bool geometry_only = is & OperatorFact::kGeometryOnly;
  for (const uint16_t position : facts.written) {
    const Formal& argument = signature.arguments[position];
    // Batch norm's `save_mean` is returned unchanged outside training.
    const bool given_back = argument.out && !facts.uninitialized && !facts.resizes && facts.write_condition < 0;
    if (given_back || (overwrites && argument.writes)) facts.overwritten.push_back(position);
  }
  if (facts.is_out_variant) facts.write_condition = -1;  // results are always written
  // True if contents of operands other than `self` are read, for rows that describe `self`.
  bool reads = false;
  for (size_t i = 0; i < signature.arguments.size(); ++i) {
    const Formal& formal = signature.arguments[i];
    if (!formal.type.is_tensor_like() || formal.out || is_in(facts.overwritten, i)) continue;
    reads = reads || !geometry_only || formal.name != "self";
  }
  facts.fills = (is & OperatorFact::kFills) && !reads;
  facts.draws = facts.random && !reads;
  facts.geometry_only = geometry_only && !reads;
}

// Returns whether a collective's argument is a c10d object that describes the communication, not its data.
bool is_group_argument(std::string_view argument) {
  return argument == "group_name" || argument == "process_group" || argument == "reduce_op";
}

// `op`: the operator in this process, if registered. Combines the schema, the table rows that correct it, and the
// operator's tags, in this order.
OperatorFacts facts_of(const Target& target, const std::optional<c10::OperatorHandle>& op) {
  OperatorFacts facts;
  if (target.kind() == TargetKind::kBuiltin) {
    if (target.name() == "sg::alias") {
      facts.aliases.push_back({0, 0, true});
      facts.is_view = true;
      facts.geometry_only = true;
    }
    return facts;
  }
  const Signature& signature = target.signature();
  read_signature(signature, facts);
  facts.random = !facts.generators.empty();
  const OperatorRow row = operator_row(target.name());
  apply(row, signature, facts);
  if (op) {
    facts.random = facts.random || op->hasTag(at::Tag::nondeterministic_seeded);
    facts.host_read = facts.host_read || op->hasTag(at::Tag::data_dependent_output);
    facts.pointwise = facts.pointwise || op->hasTag(at::Tag::pointwise);
    facts.changes_objects = facts.resizes || facts.takes_storage || op->hasTag(at::Tag::inplace_view);
  } else {
    // An operator that is not registered in this process may change tensor objects; assume that it does.
    facts.changes_objects = target.kind() == TargetKind::kOperator;
  }

  const std::string_view space = namespace_of(target.name());
  facts.collective = std::ranges::find(collective_namespaces(), space) != collective_namespaces().end();
  // Functions that get and set a generator's state (core/calls/functions.h) are ordered among random operators. A new
  // state affects later random numbers, which no result shows.
  if (space == "sg_random") {
    facts.random = true;
    facts.host_read = !target.name().starts_with("sg_random::get_state");
  }
  // Arguments of a user-defined function declare its effects; see shadowgraph/graph/target.h.
  if (target.kind() == TargetKind::kFunction) {
    for (const Formal& formal : signature.arguments) {
      facts.collective = facts.collective || (formal.name == "group_name" && formal.type.type == TypeClass::kString);
    }
  }
  facts.unknown = signature.variadic_arguments || signature.variadic_returns ||
                  std::any_of(signature.arguments.begin(), signature.arguments.end(), [&](const Formal& formal) {
                    return formal.type.type == TypeClass::kAny && !(facts.collective && is_group_argument(formal.name));
                  });
  derive_contents(signature, row.is, facts);
  size_t tensor_results = 0;
  size_t aliased_results = 0;
  for (size_t r = 0; r < signature.returns.size(); ++r) {
    tensor_results += signature.returns[r].type.is_tensor_like();
    aliased_results +=
        std::any_of(facts.aliases.begin(), facts.aliases.end(), [&](const auto& a) { return a.result == r; });
  }
  // A view returns no new tensor: all tensor results alias an argument, and it writes nothing.
  facts.is_view = tensor_results > 0 && aliased_results == tensor_results && facts.written.empty();
  // A view that may be a copy reads its operand.
  const bool always_view = facts.is_view && std::all_of(facts.aliases.begin(), facts.aliases.end(),
                                                        [](const OperatorFacts::Alias& alias) { return alias.always; });
  facts.geometry_only = !facts.unknown && (always_view || facts.geometry_only);
  return facts;
}

}  // namespace

// Facts are computed once for all copies of a target. They are final once the operator was found with its tags; before
// that they are recomputed when operators have been registered since.
const OperatorFacts& Target::compute_facts() const {
  KnownTarget& known = KnownTarget::of(*this);
  signature();  // facts_of needs it, and computing it there would take the same lock
  const std::lock_guard lock(known.mutex);
  if (known.final_facts) return *known.final_facts;
  const uint64_t generation = operator_generation();
  if (known.facts_without_tags && known.tags_generation == generation) return *known.facts_without_tags;
  const auto op = find_operator(*this);
  if (kind_ == TargetKind::kOperator && !op) {
    known.tags_generation = generation;
    if (!known.facts_without_tags) {
      known.facts_without_tags = std::make_unique<const OperatorFacts>(facts_of(*this, std::nullopt));
    }
    return *known.facts_without_tags;
  }
  known.final_facts = std::make_unique<const OperatorFacts>(facts_of(*this, op));
  // Readers take the pointer without the lock.
  known.facts.store(known.final_facts.get(), std::memory_order_release);
  return *known.final_facts;
}

bool is_overwritten(const OperatorFacts& facts, size_t position) { return is_in(facts.overwritten, position); }

bool writes_now(const Graph& graph, NodeId node, const OperatorFacts& facts) {
  if (facts.write_condition < 0) return true;
  const auto arguments = graph.arguments(node);
  const auto position = static_cast<size_t>(facts.write_condition);
  if (position >= arguments.size()) return true;
  const Argument& condition = arguments[position];
  // The condition is a computed value: assume the write.
  return condition.kind != ArgumentKind::kBool || condition.b;
}

// The schema holds except for the table's corrections. A node without the deciding argument only reads the operand that
// is annotated as written.
bool writes_argument(const Graph& graph, NodeId node, size_t position) {
  const Target& target = graph.target(node);
  if (target.kind() != TargetKind::kOperator) return true;
  const OperatorRow row = operator_row(target.name());
  const Signature& signature = target.signature();
  if (row.spares.empty() || position >= signature.arguments.size()) return true;
  if (signature.arguments[position].name != row.spares) return true;
  const Argument* given = graph.find_argument(node, row.unless);
  return given == nullptr || given->kind != ArgumentKind::kNone;
}

}  // namespace shadowgraph
