// Programs without their mutation do what they did: outputs, what they leave in what they were given, what aliases what.
#include <gtest/gtest.h>

#include "ir/equal.h"
#include "ir/parser.h"
#include "ir/printer.h"
#include "passes/functionalize.h"
#include "tests/replay/random_program.h"

namespace shadowgraph::testing {
namespace {

constexpr int kShards = 20;

Graph functionalized(const Graph& graph) {
  Graph result = parse(to_text(graph));
  functionalize(result);
  const NodeId left = first_mutation(result);
  if (left.valid()) throw Error("a write is left: " + to_text(result, left));
  Graph again = parse(to_text(result));
  if (functionalize(again).changed) throw Error("functionalizing again changes the graph");
  if (const auto difference = first_difference(result, again)) throw Error(*difference);
  return result;
}

class FunctionalizedPrograms : public ::testing::TestWithParam<int> {};

TEST_P(FunctionalizedPrograms, ReplayAsTheyRun) {
  expect_same_behaviour_of_shard(GetParam(), kShards, random_program_count(5000), 100000, functionalized);
}
INSTANTIATE_TEST_SUITE_P(Shard, FunctionalizedPrograms, ::testing::Range(0, kShards));

}  // namespace
}  // namespace shadowgraph::testing
