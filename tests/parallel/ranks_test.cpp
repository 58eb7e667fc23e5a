// Simulates the programs of several ranks together.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "parallel/ranks/rank_times.h"
#include "shadowgraph/error.h"

namespace shadowgraph {
namespace {

using ::testing::HasSubstr;

std::string refusal_of(std::span<const RankProgram> ranks, std::span<const std::vector<uint32_t>> groups = {}) {
  try {
    RankTimes::of(ranks, groups, [](uint32_t, const RankStep& step) { return "call " + std::to_string(step.what); });
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(RankTimes, SendsRunBesideComputing) {
  std::vector<RankProgram> ranks(2);
  ranks[0].compute(2, 0);
  ranks[0].send(1, 7, 0.5, 1);
  ranks[0].send(1, 8, 0.5, 2);
  ranks[0].compute(3, 3);
  const uint32_t first = ranks[1].receive(0, 7, 0.25, 1);  // the longer of sender's and receiver's time counts
  const uint32_t second = ranks[1].receive(0, 8, 0.5, 2);
  ranks[1].compute(1, 0);
  ranks[1].wait(first);
  ranks[1].compute(1, 3);
  ranks[1].wait(second);
  const RankTimes times = RankTimes::of(ranks, {});
  EXPECT_DOUBLE_EQ(times.of(0)[1].begin, 2);
  EXPECT_DOUBLE_EQ(times.of(0)[2].begin, 2.5);  // transfers in one direction are serialized
  EXPECT_DOUBLE_EQ(times.of(0)[3].begin, 2);
  EXPECT_DOUBLE_EQ(times.of(1)[0].end, 2.5);
  EXPECT_DOUBLE_EQ(times.of(1)[3].begin, 1);  // exposed from here on
  EXPECT_DOUBLE_EQ(times.of(1)[3].end, 2.5);
  EXPECT_DOUBLE_EQ(times.end(1), 3.5);
  EXPECT_DOUBLE_EQ(times.computing(1), 2);
  EXPECT_DOUBLE_EQ(times.seconds(), 5);
}

TEST(RankTimes, CollectivesBeginWithTheLast) {
  std::vector<RankProgram> ranks(3);
  const std::vector<std::vector<uint32_t>> groups = {{0, 1, 2}, {0, 2}};
  for (uint32_t r = 0; r < 3; ++r) {
    ranks[r].compute(r + 1.0, 0);
    const uint32_t sum = ranks[r].collective(0, 5, 2, 1);
    if (r != 1) ranks[r].wait(ranks[r].collective(1, 6, 1, 2));
    ranks[r].compute(1, 3);
    ranks[r].wait(sum);
  }
  const RankTimes times = RankTimes::of(ranks, groups);
  EXPECT_DOUBLE_EQ(times.of(0)[1].begin, 3);
  EXPECT_DOUBLE_EQ(times.of(1)[1].end, 5);
  EXPECT_DOUBLE_EQ(times.of(0)[2].begin, 3);  // another group has a separate stream
  EXPECT_DOUBLE_EQ(times.end(1), 5);
  EXPECT_DOUBLE_EQ(times.end(0), 5);
  EXPECT_DOUBLE_EQ(times.seconds(), 5);
}

TEST(RankTimes, NamesThoseThatWaitForEver) {
  std::vector<RankProgram> ranks(2);
  ranks[0].wait(ranks[0].receive(1, 1, 0, 10));
  ranks[0].send(1, 2, 0, 11);
  ranks[1].wait(ranks[1].receive(0, 2, 0, 20));
  ranks[1].send(0, 1, 0, 21);
  EXPECT_THAT(refusal_of(ranks), HasSubstr("rank 0 waiting for call 10 from rank 1; rank 1 waiting for call 20"));

  std::vector<RankProgram> alone(2);
  alone[0].send(1, 1, 0, 10);
  alone[1].compute(1, 0);
  EXPECT_THAT(refusal_of(alone), HasSubstr("rank 0 call 10 to rank 1, which no other rank has joined"));

  std::vector<RankProgram> crossed(2);
  crossed[0].send(1, 1, 0, 10);
  crossed[1].receive(0, 2, 0, 20);
  EXPECT_THAT(refusal_of(crossed), HasSubstr("mismatched communication"));
}

TEST(RankTimes, RefusesWhatIsNotThere) {
  std::vector<RankProgram> ranks(1);
  ranks[0].send(3, 0, 0, 0);
  EXPECT_THAT(refusal_of(ranks), HasSubstr("rank 0 uses rank 3, but the number of ranks is 1"));
  ranks[0] = {};
  ranks[0].send(0, 0, 0, 0);
  EXPECT_THAT(refusal_of(ranks), HasSubstr("sends to itself"));
  ranks[0] = {};
  ranks[0].collective(0, 0, 0, 0);
  EXPECT_THAT(refusal_of(ranks), HasSubstr("uses group 0, but the number of groups is 0"));
  const std::vector<std::vector<uint32_t>> groups = {{1}};
  EXPECT_THAT(refusal_of(ranks, groups), HasSubstr("in group 0, but is not a member"));
  ranks[0] = {};
  ranks[0].wait(0);
  EXPECT_THAT(refusal_of(ranks), HasSubstr("not an earlier communication"));
}

}  // namespace
}  // namespace shadowgraph
