// Replays captured random programs and compares with eager: outputs, contents of inputs after the run, and aliases.
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
