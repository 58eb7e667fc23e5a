// Text output for a pipeline, from hand-written stage costs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shadowgraph/plan/pipeline.h"

namespace shadowgraph {
namespace {

using ::testing::HasSubstr;

std::string text_of(std::vector<StageCosts> figures) {
  const auto ranks = static_cast<int32_t>(figures.size());
  const PipelineStages stages = PipelineStages::of_costs(std::move(figures));
  return to_text(PipelineRun::of(stages, PipelineSchedule::named("1f1b", {.ranks = ranks, .microbatches = 2})));
}

TEST(PipelineText, NamesTheRankThatWorksMost) {
  const StageCosts quick{.forward = 1, .input_gradient = 1, .weight_gradient = 1};
  StageCosts slow = quick;
  slow.forward = 2;
  EXPECT_THAT(text_of({quick, slow, quick}), HasSubstr("most compute: rank 1, 8.00 s of "));
  EXPECT_THAT(text_of({slow, quick, quick}), HasSubstr("most compute: rank 0, 8.00 s of "));
  EXPECT_THAT(text_of({quick, quick}), HasSubstr("most compute: rank 0, 6.00 s of "));
}

TEST(PipelineText, NamesTheRankThatHoldsMost) {
  const StageCosts small{.forward = 1, .parameters = 1024, .gradients = 512, .carried = 256};
  StageCosts large = small;
  large.parameters = 4096;
  EXPECT_THAT(text_of({small, large}), HasSubstr("most memory: rank 1, "));
  EXPECT_THAT(text_of({large, small}), HasSubstr("most memory: rank 0, "));
}

}  // namespace
}  // namespace shadowgraph
