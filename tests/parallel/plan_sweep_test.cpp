// Plan sweeps compared with plans made one by one, and suggestions for requests that do not fit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "parallel/plan/planner.h"
#include "shadowgraph/plan/training_plan.h"
#include "tests/parallel/plan_samples.h"

namespace shadowgraph {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using namespace plan_samples;  // NOLINT(google-build-using-namespace)

const PlanRow& row_named(const PlanTable& table, const std::string& value) {
  const auto row = std::ranges::find(table.rows, value, &PlanRow::value);
  TORCH_CHECK(row != table.rows.end(), "no row ", value, "\n", to_text(table));
  return *row;
}

TEST(PlanSweep, ARowIsThePlanOfItsRequest) {
  const StepSource source = small_source("llama3_8b", 6, 16);
  PlanSweep sweep(source, eight_devices());
  const PlanTable table = sweep.run({.kind = PlanSweepKind::kDevices, .values = {4, 8, 16}});
  ASSERT_GE(table.rows.size(), 3U);
  for (const int64_t devices : {4, 8, 16}) {
    ClusterRequest request = eight_devices();
    request.devices = devices;
    request.simulated = 1;
    const ClusterPlan alone = plan_training(source, request);
    const PlanRow& row = row_named(table, std::to_string(devices));
    EXPECT_EQ(row.seconds, alone.best().run.seconds()) << devices;
    EXPECT_EQ(row.bytes, alone.best().bytes());
    EXPECT_EQ(to_string(row.plan), to_string(alone.best().plan));
    EXPECT_EQ(row.share, alone.model_flops_share());
  }
  EXPECT_EQ(sweep.plan().best().run.seconds(), plan_training(source, eight_devices()).best().run.seconds());
}

TEST(PlanSweep, LayersAreCapturedOnce) {
  StepSource source = small_source("llama3_8b", 6, 16);
  int64_t few = 0;
  source.capture = [&, inner = source.capture](const StepSize& size) {
    few += size.layers > 0 ? 1 : 0;
    return inner(size);
  };
  PlanSweep sweep(source, eight_devices());
  sweep.plan();
  const int64_t of_a_plan = few;
  EXPECT_GT(of_a_plan, 0);
  sweep.run({.kind = PlanSweepKind::kDevices});
  sweep.run({.kind = PlanSweepKind::kNetwork});
  sweep.run({.kind = PlanSweepKind::kMemory});
  EXPECT_EQ(few, of_a_plan);
}

TEST(PlanSweep, EfficiencyFallsBetweenTwoRowsOfTheTable) {
  PlanSweep sweep(small_source("llama3_8b", 6, 16), eight_devices());
  const PlanTable all = sweep.run({.kind = PlanSweepKind::kDevices});
  double least = 1, most = 0;
  for (const PlanRow& row : all.rows) {
    if (!row.why_not.empty()) continue;
    least = std::min(least, row.share);
    most = std::max(most, row.share);
  }
  ASSERT_LT(least, most);
  const auto finding = [&](double share) {
    return sweep.run({.kind = PlanSweepKind::kDevices, .share = share}).findings.front();
  };
  EXPECT_THAT(finding((least + most) / 2), HasSubstr("efficiency drops below"));
  EXPECT_THAT(finding(least / 2), HasSubstr("is still above"));
  EXPECT_THAT(finding((1 + most) / 2), HasSubstr("the smallest number that fits"));
}

TEST(PlanSweep, FasterLinksLeaveLessToWaitFor) {
  ClusterRequest request = eight_devices();
  request.devices = 16;
  PlanSweep sweep(small_source("llama3_8b", 6, 16), request);
  const PlanTable table = sweep.run({.kind = PlanSweepKind::kNetwork});
  const PlanRow& own = table.rows.front();
  const PlanRow& free = row_named(table, "no communication cost");
  EXPECT_LT(free.seconds, own.seconds);
  EXPECT_GT(own.exposed, 0);
  EXPECT_NEAR(free.exposed, 0, 1e-9);
  for (const PlanRow& row : table.rows) EXPECT_LE(row.seconds, 1.01 * own.seconds) << row.value;
  request.links.tables[CollectiveKind::kAllReduce][8] = {{1e6, 1e-4}};
  PlanSweep measured(small_source("llama3_8b", 6, 16), request);
  EXPECT_THROW(measured.run({.kind = PlanSweepKind::kNetwork}), Error);
}

TEST(PlanSweep, TheLeastMemoryFitsAndLessDoesNot) {
  ClusterRequest request = eight_devices();
  request.batch = 4096;
  request.sequence = 64;
  request.micro_batch = {512};
  request.simulated = 1;
  const auto beside = static_cast<double>(runtime_overhead_bytes(request.device));
  const StepSource source = small_source("llama3_8b", 6, 64);
  PlanSweep sweep(source, request);
  const PlanTable table = sweep.run({.kind = PlanSweepKind::kMemory, .values = {beside + 1e6, 80e9}});
  ASSERT_EQ(table.rows.size(), 3U) << to_text(table);
  EXPECT_THAT(table.rows[0].why_not, HasSubstr("no plan fits"));
  EXPECT_THAT(table.findings.front(), HasSubstr("is the smallest that fits"));
  request.memory = static_cast<int64_t>(table.rows[1].number);
  EXPECT_EQ(plan_training(source, request).best().run.seconds(), table.rows[1].seconds);
  request.memory = static_cast<int64_t>(beside + 0.85 * (table.rows[1].number - beside));
  EXPECT_THROW(plan_training(source, request), InfeasibleError);
}

TEST(PlanSweep, TheLongestSequenceIsThatOfTheModelWhereAllFit) {
  const StepSource source = small_source("llama3_8b", 6, 16);
  PlanSweep sweep(source, eight_devices());
  const PlanTable table = sweep.run({.kind = PlanSweepKind::kSequence});
  ASSERT_THAT(table.findings, ElementsAre(AllOf(HasSubstr("sequences of 64 tokens fit"), HasSubstr("64 positions"))));
  EXPECT_EQ(table.rows.back().number, 64);
  PlanSweep fixed(small_source("llama3_8b", 6), eight_devices());
  EXPECT_THROW(fixed.run({.kind = PlanSweepKind::kSequence, .values = {32}}), Error);
}

TEST(PlanSweep, BatchesInOnePassAreFoundBesideThoseThatAreAddedUp) {
  PlanSweep sweep(small_source("llama3_8b", 6, 16), eight_devices());
  const PlanTable table = sweep.run({.kind = PlanSweepKind::kBatch, .values = {8, 16, 32}});
  EXPECT_LT(row_named(table, "8").seconds, row_named(table, "32").seconds);
  EXPECT_THAT(table.findings, Contains(HasSubstr("is the largest batch in one pass")));
}

TEST(PlanSweep, TheCheapestClusterIsTheFewestDevicesInTime) {
  PlanSweep sweep(small_source("llama3_8b", 6, 16), eight_devices());
  const std::vector<DeviceOffer> offers =
      parse_offers(R"({"h100": 2.5, "a100": {"per_hour": 1.0, "most": 64, "interconnect": "a100"}})", "here");
  ASSERT_EQ(offers.size(), 2U);
  const PlanTable alone = sweep.run({.kind = PlanSweepKind::kDevices, .values = {8}});
  const double tokens = 16 * 16 * 1000;
  const double within = alone.rows.front().seconds * 1000 * 1.5;
  const PlanTable table =
      sweep.run({.kind = PlanSweepKind::kPrice, .tokens = tokens, .within = within, .offers = offers});
  ASSERT_THAT(table.findings.front(), HasSubstr("cheapest: "));
  double cheapest = 1e30;
  for (const PlanRow& row : table.rows) {
    if (!row.why_not.empty()) continue;
    EXPECT_NEAR(row.training, 1000 * row.seconds, 1e-9 * row.training);
    const double hour = row.value.ends_with("h100") ? 2.5 : 1.0;
    EXPECT_NEAR(row.price, row.training / 3600 * static_cast<double>(row.devices) * hour, 1e-9 * row.price);
    if (row.training <= within) cheapest = std::min(cheapest, row.price);
  }
  EXPECT_LT(cheapest, 1e30);
  EXPECT_THROW(sweep.run({.kind = PlanSweepKind::kPrice, .tokens = 1, .within = 1}), Error);
  EXPECT_THROW(sweep.run({.kind = PlanSweepKind::kPrice, .offers = offers}), Error);
}

TEST(PlanSweep, WordsAreReadOrRefused) {
  const PlanSweepOptions price = PlanSweepOptions::table().read({{"tokens", "15T"}, {"within", "14d"}});
  EXPECT_EQ(price.tokens, 15e12);
  EXPECT_EQ(price.within, 14 * 86400);
  EXPECT_THAT(sweep_values(PlanSweepKind::kMemory, {"40GB", "80GiB"}), ElementsAre(40e9, 85899345920.0));
  EXPECT_THAT(sweep_values(PlanSweepKind::kSequence, {"8k", "8Ki"}), ElementsAre(8000, 8192));
  const auto refused = [](const auto& read, const char* why) {
    try {
      read();
      FAIL() << why;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(why));
    }
  };
  refused([] { parse<PlanSweepKind>("weather", "question"); }, "devices, network");
  refused([] { PlanSweepOptions::table().read({{"within", "14"}}); }, "such as 14d");
  refused([] { PlanSweepOptions::table().read({{"tokens", "many"}}); }, "16M");
  refused([] { sweep_values(PlanSweepKind::kDevices, {"1.5"}); }, "'1.5' is not a number such as");
  refused([] { sweep_values(PlanSweepKind::kPrice, {"8"}); }, "takes no --values");
  EXPECT_THROW(parse_offers(R"({"h9000": 1})", "here"), Error);
  EXPECT_THROW(parse_offers(R"({"h100": "cheap"})", "here"), ParseError);
  EXPECT_THROW(parse_offers(R"({"h100": {"most": 8}})", "here"), ParseError);
  PlanSweep sweep(small_source("llama3_8b", 6), eight_devices());
  EXPECT_THROW(sweep.run({.kind = PlanSweepKind::kDevices, .share = 0}), Error);
  EXPECT_THROW(sweep.run({.kind = PlanSweepKind::kDevices, .values = {0}}), Error);
}

// ---------------------------------------------------------------------------------------------------------------------

std::string why_nothing_fits(const StepSource& source, const ClusterRequest& request) {
  try {
    plan_training(source, request);
  } catch (const InfeasibleError& error) {
    return error.what();
  }
  return "a plan fits";
}

// Lines with suggested changes, each a plan.
std::vector<std::string> changes_of(const std::string& why) {
  std::vector<std::string> lines;
  for (size_t at = why.find("\n  "); at != std::string::npos;) {
    const size_t end = why.find('\n', at + 1);
    lines.push_back(why.substr(at + 3, end - at - 3));
    at = end;
  }
  return lines;
}

// Doubles the micro-batch until no plan fits; 32 samples fit without recomputing.
TEST(WhatWouldFit, NamesChangesThatWerePlanned) {
  ClusterRequest request = eight_devices();
  request.devices = 1;
  request.batch = 4096;
  request.sequence = 64;
  request.micro_batch = {32};
  const StepSource source = small_source("llama3_8b", 24, 64);
  request.memory = runtime_overhead_bytes(request.device) + plan_training(source, request).best().bytes();
  std::string why;
  for (request.micro_batch = {64}; request.micro_batch.front() <= request.batch && changes_of(why).empty();) {
    why = why_nothing_fits(source, request);
    request.micro_batch = {2 * request.micro_batch.front()};
  }
  const std::vector<std::string> changes = changes_of(why);
  ASSERT_GE(changes.size(), 2U) << why;
  EXPECT_THAT(changes.front(), HasSubstr("with any micro-batch: tp 1")) << why;
  EXPECT_THAT(changes, Contains(AllOf(HasSubstr("devices with"), HasSubstr("more: tp"))));
  for (const std::string& change : changes) EXPECT_THAT(change, AllOf(HasSubstr(" per step"), HasSubstr("tp "))) << why;
}

TEST(WhatWouldFit, ABatchForFewerRanksIsMadeLarger) {
  ClusterRequest request = eight_devices();
  request.batch = 3;
  request.tensor = {1};
  request.pipeline = {1};
  const std::string why = why_nothing_fits(small_source("llama3_8b", 6), request);
  EXPECT_THAT(why, HasSubstr("no tensor-parallel degree")) << why;
  EXPECT_THAT(changes_of(why), Contains(HasSubstr("8 samples per step, 5 more: "))) << why;
}

}  // namespace
}  // namespace shadowgraph
