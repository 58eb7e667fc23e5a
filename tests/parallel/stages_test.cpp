// Steps of the built-in models split into pipeline stages.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <vector>

#include "shadowgraph/draw/draw.h"
#include "shadowgraph/error.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/graph/verify.h"
#include "shadowgraph/passes/functional.h"
#include "shadowgraph/plan/pipeline.h"
#include "shadowgraph/profile/communication.h"
#include "shadowgraph/profile/memory.h"
#include "shadowgraph/profile/operator_costs.h"
#include "tests/ir/samples.h"
#include "tests/passes/model_captures.h"

namespace shadowgraph {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const DeviceSpec& h100() {
  static const DeviceSpec spec = DeviceSpec::named("h100");
  return spec;
}

// On fake CUDA, so that costs do not depend on this machine.
const Graph& step_of(const std::string& model) {
  static std::map<std::string, Graph> steps;
  auto at = steps.find(model);
  if (at == steps.end()) at = steps.emplace(model, capture_tiny(model, {.device = c10::kCUDA})).first;
  return at->second;
}

PipelineStages cut(const std::string& model, int32_t stages) {
  return PipelineStages::balanced(step_of(model), stages, {.spec = &h100()});
}

PipelineRun run_of(const PipelineStages& stages, int32_t microbatches) {
  return PipelineRun::of(stages,
                         PipelineSchedule::named("1f1b", {.ranks = stages.count(), .microbatches = microbatches}));
}

// The peak of live bytes in forward and backward, including scratch memory.
int64_t peak_of_step(const Graph& step) {
  const MemoryTimeline timeline = MemoryTimeline::of(step, c10::Device(c10::kCUDA));
  const Scratch scratch = Scratch::of(step);
  int64_t peak = 0;
  for (uint32_t i = 0; i < timeline.steps(); ++i) {
    const PhaseId phase = step.node(timeline.node(i)).phase;
    if (phase == Graph::kOptimizer) break;  // results returned by the step come after it
    peak = std::max(peak, timeline.total(i) + scratch.of(timeline.node(i)).bytes);
  }
  return peak;
}

class StagesOf : public ::testing::TestWithParam<const char*> {};

TEST_P(StagesOf, AWholeStepHoldsWhatTheTimelineSays) {
  const PipelineStages whole = cut(GetParam(), 1);
  const PipelineRun run = run_of(whole, 1);
  // Includes the optimizer state, which this first step has not allocated yet.
  const int64_t before_optimizer = peak_of_step(step_of(GetParam())) + whole.of(0).optimizer_state;
  if (run.rank(0).peak_at.stage >= 0) {
    EXPECT_EQ(run.rank(0).peak, before_optimizer);
  } else {
    EXPECT_GT(run.rank(0).peak, before_optimizer);  // in the optimizer step; a first step has less state
  }
  EXPECT_EQ(run.rank(0).waits.total(), 0);
  EXPECT_EQ(whole.of(0).sends_forward, 0);
}

TEST_P(StagesOf, PartsAddUpToTheWhole) {
  const PipelineStages whole = cut(GetParam(), 1), parts = cut(GetParam(), 3);
  StageCosts sum;
  for (int32_t s = 0; s < 3; ++s) {
    const StageCosts& of = parts.of(s);
    EXPECT_GT(of.forward, 0);
    EXPECT_GT(of.backward(), 0);
    sum.forward += of.forward;
    sum.input_gradient += of.input_gradient;
    sum.weight_gradient += of.weight_gradient;
    sum.optimizer += of.optimizer;
    sum.parameters += of.parameters;
    sum.gradients += of.gradients;
  }
  const StageCosts& of = whole.of(0);
  EXPECT_GE(sum.forward, of.forward * (1 - 1e-9));  // nodes that depend only on inputs may be computed in both stages
  EXPECT_LE(sum.forward, of.forward * 1.2);
  EXPECT_NEAR(sum.input_gradient, of.input_gradient, of.input_gradient * 1e-9);
  EXPECT_NEAR(sum.weight_gradient, of.weight_gradient, of.weight_gradient * 1e-9);
  EXPECT_NEAR(sum.optimizer, of.optimizer, of.optimizer * 1e-9);
  EXPECT_GE(sum.parameters, of.parameters);  // tied parameters are stored twice
  EXPECT_GE(sum.gradients, of.gradients);
  EXPECT_EQ(parts.of(2).sends_forward, 0);
  EXPECT_EQ(parts.of(0).sends_backward, 0);
  EXPECT_GT(parts.of(0).sends_forward, 0);
  EXPECT_GT(parts.of(1).sends_backward, 0);
}

// After a step, only tensors from before it remain: each stage frees its allocations, in every schedule.
TEST_P(StagesOf, EveryScheduleGivesBackWhatItTakes) {
  for (const std::string& name : PipelineSchedule::names()) {
    const int32_t a_rank = PipelineSchedule::stages_per_rank(name, 2);
    const PipelineStages stages = cut(GetParam(), 2 * a_rank);
    const PipelineSchedule schedule =
        PipelineSchedule::named(name, {.ranks = 2, .stages_per_rank = a_rank, .microbatches = 4});
    const PipelineRun run = PipelineRun::of(stages, schedule);
    for (int32_t r = 0; r < 2; ++r) {
      int64_t gradients = 0;
      for (const int32_t s : run.rank(r).stages) gradients += stages.of(s).gradients;
      // After the last backward, gradients remain, and the loss that the program keeps for each micro-batch.
      const int64_t left = run.actions(r).back().live - run.rank(r).resident - gradients;
      EXPECT_GE(left, 0) << name << " rank " << r;
      EXPECT_LE(left, 4 * 4096) << name << " rank " << r;
      EXPECT_GE(run.rank(r).reserved_peak, run.rank(r).peak);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Zoo, StagesOf,
                         ::testing::Values("gpt2", "llama3_8b", "resnet18", "bert_base", "vit_b_16", "unet"));

TEST(PipelineStages, BeginAtModules) {
  const std::vector<std::string> modules = {"model.layers.1", "model.norm"};
  const PipelineStages stages = PipelineStages::at_modules(step_of("llama3_8b"), modules, {.spec = &h100()});
  EXPECT_EQ(stages.count(), 3);
  EXPECT_THAT(stages.of(1).begins, HasSubstr("model.layers.1"));
  EXPECT_EQ(stages.of(2).begins, "model.norm");
  const auto refusal = [](const std::vector<std::string>& wrong) -> std::string {
    try {
      PipelineStages::at_modules(step_of("llama3_8b"), wrong, {.spec = &h100()});
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(refusal({"model.layers.99"}), HasSubstr("the module model.layers.99 does not run in forward"));
  EXPECT_THAT(refusal({"model.norm", "model.layers.1"}), HasSubstr("does not run after"));
  EXPECT_THAT(refusal({"model.embed_tokens"}), HasSubstr("does not run after the first node"));
}

// Results of fused operators disappear once a pass has decomposed them.
TEST(PipelineStages, HaveNothingThatAPassReplaced) {
  Graph step = capture_tiny("gpt2", {.device = c10::kCUDA});
  const auto others = [&] {
    const PipelineStages stages = PipelineStages::balanced(step, 2, {.spec = &h100()});
    return std::pair(stages.of(0).other, stages.of(1).other);
  };
  const auto before = others();
  ASSERT_GT(split_bias(step).split, 0);
  EXPECT_EQ(others(), before);
}

TEST(PipelineStages, StepAndAddGradientsOfTheirOwnWeights) {
  const std::array<std::string, 1> modules{"fc"};
  const PipelineStages stages = PipelineStages::at_modules(step_of("resnet18"), modules, {.spec = &h100()});
  ASSERT_EQ(stages.count(), 2);
  // One weight and one bias of about forty, each updated by separate kernels.
  EXPECT_GT(stages.of(1).optimizer, 0);
  EXPECT_GT(stages.of(0).optimizer, 8 * stages.of(1).optimizer);
  for (int32_t s = 0; s < 2; ++s) {
    const double moved = 3 * static_cast<double>(stages.of(s).gradients);  // reads two, writes one
    EXPECT_DOUBLE_EQ(stages.of(s).accumulate, moved / h100().memory_rate(KernelClass::kPointwiseInPlace, moved));
  }
}

TEST(PipelineStages, SayWhichParametersSeveralHold) {
  const PipelineStages stages = cut("gpt2", 3);
  EXPECT_THAT(stages.notes(), ::testing::Contains(AllOf(HasSubstr("transformer.wte.weight"), HasSubstr("0, 2"))));
  // The skip connections of a U-Net pass through the stages in between.
  const std::vector<std::string> levels = {"down1", "down3", "up2"};
  const PipelineStages unet = PipelineStages::at_modules(step_of("unet"), levels, {.spec = &h100()});
  EXPECT_THAT(unet.notes(), ::testing::Contains(HasSubstr("are passed through other stages")));
}

// Gradients of a residual connection are summed before they are sent: one tensor is returned for each received one.
TEST(PipelineStages, SendBackWhatTheyWereGiven) {
  for (const char* model : {"llama3_8b", "gpt2", "bert_base"}) {
    const PipelineStages stages = cut(model, 2);
    EXPECT_EQ(stages.of(1).sends_backward, stages.of(0).sends_forward) << model;
  }
}

TEST(PipelineStages, SplitBackward) {
  // Matrix products of transformer layers: a third of the work computes weight gradients.
  const StageCosts of = cut("llama3_8b", 1).of(0);
  EXPECT_GT(of.weight_gradient, 0.15 * of.backward());
  EXPECT_LT(of.weight_gradient, 0.6 * of.backward());
}

// Every node of forward and backward is in exactly one piece, and each piece is a valid graph.
TEST(PipelineStages, PiecesAreGraphs) {
  const Graph& step = step_of("llama3_8b");
  const PipelineStages stages = cut("llama3_8b", 3);
  size_t forward = 0, backward = 0, halves = 0;
  const auto piece = [&](int32_t stage, PipelineWork work) {
    const Subgraph of = stage_piece(step, stages, stage, work);
    EXPECT_NO_THROW(verify(of.graph)) << stage << static_cast<int>(work);
    return of.graph.node_count() - of.inputs.size() - 1;  // sg::output
  };
  for (int32_t s = 0; s < 3; ++s) {
    forward += piece(s, PipelineWork::kForward);
    backward += piece(s, PipelineWork::kBackward);
    halves += piece(s, PipelineWork::kInputGradient) + piece(s, PipelineWork::kWeightGradient);
  }
  EXPECT_GT(forward, 0U);
  EXPECT_EQ(backward, halves);
  const Subgraph last = stage_piece(step, stages, 2, PipelineWork::kForward);
  EXPECT_THAT(to_text(last.graph), HasSubstr("\"parameter\"=\"lm_head.weight\""));
  EXPECT_THROW(stage_piece(step, stages, 3, PipelineWork::kForward), Error);
  EXPECT_THROW(stage_piece(step, stages, 0, PipelineWork::kSendForward), Error);
  EXPECT_THROW(stage_piece(step_of("gpt2"), stages, 0, PipelineWork::kForward), Error);
  EXPECT_THROW(stage_piece(step, PipelineStages::of_costs({StageCosts{}}), 0, PipelineWork::kForward), Error);
}

TEST(PipelineStages, AreOfTrainingSteps) {
  const Graph forward = capture_tiny("gpt2", {.train = false, .device = c10::kCUDA});
  EXPECT_THROW(PipelineStages::balanced(forward, 2, {.spec = &h100()}), Error);
  EXPECT_THROW(cut("gpt2", 0), Error);
  EXPECT_THROW(cut("gpt2", 1000), Error);
  EXPECT_THROW(PipelineStages::of_costs({}), Error);
  EXPECT_THROW(PipelineRun::of(cut("gpt2", 3), PipelineSchedule::named("1f1b", {.ranks = 2, .microbatches = 2})),
               Error);
}

TEST(PipelineRun, MemoryFollowsTheSchedule) {
  const PipelineStages stages = cut("llama3_8b", 4);
  const PipelineRun few = run_of(stages, 4), many = run_of(stages, 16);
  // 1F1B holds as many micro-batches as there are later ranks, whatever their total. Inputs are allocated from the
  // start; the gradient of a second micro-batch coexists with the first's.
  const int64_t inputs = stages.of(0).inputs;
  EXPECT_EQ(many.rank(0).activations_peak, 4 * stages.of(0).carried);
  EXPECT_EQ(many.rank(0).resident - few.rank(0).resident, 12 * inputs);
  EXPECT_EQ(many.rank(0).peak - run_of(stages, 8).rank(0).peak, 8 * inputs);
  const PipelineRun gpipe = PipelineRun::of(stages, PipelineSchedule::named("gpipe", {.ranks = 4, .microbatches = 16}));
  EXPECT_GE(gpipe.rank(3).peak - many.rank(3).peak, 14 * stages.of(3).carried);
  // Receive buffers for everything: for each micro-batch, from both neighbors.
  const PipelineRun ahead = PipelineRun::of(stages, PipelineSchedule::named("1f1b", {.ranks = 4, .microbatches = 16}),
                                            {.preallocate_receives = true});
  EXPECT_EQ(ahead.rank(1).resident - many.rank(1).resident,
            16 * (stages.of(0).sends_forward + stages.of(2).sends_backward));
}

TEST(PipelineRun, TransfersTakeTime) {
  const Interconnect links = Interconnect::named("h100");
  const PipelineStages stages = cut("gpt2", 4);
  const PipelineSchedule schedule = PipelineSchedule::named("1f1b", {.ranks = 4, .microbatches = 8});
  const PipelineRun near = PipelineRun::of(stages, schedule, {.interconnect = &links});
  // With a stride of eight, neighboring ranks are in different machines.
  const PipelineRun far = PipelineRun::of(stages, schedule, {.interconnect = &links, .rank_stride = 8});
  EXPECT_GT(near.seconds(), PipelineRun::of(stages, schedule).seconds());
  EXPECT_GT(far.seconds(), near.seconds());
}

// The first rank finishes last, so it only waits for the reduction.
TEST(PipelineRun, GradientsOfTiedWeightsAreAdded) {
  const Interconnect links = Interconnect::named("h100");
  const PipelineStages stages = cut("gpt2", 4);
  ASSERT_EQ(stages.tied().size(), 1U);
  const TiedParameter& tied = stages.tied()[0];
  EXPECT_EQ(tied.stages, (std::vector<int32_t>{0, 3}));
  const PipelineSchedule schedule = PipelineSchedule::named("1f1b", {.ranks = 4, .microbatches = 8});
  const PipelineRun run = PipelineRun::of(stages, schedule, {.interconnect = &links});
  const double sum = collective_cost(CollectiveKind::kAllReduce, tied.gradient_bytes,
                                     {.name = "", .size = 2, .ranks = {0, 3}}, links, 1)
                         .seconds();
  EXPECT_NEAR(run.rank(0).waits.reduce, sum, sum * 1e-9);
  EXPECT_GT(run.rank(3).waits.reduce, sum);
  EXPECT_EQ(run.rank(1).waits.reduce, 0);
  for (int32_t r = 0; r < 4; ++r) {
    EXPECT_NEAR(run.rank(r).computing + run.rank(r).waits.total(), run.seconds(), 1e-9);
  }
  // A single rank with both ends adds them locally.
  const PipelineSchedule folded = PipelineSchedule::named("zbv", {.ranks = 2, .stages_per_rank = 2, .microbatches = 8});
  EXPECT_EQ(PipelineRun::of(stages, folded, {.interconnect = &links}).rank(0).waits.reduce, 0);
}

// F: 1 s of compute and 0.5 s of a collective. Backward: 2 s of compute. Overlapped they take 3 s, not 3.5.
TEST(PipelineRun, OverlappedActionsHideCollectives) {
  StageCosts of{.forward = 1.5, .input_gradient = 1, .weight_gradient = 1};
  of.exposed.forward = 0.5;
  const auto stages = PipelineStages::of_costs(std::vector<StageCosts>(1, of));
  const auto schedule = PipelineSchedule::from_csv("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n", "two");
  EXPECT_NEAR(PipelineRun::of(stages, schedule).seconds(), 1.5 + 3 + 2, 1e-9);
  EXPECT_NEAR(PipelineRun::of(stages, schedule, {.overlap = 0}).seconds(), 1.5 + 3.5 + 2, 1e-9);
  EXPECT_NEAR(PipelineRun::of(stages, schedule, {.overlap = 0.5}).seconds(), 1.5 + 3.25 + 2, 1e-9);
}

// An all-gather takes 4 s, of which another stage's forward overlaps 2; no action includes it. Gradient reduction takes
// 1 s.
TEST(PipelineRun, ParametersAreGatheredBesideComputing) {
  StageCosts of{.forward = 5, .input_gradient = 3, .weight_gradient = 2};
  of.exposed = {.forward = 3, .backward = 3, .input_gradient = 2, .weight_gradient = 1};
  of.unshard = 4;
  of.reduce_gradients = 1;
  const auto stages = PipelineStages::of_costs(std::vector<StageCosts>(2, of));
  const auto run = PipelineRun::of(
      stages, PipelineSchedule::from_csv("0UNSHARD,0F0,1UNSHARD,1F0,1B0,1REDUCE_GRAD,0B0,0REDUCE_GRAD\n", "fsdp"));
  // 0UNSHARD 0-4, 0F0 4-6, 1UNSHARD 6-10, 1F0 10-12, 1B0 12-14, reduction 14-15, 0B0 14-16, reduction 16-17.
  EXPECT_NEAR(run.seconds(), 17, 1e-9);
  EXPECT_NEAR(run.rank(0).waits.before, 4, 1e-9);
  EXPECT_NEAR(run.rank(0).waits.unshard, 4, 1e-9);
  EXPECT_NEAR(run.rank(0).waits.reduce, 1, 1e-9);
  const auto gathered_earlier = PipelineRun::of(
      stages, PipelineSchedule::from_csv("0UNSHARD,1UNSHARD,0F0,1F0,1B0,1REDUCE_GRAD,0B0,0REDUCE_GRAD\n", "early"));
  EXPECT_NEAR(gathered_earlier.seconds(), 15, 1e-9);  // 2 s of the second all-gather are overlapped
  const auto plain = PipelineRun::of(stages, PipelineSchedule::from_csv("0F0,1F0,1B0,0B0\n", "plain"));
  EXPECT_NEAR(plain.seconds(), 2 * (5 + 5), 1e-9);
}

TEST(PipelineRun, TracesAllRanks) {
  const PipelineRun run = run_of(cut("gpt2", 3), 4);
  const auto trace = nlohmann::json::parse(to_chrome_trace(run));
  std::map<std::string, int> phases;
  std::map<int64_t, int> arrows;
  for (const auto& event : trace["traceEvents"]) {
    ++phases[event["ph"]];
    if (event["ph"] == "s" || event["ph"] == "f") arrows[event["id"]] += event["ph"] == "s" ? 1 : -1;
  }
  // F and B; sender and receiver in both directions between neighbors
  EXPECT_EQ(phases["X"], 3 * 4 * 2 + 2 * 2 * 4 * 2);
  EXPECT_EQ(phases["s"], 16);
  EXPECT_EQ(phases["f"], 16);
  EXPECT_EQ(phases["C"], 24);
  for (const auto& [id, open] : arrows) EXPECT_EQ(open, 0);
  EXPECT_THAT(to_text(run), HasSubstr("most memory: rank "));
  EXPECT_EQ(to_json(run)["ranks"].size(), 3);
}

TEST(PipelineRun, IsDrawn) {
  const PipelineRun run = run_of(cut("gpt2", 3), 4);
  const std::string svg = pipeline_svg(run, {.title = "a <b> & \"c\"", .memory = 1 << 20});
  EXPECT_EQ(svg.find("<b>"), svg.npos);
  size_t boxes = 0;
  for (size_t at = 0; (at = svg.find("<title>", at)) != svg.npos; ++at) ++boxes;
  EXPECT_EQ(boxes, 3 * 4 * 2 + 3);  // F and B of each micro-batch, and the optimizer steps
  EXPECT_THAT(svg, HasSubstr("2F3: "));
  EXPECT_THAT(svg, ::testing::Not(HasSubstr("input gradients")));  // backward is not split
  const std::string page = pipeline_html(run);
  EXPECT_THAT(page, AllOf(HasSubstr(pipeline_svg(run)), HasSubstr("\nmost memory: rank ")));
}

}  // namespace
}  // namespace shadowgraph
