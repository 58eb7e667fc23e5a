// Tests the text that the tool prints for a plan, from hand-written costs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shadowgraph/shard/shard.h"

namespace shadowgraph {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

ShardingResult four_devices() {
  ShardingResult answer;
  answer.plan.mesh = DeviceMesh::parse("dp=4");
  answer.title = "a model on dp=4";
  answer.compute = 0.003, answer.communication = 0.001, answer.alone = 0.01;
  answer.overlapped = 0.0035, answer.exposed = 0.0005;
  return answer;
}

TEST(ShardingText, PlaceholdersThatLieAlikeShareALineWithTheirSums) {
  ShardingResult answer = four_devices();
  const auto add = [&](const char* name, const char* layout, int64_t bytes, int64_t local) {
    answer.placeholders.push_back(
        {.name = name, .node = {}, .layout = Layout::parse(layout), .bytes = bytes, .local_bytes = local});
  };
  add("layers.0.weight", "S(0)", 4096, 1024);
  add("layers.1.weight", "S(0)", 4096, 1024);
  add("layers.1.bias", "R", 512, 512);
  add("layers.2.weight", "S(0)", 4096, 1024);
  EXPECT_THAT(to_text(answer, 0), HasSubstr("  LAYOUT  PER DEVICE  TOTAL      COUNT  PARAMETER, BUFFER OR INPUT\n"
                                            "  S(0)    3.00 KiB    12.00 KiB  3      layers.#.weight\n"
                                            "  R       512 B       512 B      1      layers.#.bias\n"
                                            "  3.50 KiB of 12.50 KiB on each device\n"));
  EXPECT_THAT(to_text(answer, 1), AllOf(HasSubstr("  ... 1 more rows (--rows 0)\n  3.50 KiB of 12.50 KiB"),
                                        ::testing::Not(HasSubstr("layers.#.bias"))));
}

TEST(ShardingText, SecondsOfAStepAndOfPlansByHand) {
  ShardingResult answer = four_devices();
  answer.compared.push_back({.name = "data parallel", .seconds = 0.006, .peak = 2048});
  answer.traffic.push_back({.phase = "forward", .kind = "all_gather", .axis = "dp", .calls = 3, .bytes = 4096});
  answer.traffic.back().seconds = 0.002;
  EXPECT_THAT(
      to_text(answer, 0),
      AllOf(HasSubstr("4.00 ms per step: 3.00 ms compute, 1.00 ms communication; a single device takes 10.00 ms, "
                      "2.50 times as long\n"
                      "3.50 ms with communication overlapped; 500.00 us of communication are exposed\n"),
            HasSubstr("  data parallel  6.00 ms    1.50      2.00 KiB"),
            HasSubstr("  forward  all_gather  dp    3      4.00 KiB      2.00 ms\n")));
}

}  // namespace
}  // namespace shadowgraph
