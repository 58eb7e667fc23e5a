// The pass `checkpoint` keeps training steps bitwise equal, and a replay's live bytes after every node equal those
// predicted from the rewritten graph. Built-in models: by block, in segments, nested, and at random.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>

#include <cstring>
#include <random>

#include "models/program.h"
#include "models/registry.h"
#include "shadowgraph/capture/replay.h"
#include "shadowgraph/graph/edit.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/graph/verify.h"
#include "shadowgraph/passes/pipeline.h"
#include "shadowgraph/passes/recompute.h"
#include "shadowgraph/profile/profile.h"
#include "tests/core/replay/same_bits.h"
#include "tests/counting_allocator.h"
#include "tests/passes/model_captures.h"

namespace shadowgraph {
namespace {

constexpr uint64_t kCheckpointSeed = 2025;

// Counts live bytes, including a node's operands and results, as shadowgraph/profile/profile.h does.
class CountingInterpreter final : public Interpreter {
 public:
  CountingInterpreter(const Graph& graph, CountingAllocator& allocator) : Interpreter(graph), allocator_(allocator) {}
  std::vector<int64_t> live;

 protected:
  void run_node(NodeId node) override {
    Interpreter::run_node(node);
    live.push_back(allocator_.live);
  }

 private:
  CountingAllocator& allocator_;
};

struct Left {
  models::BuiltModel model;
  ReplayResult result;
  at::Tensor next_random;
  std::vector<int64_t> live;  // relative to the bytes before the model was built
};

int64_t constant_bytes(const Graph& graph) {
  int64_t bytes = 0;
  for (const NodeId n : graph.nodes()) {
    if (graph.node(n).target == target_of(Builtin::kConstant)) {
      bytes += graph.storage(graph.value(graph.results(n)[0].ref.value).storage).bytes;
    }
  }
  return bytes;
}

Left replay_step(const std::string& name, const Graph& graph, int64_t batch) {
  CountingAllocator& allocator = CountingAllocator::install();
  CountingInterpreter interpreter(graph, allocator);
  const int64_t before = allocator.live - constant_bytes(graph);
  at::manual_seed(kCheckpointSeed);
  Left left{.model = models::build(name, {.batch = batch, .training = true, .tiny = true})};
  Bindings bindings;
  bindings.module(*left.model.module);
  for (size_t i = 0; i < left.model.inputs.size(); ++i) bindings.bind(left.model.input_names[i], left.model.inputs[i]);
  at::manual_seed(kCheckpointSeed + 1);
  left.result = interpreter.run(bindings);
  for (const int64_t live : interpreter.live) left.live.push_back(live - before);
  left.next_random = at::rand({4});
  return left;
}

void expect_same(const Left& expected, const Left& left) {
  EXPECT_TRUE(same_bits(expected.next_random, left.next_random)) << "the generator states differ";
  ASSERT_EQ(left.result.outputs.size(), expected.result.outputs.size());
  for (size_t i = 0; i < left.result.outputs.size(); ++i) {
    EXPECT_TRUE(same_bits(expected.result.outputs[i], left.result.outputs[i])) << "output " << i;
  }
  ASSERT_EQ(left.result.gradients.size(), expected.result.gradients.size());
  for (const auto& [parameter, gradient] : expected.result.gradients) {
    EXPECT_TRUE(same_bits(left.result.gradients.at(parameter), gradient)) << "gradient of " << parameter;
  }
  const auto parameters = left.model.module->named_parameters();
  for (const auto& entry : expected.model.module->named_parameters()) {
    EXPECT_TRUE(same_bits(parameters[entry.key()], entry.value())) << entry.key();
  }
  const auto buffers = left.model.module->named_buffers();
  for (const auto& entry : expected.model.module->named_buffers()) {
    EXPECT_TRUE(same_bits(buffers[entry.key()], entry.value())) << entry.key();
  }
}

// Returns the peak.
int64_t expect_predicted(const Graph& graph, const Left& left) {
  const auto timeline = MemoryTimeline::of(graph);
  EXPECT_EQ(timeline.steps(), left.live.size());
  if (timeline.steps() != left.live.size()) return 0;
  int differ = 0;
  int64_t peak = 0;
  for (uint32_t i = 0; i < timeline.steps(); ++i) {
    peak = std::max(peak, left.live[i]);
    if (timeline.total(i) != left.live[i] && ++differ <= 5) {
      ADD_FAILURE() << "predicted " << timeline.total(i) << ", real " << left.live[i] << " at "
                    << to_text(graph, timeline.node(i));
    }
  }
  EXPECT_EQ(differ, 0) << "of " << timeline.steps() << " nodes";
  EXPECT_EQ(timeline.peak().bytes, peak);
  EXPECT_EQ(peak_of_live_bytes(graph), peak);
  return peak;
}

class CheckpointedModel : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    threads_ = at::get_num_threads();
    at::set_num_threads(1);
  }
  void TearDown() override { at::set_num_threads(threads_); }

  void begin(int64_t batch) {
    batch_ = batch;
    graph_ = capture_tiny(GetParam(), {.batch = batch});
    run_pass(graph_, "free-at-last-use");
    expected_ = std::make_unique<Left>(replay_step(GetParam(), graph_, batch));
    peak_ = expect_predicted(graph_, *expected_);
  }

  // Returns the peak of the rewritten graph.
  int64_t check(const std::function<CheckpointResult(Graph&)>& rewrite, CheckpointResult* done = nullptr) {
    Graph graph = clone(graph_);
    const CheckpointResult result = rewrite(graph);
    if (done != nullptr) *done = result;
    verify(graph);
    const Left left = replay_step(GetParam(), graph, batch_);
    expect_same(*expected_, left);
    // The lifetimes recorded by the pass are those of the replay.
    Graph again = clone(graph);
    EXPECT_FALSE(run_pass(again, "free-at-last-use").changed);
    return expect_predicted(graph, left);
  }

  int64_t check(const std::string& modules, const CheckpointPolicy& policy, CheckpointResult* done = nullptr) {
    return check(
        [&](Graph& graph) {
          const auto regions = regions_named(graph, modules);
          EXPECT_FALSE(regions.empty()) << modules;
          return checkpoint_segments(graph, policy(graph, regions));
        },
        done);
  }

  Graph graph_;
  std::unique_ptr<Left> expected_;
  int64_t batch_ = 0;
  int64_t peak_ = 0;

 private:
  int threads_ = 1;
};

// Models that consist of numbered blocks.
class CheckpointedBlocks : public CheckpointedModel {};

TEST_P(CheckpointedBlocks, TrainAsBefore) {
  begin(8);
  CheckpointResult done;
  const int64_t peak = check("auto", each_region(), &done);
  EXPECT_GT(done.segments, 0);
  EXPECT_GT(done.recomputed, 0);
  EXPECT_LT(peak, peak_);
  check("auto", every_kth_region(2));
  check("auto", square_root_segments());
}

TEST_P(CheckpointedModel, TrainsAsBeforeAtRandom) {
  begin(2);
  for (uint32_t seed = 0; seed < 4; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    check([&](Graph& graph) {
      // Random regions, which may be nested.
      std::vector<CheckpointSegment> segments;
      for (const RegionId r : regions_named(graph, "?*")) {
        if (random() % 2 == 0) segments.push_back({graph.text(graph.region(r).name), {r}});
      }
      for (uint32_t i = 1; i < graph.region_count(); ++i) {
        const Region& region = graph.region(RegionId(i));
        if (region.kind == RegionKind::kModule && random() % 3 == 0 &&
            std::none_of(segments.begin(), segments.end(),
                         [&](const auto& segment) { return segment.regions[0] == RegionId(i); })) {
          segments.push_back({graph.text(region.name), {RegionId(i)}});
        }
      }
      return checkpoint_segments(graph, segments);
    });
  }
}

// Nested segments given by nodes, each with some tensors to keep.
TEST_P(CheckpointedModel, TrainsAsBeforeWithTensorsKeptAtRandom) {
  begin(2);
  std::vector<NodeId> forward;
  for (const NodeId n : graph_.nodes()) {
    if (graph_.node(n).phase == Graph::kForward && !graph_.is_placeholder(n)) forward.push_back(n);
  }
  for (uint32_t seed = 0; seed < 5; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const auto below = [&](size_t n) { return random() % std::max<size_t>(1, n); };
    std::vector<CheckpointSegment> segments;
    struct Range {
      size_t begin, end;
    };
    std::vector<Range> open{{0, forward.size()}};
    while (!open.empty() && segments.size() < 12) {
      const Range range = open.back();
      open.pop_back();
      if (range.end - range.begin < 4) continue;
      // A part of the range; the rest on both sides, and nested segments, are added later.
      const size_t from = range.begin + below((range.end - range.begin) / 2);
      const size_t to = from + 2 + below(range.end - from - 1);
      CheckpointSegment segment{
          .name = "part", .regions = {}, .first = forward[from], .last = forward[std::min(to, range.end) - 1]};
      for (size_t at = from; at < std::min(to, range.end); ++at) {
        graph_.for_each_output(forward[at], [&](ValueId v) {
          const StorageId s = graph_.value(v).storage;
          if (s.valid() && random() % 3 == 0) segment.keep.push_back(s);
        });
      }
      segments.push_back(segment);
      open.push_back({range.begin, from});
      open.push_back({std::min(to, range.end), range.end});
      open.push_back({from, std::min(to, range.end) - 1});
    }
    check([&](Graph& graph) { return checkpoint_segments(graph, segments); });
  }
}

// Saved tensors are offloaded and fetched; on the CPU, both are copies within memory.
TEST_P(CheckpointedModel, TrainsAsBeforeWithTensorsOnTheHost) {
  begin(2);
  const CheckpointChain chain = CheckpointChain::of(graph_);
  int64_t sent = 0;
  for (uint32_t seed = 0; seed < 3; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    std::vector<CheckpointSegment> segments;
    for (size_t i = 0; i < chain.parts.size(); ++i) {
      CheckpointSegment segment{
          .name = chain.stages[i].name, .regions = {}, .first = chain.parts[i].first, .last = chain.parts[i].last};
      // Keep everything, so that nothing is recomputed, or some tensors.
      for (NodeId n = segment.first;; n = graph_.node(n).next) {
        graph_.for_each_output(n, [&](ValueId v) {
          if (!graph_.value(v).storage.valid()) return;
          if (seed == 0 || random() % 2 == 0) segment.keep.push_back(graph_.value(v).storage);
        });
        if (n == segment.last) break;
      }
      for (const StorageId s : segment.keep) {
        if (std::find(segment.offload.begin(), segment.offload.end(), s) == segment.offload.end() &&
            random() % 4 != 0) {
          segment.offload.push_back(s);
        }
      }
      segments.push_back(segment);
    }
    CheckpointResult done;
    check([&](Graph& graph) { return checkpoint_segments(graph, segments); }, &done);
    sent += done.offloaded;
  }
  EXPECT_GT(sent, 0);
}

// Replay frees the originals right after the copy; the graph frees them after the neighboring layer.
TEST_P(CheckpointedModel, TrainsAsBeforeWithModulesOnTheHost) {
  begin(2);
  const std::string modules = GetParam() == "lstm_lm" ? "encoder+rnn+decoder" : "auto";
  for (const bool again : {false, true}) {
    Graph graph = clone(graph_);
    if (again) checkpoint_modules(graph, {.modules = modules});
    EXPECT_GT(offload_modules(graph, {.modules = modules, .min_bytes = 0}).tensors, 0);
    verify(graph);
    expect_same(*expected_, replay_step(GetParam(), graph, batch_));
    EXPECT_EQ(offload_modules(graph, {.modules = modules, .min_bytes = 0}).tensors, 0);
  }
}

// policy=optimal: the predicted costs of its plans are those of a replay.
TEST_P(CheckpointedModel, TrainsAsBeforeByTheLeastRecompute) {
  begin(GetParam() == "unet" ? 2 : 4);
  const CheckpointCurve curve = CheckpointCurve::of(graph_);
  const auto& choices = curve.choices();
  ASSERT_FALSE(choices.empty());
  EXPECT_EQ(choices.front().cost, 0);
  for (size_t i = 0; i < 5; ++i) {
    const CheckpointChoice& choice = choices[(choices.size() - 1) * (i + 1) / 5];
    SCOPED_TRACE(choice.policy + ", " + std::to_string(choice.segments.size()) + " segments");
    CheckpointResult done;
    const int64_t peak = check([&](Graph& graph) { return checkpoint_segments(graph, choice.segments); }, &done);
    EXPECT_EQ(peak, choice.peak);
    EXPECT_EQ(done.repeated.size(), choice.repeated.size());
  }
  // By regions, and by the pass's own options.
  const int64_t bytes = choices[choices.size() / 2].peak;
  const int64_t peak = check([&](Graph& graph) {
    return checkpoint_modules(graph, {.policy = CheckpointModulesOptions::Policy::kOptimal, .bytes = bytes});
  });
  EXPECT_LE(peak, bytes);
  const auto regions = regions_named(graph_, "auto");
  if (regions.empty()) return;
  const CheckpointCurve by_regions = CheckpointCurve::of(graph_, regions);
  const CheckpointChoice& last = by_regions.choices().back();
  EXPECT_EQ(check([&](Graph& graph) { return checkpoint_segments(graph, last.segments); }), last.peak);
}

INSTANTIATE_TEST_SUITE_P(BuiltIn, CheckpointedBlocks,
                         ::testing::Values("resnet18", "resnet50", "vit_b_16", "bert_base", "gpt2", "llama3_8b"));
INSTANTIATE_TEST_SUITE_P(BuiltIn, CheckpointedModel,
                         ::testing::Values("resnet18", "resnet50", "vit_b_16", "bert_base", "gpt2", "llama3_8b", "unet",
                                           "lstm_lm"));

}  // namespace
}  // namespace shadowgraph
