// Memory fit of a program, judged by its steady state.
#include "shadowgraph/profile/fits.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/optim/adamw.h>

#include <sstream>

#include "models/program.h"
#include "models/registry.h"
#include "shadowgraph/capture/capture.h"
#include "shadowgraph/error.h"
#include "shadowgraph/profile/device_spec.h"
#include "shadowgraph/profile/memory.h"
#include "shadowgraph/profile/profile.h"
#include "shadowgraph/profile/step_time.h"

namespace shadowgraph {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// A training step of a small language model with AdamW: the first, or with `warmup_steps` a later one.
Graph adamw_step(int warmup_steps, TrainingOptions training = {}, int64_t batch = 2, int64_t seq = 64) {
  const FakeTensorMode mode(FakeTensorOptions{.device = c10::kCUDA});
  const models::BuiltModel model = models::build("gpt2", {.batch = batch, .seq = seq, .training = true});
  torch::optim::AdamW optimizer(model.module->parameters(), torch::optim::AdamWOptions(1e-3));
  ProgramToCapture program = models::program_of(model);
  program.optimizer = &optimizer;
  program.training = training;
  program.warmup_steps = warmup_steps;
  Graph graph = std::move(capture_training_step(program).graph);
  graph.metadata.mode = ProgramMode::kTrain;
  graph.metadata.device = c10::Device(c10::kCUDA, 0);
  graph.metadata.step = warmup_steps > 0 ? TrainingStep::kSteady : TrainingStep::kFirst;
  if (training.zero_grads) graph.metadata.other["zero_grads"] = "true";
  return graph;
}

std::string refusal_of(const std::string& memory) {
  try {
    MemoryLimit::parse(memory);
    return "taken";
  } catch (const Error& error) {
    return error.what();
  }
}

TEST(MemoryLimit, SizesHaveUnitsAndDevicesNames) {
  EXPECT_EQ(MemoryLimit::parse("24GiB").bytes, int64_t{24} << 30);
  EXPECT_EQ(MemoryLimit::parse("24 gb").bytes, 24'000'000'000);
  EXPECT_EQ(MemoryLimit::parse("85028896768").bytes, 85'028'896'768);
  for (const char* spelled : {"rtx4090", "RTX 4090", "rtx-4090"}) {
    EXPECT_EQ(MemoryLimit::parse(spelled).bytes, 25'250'627'584) << spelled;
    EXPECT_EQ(MemoryLimit::parse(spelled).device, "rtx4090");
  }
  EXPECT_THAT(refusal_of("24"), AllOf(HasSubstr("24GiB"), HasSubstr("24GB"), HasSubstr("l4")));
  EXPECT_THAT(refusal_of("24G"), HasSubstr("24GiB"));
  EXPECT_THAT(refusal_of("l5"), AllOf(HasSubstr("'l5'"), HasSubstr("l40s"), HasSubstr("24GiB")));
  EXPECT_THAT(refusal_of("cpu"), HasSubstr("has no memory size"));
  EXPECT_THAT(refusal_of(""), HasSubstr("unknown memory size"));
}

TEST(MemoryLimit, SaysWhatCardsOfASizeHave) {
  const std::string note = MemoryLimit::parse("24GB").note;
  EXPECT_THAT(note, AllOf(HasSubstr("22.35 GiB"), HasSubstr("l4 21.99 GiB"), HasSubstr("rtx3090 23.70 GiB")));
  EXPECT_THAT(MemoryLimit::parse("80GiB").note, HasSubstr("h100 79.19 GiB"));
  EXPECT_EQ(MemoryLimit::parse("23GiB").note, "");
  EXPECT_EQ(MemoryLimit::parse("l4").note, "");
}

TEST(DeviceSpecs, AllHaveMemoryAndSources) {
  for (const std::string& name : DeviceSpec::names()) {
    if (name == "cpu") continue;
    const DeviceSpec spec = DeviceSpec::named(name);
    EXPECT_GT(spec.memory, int64_t{14} << 30) << name;
    for (const char* figure : {"memory_bytes", "bandwidth", "matmul", "vector", "transcendental", "gpu.matmul",
                               "gpu.stream", "gpu.attention*"}) {
      EXPECT_TRUE(spec.sources.contains(figure)) << name << " has no source for " << figure;
    }
    // Dense throughput: float16 is at most 32 times float32 on every device, and memory is at most the nominal size.
    EXPECT_LE(spec.matmul.at(c10::kHalf), 32 * spec.matmul.at(c10::kFloat)) << name;
    const double sold = std::stod(spec.title.substr(spec.title.rfind(' ', spec.title.size() - 4)));
    EXPECT_LE(spec.memory, static_cast<int64_t>(sold * (1 << 30))) << name;
    EXPECT_GE(static_cast<double>(spec.memory), sold * 0.95e9) << name;
  }
  EXPECT_THAT(DeviceSpec::names(),
              ::testing::IsSupersetOf({"a10g", "t4", "l40s", "rtx3090", "rtx5090", "h20", "b300", "mi325x", "l4"}));
}

TEST(SteadyState, FollowsFromTheFirstStep) {
  const Graph first = adamw_step(0);
  const Graph second = adamw_step(1);
  const Profile of_first = profile(first);
  const Profile of_second = profile(second);
  ASSERT_TRUE(of_first.steady_peak);
  EXPECT_FALSE(of_second.steady_peak);
  EXPECT_GT(of_first.steady_peak->bytes, of_first.peak.bytes);
  EXPECT_EQ(of_first.steady_peak->by_kind, of_second.peak.by_kind);
  EXPECT_EQ(of_first.steady_peak->bytes, of_second.peak.bytes);
  EXPECT_EQ(of_second.peak.by_kind[static_cast<size_t>(StorageKind::kInput)], int64_t{2} * 2 * 64 * 8);  // ids, labels
  // The report leads with the steady state, and its largest tensors are those alive at that peak.
  EXPECT_THAT(to_text(of_first), AllOf(HasSubstr(" of the steady state, at node"), HasSubstr("first step")));
  // Gradients that are kept are accumulated into in later steps, unlike in the first; the report says which step it is.
  const Graph with_zeros = adamw_step(0, {.zero_grads = true});
  EXPECT_FALSE(profile(with_zeros).steady_peak);
  EXPECT_THAT(to_text(profile(with_zeros)), HasSubstr(" of the first step (--steady-state"));
}

TEST(SteadyState, SavedBytesAreNotMoreThanThePeak) {
  const Profile once = profile(adamw_step(0));
  const Profile four = profile(adamw_step(0, {.accumulate = 4}));
  EXPECT_LE(four.saved.all, four.peak.bytes);
  // Micro-batches run one after another: saved bytes are those of one, plus the division of its loss.
  EXPECT_NEAR(static_cast<double>(four.saved.activations), static_cast<double>(once.saved.activations), 4096);
}

TEST(SteadyState, NoStakeIsMoreThanThereIs) {
  const DeviceSpec spec = DeviceSpec::named("h100");
  for (const int64_t accumulate : {1, 4}) {
    const Graph graph = adamw_step(0, {.accumulate = accumulate}, 8, 512);
    const Profile costs = profile(graph, {.spec = &spec});
    const std::vector<Finding> found = findings(costs);
    ASSERT_FALSE(found.empty());
    for (const Finding& finding : found) {
      EXPECT_LE(finding.bytes, costs.leading_peak().bytes) << finding.name;
      EXPECT_LE(finding.seconds, costs.time()->seconds()) << finding.name;
      if (finding.name != "activations" && finding.name != "cheap-activations") continue;
      EXPECT_LE(finding.bytes, costs.leading_peak().by_kind[static_cast<size_t>(StorageKind::kActivation)])
          << finding.name;
    }
  }
}

TEST(Fits, IsTheFirstLine) {
  const Graph graph = adamw_step(0);
  const Profile in_l4 = profile(graph, {.limit = MemoryLimit::parse("l4")});
  const auto verdict = fits(in_l4);
  ASSERT_TRUE(verdict);
  EXPECT_TRUE(verdict->fits);
  EXPECT_EQ(verdict->bytes, in_l4.device_memory->footprint());
  const std::string needed = fmt::format("{:.2f}", static_cast<double>(verdict->bytes) / (1 << 30));
  EXPECT_THAT(to_text(*verdict), StartsWith("fits: "));
  EXPECT_THAT(to_text(*verdict), HasSubstr(needed + " of 22.0 GiB of an L4 24 GB (steady state, with allocator and "
                                                    "context)"));
  EXPECT_EQ(to_json(in_l4)["fits"]["text"], to_text(*verdict));
  EXPECT_EQ(to_json(in_l4)["fits"]["device"], "l4");

  const Profile small = profile(graph, {.limit = MemoryLimit::parse("1GiB")});
  EXPECT_FALSE(fits(small)->fits);
  EXPECT_EQ(fits(small)->bytes, verdict->bytes);  // a device with enough memory
  EXPECT_THAT(to_text(*fits(small)), AllOf(StartsWith("does not fit: "), HasSubstr(needed + " of 1.00 GiB (steady")));
  EXPECT_FALSE(small.device_memory);

  // Without a requested device, the default for time estimates is used, and memory is not limited.
  const DeviceSpec spec = DeviceSpec::named("t4");
  const Profile by_spec = profile(graph, {.spec = &spec});
  EXPECT_THAT(fit_summary(by_spec),
              AllOf(HasSubstr("of a T4 16 GB ("), HasSubstr("--memory compares with another\n\n")));
  EXPECT_EQ(fit_summary(in_l4), to_text(*verdict) + "\n\n");
  EXPECT_FALSE(fits(profile(graph)));
}

TEST(SizeGrid, AgreesWithCapturesAtItsSizes) {
  int captured = 0;
  const auto capture = [&](int64_t batch, int64_t seq) {
    ++captured;
    if (seq > 1024) throw Error("gpt2 has 1024 positions");
    return adamw_step(0, {}, batch, seq);
  };
  SizeGridRequest request{.batches = {1, 2, 4, 8}, .seqs = {128, 256, 512}, .memory = MemoryLimit::parse("6GiB")};
  const SizeGrid grid = SizeGrid::of(capture, request);
  EXPECT_EQ(grid.captures, captured);
  EXPECT_EQ(grid.why_captured, "");
  const auto held = [&](int64_t batch, int64_t seq) {
    return profile(adamw_step(0, {}, batch, seq)).device_memory->footprint();
  };
  for (const auto& [row, column] : {std::pair(0, 1), std::pair(2, 2), std::pair(3, 0)}) {
    EXPECT_EQ(grid.cells[row][column].bytes, held(request.batches[row], request.seqs[column]));
  }
  const int64_t largest = grid.largest_batch[2];
  ASSERT_GT(largest, 1);
  ASSERT_LT(largest, 8);
  EXPECT_LE(held(largest, 512), request.memory.bytes);
  EXPECT_GT(held(largest + 1, 512), request.memory.bytes);
  EXPECT_EQ(grid.largest_batch[0], 8);
  EXPECT_EQ(grid.largest_seq[0], 512);
  EXPECT_THAT(to_text(grid), AllOf(HasSubstr("largest batch"), HasSubstr("512+"), HasSubstr("8+")));

  request.seqs = {512, 1024, 2048};
  request.batches = {1, 2};
  request.memory = MemoryLimit::parse("24GiB");
  const SizeGrid beyond = SizeGrid::of(capture, request);
  EXPECT_THAT(beyond.limit, HasSubstr("1024 positions"));
  EXPECT_EQ(beyond.largest_batch, (std::vector<int64_t>{2, 2, 0}));
  EXPECT_EQ(beyond.largest_seq, (std::vector<int64_t>{1024, 1024}));
}

TEST(ReportText, IsAtMostAHundredColumnsAndFoldsLayers) {
  const Graph graph = adamw_step(0, {}, 8, 512);
  const DeviceSpec spec = DeviceSpec::named("h100");
  const Profile costs = profile(graph, {.spec = &spec});
  for (const SummaryGrouping grouping : {SummaryGrouping::kModule, SummaryGrouping::kOperator}) {
    const std::string text = to_text(costs.summary({.grouping = grouping, .max_rows = 0})) + to_text(costs);
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      EXPECT_TRUE(line.size() <= 100 || line.find(' ', 40) == line.npos) << line.size() << ": " << line;
    }
  }
  const std::string text = to_text(costs);
  const std::string largest = text.substr(text.find("largest at the peak"));
  EXPECT_THAT(largest, HasSubstr("12 x "));
  EXPECT_THAT(largest, HasSubstr("h.{0..11}."));
}

}  // namespace
}  // namespace shadowgraph
