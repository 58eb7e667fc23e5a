// The links used by each axis of a plan, and refused interconnects.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "parallel/plan/plan_space.h"
#include "tests/parallel/plan_samples.h"

namespace shadowgraph {
namespace {

using ::testing::HasSubstr;
using namespace plan_samples;  // NOLINT(google-build-using-namespace)

// Machines of four devices, rails of eight, and sites connected by slow links.
Interconnect three_levels() {
  Interconnect links{.name = "three"};
  links.levels = {{.name = "nvlink", .size = 4, .latency = 1e-6, .bandwidth = 3e11},
                  {.name = "rail", .size = 8, .latency = 3e-6, .bandwidth = 4e10},
                  {.name = "site", .size = 0, .latency = 1e-3, .bandwidth = 1e8}};
  return links;
}

TEST(Placement, AxesGoOverTheLinksThatTheirGroupsSpan) {
  TrainingPlan plan{.tensor = 4, .data = 2, .pipeline = 2, .data_outermost = true};
  EXPECT_EQ(to_string(placement_of(plan, three_levels())),
            "tensor 4 over nvlink, pipeline 2 over rail, data 2 over site");
  plan.data_outermost = false;
  EXPECT_EQ(to_string(placement_of(plan, three_levels())),
            "tensor 4 over nvlink, data 2 over rail, pipeline 2 over site");
  plan = {.tensor = 1, .data = 6, .pipeline = 1};
  // groups of six straddle blocks of eight
  EXPECT_EQ(to_string(placement_of(plan, three_levels())), "data 6 over site");
}

// The other mesh order would send the same bytes over slower links.
TEST(Placement, FarSitesArePassedByWhatCostsLeast) {
  ClusterRequest request = eight_devices();
  request.devices = 16;
  request.batch = 64;
  request.links = three_levels();
  const StepSource source = small_source("llama3_8b", 6);
  const ClusterPlan answer = plan_training(source, request);
  EXPECT_THAT(to_text(answer), HasSubstr("placed, innermost first: "));
  EXPECT_THAT(to_text(answer), HasSubstr("over site"));
  for (const SimulatedPlan& made : answer.simulated) {
    if (made.plan.data == 1 || made.plan.pipeline == 1) continue;
    TrainingPlan other = made.plan;
    other.data_outermost = !other.data_outermost;
    EXPECT_GE(1.0001 * simulate_plan(source, request, other).run.seconds(), answer.best().run.seconds());
  }
}

TEST(Placement, LinksThatCannotBePlacedAreRefusedByName) {
  ClusterRequest request = eight_devices();
  request.links = three_levels();
  request.links.levels.pop_back();
  request.devices = 16;
  const auto why = [&] {
    try {
      plan_training(small_source("llama3_8b", 6), request);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("planned");
  };
  EXPECT_THAT(why(), HasSubstr("joins at most 8 devices (level 'rail')"));
  request.links = three_levels();
  request.links.axes["ep"] = {};
  EXPECT_THAT(why(), HasSubstr("the unknown axis 'ep'"));
}

}  // namespace
}  // namespace shadowgraph
