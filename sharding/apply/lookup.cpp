#include "sharding/apply/lookup.h"

namespace shadowgraph {

LocalIndices local_indices(LocalProgram& program, ValueId indices, const ShardingRules::Lookup& lookup, int64_t instead,
                           std::optional<int64_t> ignored) {
  const auto of = [](ValueId value) { return Argument::of_value(value); };
  const auto number = [](int64_t value) { return Argument::of_int(value); };
  const ValueId shifted = program.call_for_one("aten::sub.Scalar", {of(indices), number(lookup.begin), number(1)});
  const ValueId low = program.call_for_one("aten::lt.Scalar", {of(shifted), number(0)});
  const ValueId high = program.call_for_one("aten::ge.Scalar", {of(shifted), number(lookup.end - lookup.begin)});
  ValueId others = program.call_for_one("aten::logical_or", {of(low), of(high)});
  if (ignored) {
    const ValueId skipped = program.call_for_one("aten::eq.Scalar", {of(indices), number(*ignored)});
    others = program.call_for_one("aten::logical_or", {of(others), of(skipped)});
  }
  const ValueId local = program.call_for_one("aten::masked_fill.Scalar", {of(shifted), of(others), number(instead)});
  return {local, others};
}

std::vector<Argument> rows_of(LocalProgram& program, ValueId tensor, ValueId others) {
  const ValueId rows = program.call_for_one("aten::unsqueeze", {Argument::of_value(others), Argument::of_int(-1)});
  return {Argument::of_value(tensor), Argument::of_value(rows), Argument::of_int(0)};
}

ValueId without_rows(LocalProgram& program, ValueId tensor, ValueId others) {
  return program.only_result(
      program.append(program.emitter.target("aten::masked_fill.Scalar"), rows_of(program, tensor, others)));
}

}  // namespace shadowgraph
