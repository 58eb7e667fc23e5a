// Random programs, captured on fake tensors and run again from the graph, do what they do in eager. Compared are
// outputs, what they leave in their inputs, and what aliases what.
#include <gtest/gtest.h>

#include "tests/random/program.h"

namespace shadowgraph::testing {
namespace {

constexpr int kProgramShards = 20;

class RandomPrograms : public ::testing::TestWithParam<int> {};

TEST_P(RandomPrograms, ReplayAsTheyRun) {
  expect_same_behavior_of_shard(GetParam(), kProgramShards, random_program_count(15000), 1);
}
INSTANTIATE_TEST_SUITE_P(Shard, RandomPrograms, ::testing::Range(0, kProgramShards));

}  // namespace
}  // namespace shadowgraph::testing
