// Graphs split into parts, or rewritten by patterns, behave like the program: random programs, and training steps of
// built-in models.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "core/replay/body_function.h"
#include "shadowgraph/graph/edit.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/passes/simplify.h"
#include "shadowgraph/passes/structure.h"
#include "tests/passes/model_captures.h"
#include "tests/random/program.h"

namespace shadowgraph::testing {
namespace {

constexpr int kPieceShards = 8;

// Selects about two thirds of the nodes, deterministically.
std::function<bool(NodeId)> any_two_of_three(uint64_t seed) {
  return [seed](NodeId n) { return ((n.index + 1) * 2654435761U + seed * 40503U) % 97 % 3 != 0; };
}

// Returns the parent graph, whose calls contain the parts and run them in order.
Graph in_parts(const Graph& graph, uint64_t seed, size_t& parts) {
  PartitionedGraph cut = split(graph, propose_partition(graph, any_two_of_three(seed)));
  parts += cut.parts.size();
  for (const PartitionedGraph::Part& part : cut.parts) {
    for (const NodeId n : cut.parent.nodes()) {
      if (cut.parent.target(n).name() == part.function) cut.parent.set_note(n, kBodyNote, to_text(part.graph));
    }
  }
  return std::move(cut.parent);
}

class PiecesOfPrograms : public ::testing::TestWithParam<int> {};

TEST_P(PiecesOfPrograms, RunOneAfterTheOtherAsTheWhole) {
  size_t parts = 0;
  uint64_t seed = 0;
  const auto rewrite = [&](const Graph& graph) { return in_parts(graph, ++seed, parts); };
  expect_same_behavior_of_shard(GetParam(), kPieceShards, random_program_count(2000), 600000, {rewrite});
  if (std::getenv("SHADOWGRAPH_RANDOM_SEED") == nullptr) EXPECT_GT(parts, 0U);
}

TEST_P(PiecesOfPrograms, JoinedAgainAreTheWhole) {
  uint64_t seed = 0;
  const auto rewrite = [&](const Graph& graph) {
    return join(split(graph, propose_partition(graph, any_two_of_three(++seed))));
  };
  expect_same_behavior_of_shard(GetParam(), kPieceShards, random_program_count(2000), 610000, {rewrite});
}

// Replaces operators by others with bitwise equal results.
constexpr const char* kRules = R"(rule relu
%y = aten::relu(self=%x)
return %y
=>
%y = aten::clamp_min(self=%x, min=0)
return %y
rule mul number
%y = aten::mul.Scalar(self=%x, other=$s)
return %y
=>
%y = aten::mul.Tensor(self=%x, other=$s)
return %y
rule add number
%y = aten::add.Scalar(self=%x, other=$s, alpha=1)
return %y
=>
%y = aten::add.Tensor(self=%x, other=$s, alpha=1)
return %y
rule view of a copy
%a = aten::clone(self=%x, memory_format=contiguous)
%b = aten::clone(self=%a, memory_format=contiguous)
return %b
=>
%b = aten::clone(self=%x, memory_format=contiguous)
return %b
)";

TEST_P(PiecesOfPrograms, RewrittenByPatternsComputeTheSame) {
  int64_t replaced = 0;
  const auto rewritten = [&](const Graph& graph) {
    Graph result = clone(graph);
    replaced += rewrite(result, parse_rules(kRules, &result)).replaced;
    return result;
  };
  expect_same_behavior_of_shard(GetParam(), kPieceShards, random_program_count(2000), 620000, {rewritten});
  // holds for many programs, not for a single one
  if (std::getenv("SHADOWGRAPH_RANDOM_SEED") == nullptr) EXPECT_GT(replaced, 0);
}

INSTANTIATE_TEST_SUITE_P(Shard, PiecesOfPrograms, ::testing::Range(0, kPieceShards));

}  // namespace
}  // namespace shadowgraph::testing
