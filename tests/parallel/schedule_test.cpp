// Pipeline schedules: checks, text format, and closed forms from the papers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "shadowgraph/error.h"
#include "shadowgraph/plan/pipeline.h"

namespace shadowgraph {
namespace {

using ::testing::HasSubstr;

std::string refusal_of(std::string_view csv) {
  try {
    PipelineSchedule::from_csv(csv, "plan.csv");
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

std::string refusal_of(const char* name, const PipelineSize& size) {
  try {
    PipelineSchedule::named(name, size);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(PipelineSchedule, ReadsAndWritesTheCsvOfPyTorch) {
  const std::string csv = "0F0,0F1,(0F2;3B0)OVERLAP_F_B,3B1,3B2,0I0,0W0,0B1,0B2,0REDUCE_GRAD\n";
  const std::string text = "0F0,0F1,1F0,1F1,(0F2;1B0)OVERLAP_F_B,1F2,1I1,1W1,1B2,0I0,0W0,0B1,0B2,0REDUCE_GRAD\n";
  const PipelineSchedule schedule = PipelineSchedule::from_csv(text, "one.csv");
  EXPECT_EQ(schedule.to_csv(), text);
  EXPECT_EQ(schedule.stages(), 2);
  EXPECT_EQ(schedule.microbatches(), 3);
  // Cells may be empty, quoted or padded.
  const PipelineSchedule loose = PipelineSchedule::from_csv("0F0,, \"0B0\" \r\n,1F0,1B0\n\n", "loose.csv");
  EXPECT_EQ(loose.to_csv(), "0F0,0B0\n1F0,1B0\n");
  EXPECT_THAT(refusal_of(csv), HasSubstr("stage 1 is not assigned to a rank"));
}

TEST(PipelineSchedule, SaysWhatIsWrongWithARow) {
  EXPECT_THAT(refusal_of(""), HasSubstr("it has no ranks"));
  EXPECT_THAT(refusal_of("\n\n"), HasSubstr("it has no compute actions"));
  EXPECT_THAT(refusal_of("0F0,0X0"), HasSubstr("plan.csv, line 1, cell 2: '0X0' is not an action"));
  EXPECT_THAT(refusal_of("0F0,0B0\n1F0,1B-1"), HasSubstr("line 2, cell 2"));
  EXPECT_THAT(refusal_of("0F99999999999"), HasSubstr("is not an action"));
  EXPECT_THAT(refusal_of("(0F0;0B0OVERLAP_F_B"), HasSubstr("is not an action"));
  EXPECT_THAT(refusal_of("(0F0;0SEND_F0)OVERLAP_F_B"), HasSubstr("is not an action"));
  EXPECT_THAT(refusal_of("0F0,0B0,0F1"), HasSubstr("0B1 or 0I1 is missing"));
  EXPECT_THAT(refusal_of("0F0,0I0"), HasSubstr("0W0 is missing"));
  EXPECT_THAT(refusal_of("0F0,0B0,0W0"), HasSubstr("0B0 and 0W0 exclude each other"));
  EXPECT_THAT(refusal_of("0F0,0F0,0B0"), HasSubstr("0F0 occurs twice"));
  EXPECT_THAT(refusal_of("0B0"), HasSubstr("0F0 is missing"));
  EXPECT_THAT(refusal_of("0F,0B0"), HasSubstr("0F has no micro-batch"));
  EXPECT_THAT(refusal_of("0F0,0B0\n0F1,0B1"), HasSubstr("stage 0 is on ranks 0 and 1 (0F1)"));
  EXPECT_THAT(refusal_of("70000F0"), HasSubstr("invalid stage"));
  const PipelineAction forward{.overlaps_next = true, .microbatch = 0};
  EXPECT_THROW(PipelineSchedule("alone", {{forward}}), Error);
  EXPECT_THAT(refusal_of("0F0,0B0\n1B0,1F0"), HasSubstr("rank 0 at 0B0, rank 1 at 1B0"));
  // Send and receive order: rank 1 would compute before it receives its input.
  EXPECT_THAT(refusal_of("0F0,0SEND_F0,0RECV_B0,0B0\n1F0,1RECV_F0,1B0,1SEND_B0"), HasSubstr("rank 1 at 1F0"));
  EXPECT_EQ(refusal_of("0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0"), "");
  EXPECT_THAT(refusal_of("0F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0"), HasSubstr("rank 1 at 1F0"));
}

TEST(PipelineSchedule, SaysWhatASizeDoesNotFit) {
  EXPECT_THAT(refusal_of("2f2b", {}), HasSubstr("one of gpipe, 1f1b, interleaved"));
  EXPECT_THAT(refusal_of("1f1b", {.ranks = 0}), HasSubstr("at least 1"));
  EXPECT_THAT(refusal_of("1f1b", {.ranks = 2, .stages_per_rank = 2}), HasSubstr("one stage per rank, not 2"));
  EXPECT_THAT(refusal_of("zbv", {.ranks = 2}), HasSubstr("two stages per rank"));
  EXPECT_THAT(refusal_of("interleaved", {.ranks = 4, .stages_per_rank = 2, .microbatches = 9}),
              HasSubstr("use a multiple"));
  EXPECT_THAT(refusal_of("dualpipe_v", {.ranks = 4, .stages_per_rank = 2, .microbatches = 7}),
              HasSubstr("need at least 8 micro-batches, not 7"));
  EXPECT_THAT(refusal_of("gpipe", {.ranks = 1 << 12, .microbatches = 1 << 12}), HasSubstr("too large"));
}

// Every schedule runs at every size, also with explicit sends and receives, and its text round-trips.
TEST(PipelineSchedule, OfEverySizeCanBeRun) {
  for (const std::string& name : PipelineSchedule::names()) {
    for (const int32_t ranks : {1, 2, 3, 4, 7}) {
      for (const int32_t microbatches : {1, 2, 5, 8, 21}) {
        const int32_t a_rank = PipelineSchedule::stages_per_rank(name, 3);
        const PipelineSize size{.ranks = ranks, .stages_per_rank = a_rank, .microbatches = microbatches};
        if (!refusal_of(name.c_str(), size).empty()) continue;
        const PipelineSchedule whole = PipelineSchedule::named(name, size).with_transfers();
        EXPECT_EQ(whole.stages(), ranks * a_rank);
        EXPECT_EQ(whole.microbatches(), microbatches) << name;
        EXPECT_EQ(PipelineSchedule::from_csv(whole.to_csv(), name).to_csv(), whole.to_csv());
        EXPECT_EQ(whole.has_transfers(), ranks > 1);
        const PipelineSchedule waiting = whole.with_send_waits();
        EXPECT_EQ(waiting.with_send_waits().to_csv(), waiting.to_csv()) << name;
      }
    }
  }
}

// Waits, in torch since 2.15: a rank continues when its send is received or a reduction has finished.
TEST(PipelineSchedule, WaitsForSendsAndReductions) {
  const std::string lower = "\n1RECV_F0,1F0,1B0,1SEND_B0";
  EXPECT_EQ(refusal_of(("0F0,0SEND_F0,0RECV_B0,0B0,0WAIT_SEND_F0" + lower + ",1WAIT_SEND_B0").c_str()), "");
  EXPECT_THAT(refusal_of(("0F0,0WAIT_SEND_F0,0SEND_F0,0RECV_B0,0B0" + lower).c_str()),
              HasSubstr("0WAIT_SEND_F0 has no earlier send to wait for"));
  EXPECT_THAT(refusal_of(("0F0,0SEND_F0,0WAIT_SEND_F,0RECV_B0,0B0" + lower).c_str()), HasSubstr("has no micro-batch"));
  EXPECT_THAT(refusal_of("0F0,0B0,0WAIT_REDUCE_GRAD,0REDUCE_GRAD"),
              HasSubstr("has no earlier REDUCE_GRAD to wait for"));
  // Rank 1 receives 0 only after 1, whose send comes after the wait: a deadlock.
  EXPECT_THAT(refusal_of("0F0,0SEND_F0,0WAIT_SEND_F0,0F1,0SEND_F1,0RECV_B1,0B1,0RECV_B0,0B0\n"
                         "1RECV_F1,1F1,1RECV_F0,1F0,1B1,1SEND_B1,1B0,1SEND_B0"),
              HasSubstr("rank 0 at 0WAIT_SEND_F0"));
  const PipelineSchedule whole = PipelineSchedule::from_csv("0F0,0SEND_F0,0RECV_B0,0B0" + lower, "two");
  EXPECT_EQ(whole.with_send_waits().to_csv(),
            "0F0,0SEND_F0,0RECV_B0,0B0,0WAIT_SEND_F0\n1RECV_F0,1F0,1B0,1SEND_B0,1WAIT_SEND_B0\n");

  // Forward 1 s, backward 2 s, a reduction 5 s.
  const auto seconds_of = [](const char* row) {
    const StageCosts stage{.forward = 1, .input_gradient = 1, .weight_gradient = 1, .reduce_gradients = 5};
    return PipelineRun::of(PipelineStages::of_costs({stage}), PipelineSchedule::from_csv(row, "one")).seconds();
  };
  EXPECT_DOUBLE_EQ(seconds_of("0F0,0B0,0REDUCE_GRAD,0F1,0B1"), 3 + 5);
  EXPECT_DOUBLE_EQ(seconds_of("0F0,0B0,0REDUCE_GRAD,0WAIT_REDUCE_GRAD,0F1,0B1"), 3 + 5 + 3);
}

struct ClosedForm {
  double forward, input_gradient, weight_gradient;
  double backward() const { return input_gradient + weight_gradient; }
};

PipelineRun run_of(const char* name, int32_t ranks, const ClosedForm& costs) {
  const int32_t a_rank = PipelineSchedule::stages_per_rank(name, 1);
  const StageCosts stage{.forward = costs.forward,
                         .input_gradient = costs.input_gradient,
                         .weight_gradient = costs.weight_gradient,
                         .carried = 1 << 20};
  const auto stages = PipelineStages::of_costs(std::vector<StageCosts>(static_cast<size_t>(ranks * a_rank), stage));
  return PipelineRun::of(
      stages, PipelineSchedule::named(name, {.ranks = ranks, .stages_per_rank = a_rank, .microbatches = 3 * ranks}));
}
int32_t most_activations(const PipelineRun& run) {
  int32_t most = 0;
  for (int32_t r = 0; r < run.ranks(); ++r) most = std::max(most, run.rank(r).microbatches_peak);
  return most;
}
void expect_wait(const PipelineRun& run, double seconds) {
  for (int32_t r = 0; r < run.ranks(); ++r) EXPECT_DOUBLE_EQ(run.rank(r).waits.total(), seconds) << "rank " << r;
}

// Costs for which the papers' closed forms hold: no collective is longer than the work it overlaps.
const std::vector<ClosedForm> kCosts = {{1, 1, 1}, {2, 2, 1}, {4, 4, 3}};

TEST(ClosedForms, OneForwardOneBackwardWaitsForTheRanksBehindIt) {
  for (int32_t n = 2; n <= 64; n += n < 8 ? 1 : 8) {
    for (const ClosedForm& c : kCosts) {
      const PipelineRun run = run_of("1f1b", n, c);
      expect_wait(run, (n - 1) * (c.forward + c.backward()));
      for (int32_t r = 0; r < n; ++r) {
        EXPECT_EQ(run.rank(r).microbatches_peak, n - r);
        EXPECT_EQ(run.rank(r).activations_peak, int64_t{n - r} << 20);
        EXPECT_EQ(run.rank(r).peak, int64_t{n - r} << 20);
      }
      expect_wait(run_of("gpipe", n, c), (n - 1) * (c.forward + c.backward()));
      EXPECT_EQ(most_activations(run_of("gpipe", n, c)), 3 * n);
    }
  }
}

TEST(ClosedForms, ZbH2WaitsForItsFirstMicroBatchAlone) {
  for (int32_t n = 2; n <= 64; n += n < 8 ? 1 : 8) {
    const PipelineRun run = run_of("zb_h2", n, {1, 1, 1});
    expect_wait(run, n - 1);
    EXPECT_EQ(most_activations(run), 2 * n - 1);
  }
}

TEST(ClosedForms, ZeroBubbleHidesWeightGradients) {
  for (int32_t n = 2; n <= 64; n += n < 8 ? 1 : 8) {
    for (const ClosedForm& c : kCosts) {
      const PipelineRun run = run_of("zero_bubble", n, c);
      expect_wait(run, (n - 1) * (c.forward + c.backward() - 2 * c.weight_gradient));
      EXPECT_EQ(most_activations(run), n);
    }
  }
}

// Ranks start and end one forward apart and never idle in between. With two stages per rank, 2n halves equal n.
TEST(ClosedForms, ZbvLeavesNoBubble) {
  for (int32_t n = 2; n <= 64; n += n < 8 ? 1 : 8) {
    const PipelineRun run = run_of("zbv", n, {3, 3, 3});
    for (int32_t r = 0; r < n; ++r) {
      EXPECT_EQ(run.rank(r).waits.forward + run.rank(r).waits.backward, 0);
      EXPECT_DOUBLE_EQ(run.rank(r).waits.before, 3 * r);
    }
    EXPECT_EQ(most_activations(run), 2 * n);
  }
}

// A pipeline of PP stages on PP/2 ranks.
TEST(ClosedForms, DualPipeOverlapsForwardWithBackward) {
  for (int32_t n = 2; n <= 32; n += n < 8 ? 1 : 8) {
    for (const ClosedForm& c : {ClosedForm{1, 1, 1}, ClosedForm{2, 2, 1}}) {
      const PipelineRun run = run_of("dualpipe_v", n, c);
      const double both = c.forward + c.backward();
      expect_wait(run, (n - 1) * (both + c.backward() - 3 * c.weight_gradient));
      EXPECT_EQ(most_activations(run), 2 * n + 1);
    }
  }
}

// In units of half a rank's activations: 1F1B holds 2n.
TEST(ClosedForms, RepeatedBlocksHoldAHalfAndAThird) {
  for (int32_t n = 2; n <= 64; ++n) {
    EXPECT_LE(most_activations(run_of("v_half", n, {1, 1, 1})), n + 3) << n;
    EXPECT_LE(most_activations(run_of("v_min", n, {1, 1, 1})), 2 * n / 3 + 3) << n;
  }
}

// The first micro-batch allocates gradients; later ones accumulate into them.
TEST(ClosedForms, GradientsAreAddedFromTheSecondMicroBatchOn) {
  const auto stages = PipelineStages::of_costs({{.forward = 1, .weight_gradient = 2, .accumulate = 0.5}});
  const PipelineRun run = PipelineRun::of(stages, PipelineSchedule::named("1f1b", {.microbatches = 3}));
  EXPECT_DOUBLE_EQ(run.rank(0).computing, 3 * 3 + 2 * 0.5);
}

TEST(ClosedForms, StagesOfARankShrinkTheBubble) {
  const ClosedForm c{1, 1, 1};
  for (const int32_t a_rank : {1, 2, 4}) {
    const StageCosts stage{
        .forward = c.forward / a_rank, .input_gradient = 1.0 / a_rank, .weight_gradient = 1.0 / a_rank};
    const auto stages = PipelineStages::of_costs(std::vector<StageCosts>(static_cast<size_t>(4 * a_rank), stage));
    const PipelineRun run = PipelineRun::of(
        stages, PipelineSchedule::named("interleaved", {.ranks = 4, .stages_per_rank = a_rank, .microbatches = 8}));
    EXPECT_NEAR(run.rank(0).waits.total(), 3 * 3.0 / a_rank, 1e-9);
  }
}

}  // namespace
}  // namespace shadowgraph
