// Looks up by index in a part of a vocabulary: indices count from 0 there, and some of them belong to other devices.
//
//     rank 1 of 2, 8 words: [5, 2, 7]  ->  [1, 0, 3], others [false, true, false]
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "shadowgraph/sharding/rules.h"
#include "sharding/apply/local_program.h"

namespace shadowgraph {

struct LocalIndices {
  ValueId indices;
  ValueId others;  // true where the index is another device's, or `ignored`
};
// Replaces indices of other devices by `instead`.
LocalIndices local_indices(LocalProgram& program, ValueId indices, const ShardingRules::Lookup& lookup, int64_t instead,
                           std::optional<int64_t> ignored);

// Returns arguments of aten::masked_fill.Scalar that make the rows of `tensor`, [indices..., d], zero where `others` is
// true.
std::vector<Argument> rows_of(LocalProgram& program, ValueId tensor, ValueId others);
ValueId without_rows(LocalProgram& program, ValueId tensor, ValueId others);

}  // namespace shadowgraph
