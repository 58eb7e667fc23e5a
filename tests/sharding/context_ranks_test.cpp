// Context parallel: the ranks together match one device, and their work is balanced.
#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <map>

#include "ir/analysis/module_tree.h"
#include "models/program.h"
#include "models/registry.h"
#include "shadowgraph/capture/capture.h"
#include "shadowgraph/capture/process_group.h"
#include "shadowgraph/capture/replay.h"
#include "shadowgraph/graph/edit.h"
#include "shadowgraph/graph/verify.h"
#include "shadowgraph/passes/recompute.h"
#include "sharding/ranks/ranks.h"
#include "tests/sharding/captured_step.h"

namespace shadowgraph {
namespace {

using models::BuiltModel;

constexpr int64_t kBatch = 2, kWords = 16;

// Attention with or without a mask, and with grouped key/value heads.
class Attending : public torch::nn::Module {
 public:
  Attending(bool causal, double dropout) : causal_(causal), dropout_(dropout) {
    words = register_module("words", torch::nn::Embedding(kWords, 16));
    places = register_module("places", torch::nn::Embedding(64, 16));
    query = register_module("query", torch::nn::Linear(16, 16));
    key_value = register_module("key_value", torch::nn::Linear(16, 16));
    head = register_module("head", torch::nn::Linear(16, kWords));
  }
  at::Tensor forward(const at::Tensor& ids) {
    const at::Tensor x = words(ids) + places(at::arange(ids.size(1), ids.options()));
    const auto heads = [&](const at::Tensor& y) { return y.unflatten(-1, {-1, 4}).transpose(1, 2); };
    const at::Tensor kv = heads(key_value(x));  // two key/value heads for four query heads
    const auto repeated = [](const at::Tensor& y) {
      return y.unsqueeze(2).expand({-1, -1, 2, -1, -1}).reshape({y.size(0), 4, y.size(2), 4});
    };
    const at::Tensor y = at::scaled_dot_product_attention(heads(query(x)), repeated(kv.slice(1, 0, 2)),
                                                          repeated(kv.slice(1, 2, 4)), {}, dropout_, causal_);
    return head(y.transpose(1, 2).flatten(2));
  }

 private:
  torch::nn::Embedding words{nullptr}, places{nullptr};
  torch::nn::Linear query{nullptr}, key_value{nullptr}, head{nullptr};
  bool causal_;
  double dropout_;
};

BuiltModel attending(int64_t tokens, bool causal, double dropout = 0, at::ScalarType dtype = at::kDouble) {
  BuiltModel built;
  const auto module = std::make_shared<Attending>(causal, dropout);
  module->to(dtype);
  built.module = module;
  built.inputs = {torch::randint(kWords, {kBatch, tokens}), torch::randint(kWords, {kBatch, tokens})};
  built.input_names = {"input_ids", "labels"};
  built.forward = [module](const BuiltModel::Tensors& inputs) {
    return BuiltModel::Tensors{module->forward(inputs[0])};
  };
  built.output_names = {"logits"};
  return built;
}

BuiltModel llama(int64_t tokens, at::ScalarType dtype = at::kDouble) {
  return models::build("llama3_8b", {.batch = kBatch, .seq = tokens, .dtype = dtype, .tiny = true});
}

using Build = std::function<BuiltModel(int64_t tokens)>;

// Labels are shifted beforehand, so that no rank needs tokens of another.
Graph captured(const Build& build, int64_t tokens, const FakeTensorOptions& options = {}) {
  const FakeTensorMode mode(options);
  BuiltModel built = build(tokens);
  if (!built.loss || built.input_names.front() == "input_ids")
    built.loss = [](const BuiltModel::Tensors& outputs, const BuiltModel::Tensors& inputs) {
      return at::cross_entropy_loss(outputs[0].flatten(0, 1), inputs[1].flatten());
    };
  Graph step = capture_training_step(models::program_of(built)).graph;
  if (!options.device) compute_in_doubles(step);
  return step;
}

// Reorders a sequence into the order in which ranks hold its parts.
at::Tensor in_order_of_ranks(const at::Tensor& tokens, int64_t ranks) {
  const std::vector<at::Tensor> chunks = tokens.chunk(2 * ranks, 1);
  std::vector<at::Tensor> all;
  for (int64_t r = 0; r < ranks; ++r) {
    all.push_back(chunks[static_cast<size_t>(r)]);
    all.push_back(chunks[static_cast<size_t>(2 * ranks - 1 - r)]);
  }
  return at::cat(all, 1);
}

std::vector<at::Tensor> real_inputs(const Graph& whole) {
  at::manual_seed(7);
  std::vector<at::Tensor> inputs;
  for (const NodeId node : whole.nodes()) {
    if (whole.node(node).target.index > target_of(Builtin::kInput).index) continue;
    const ValueId value = whole.results(node)[0].ref.value;
    const at::IntArrayRef sizes(whole.sizes(value).data(), whole.sizes(value).size());
    const auto dtype = whole.value(value).dtype;
    inputs.push_back(dtype == at::kLong ? at::randint(kWords, sizes, at::TensorOptions(dtype))
                                        : at::randn(sizes, at::TensorOptions(dtype)));
  }
  return inputs;
}

// Runs all ranks, sharding along tokens every tensor that is larger in the whole graph; averages losses and gradients.
SimulatedRun run_ranks(const Graph& whole, const Graph& part, int64_t ranks, std::vector<at::Tensor> inputs) {
  const DeviceMesh mesh = DeviceMesh::parse("context=" + std::to_string(ranks));
  std::vector<ShardedGraph> all;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    ShardedGraph of{
        .graph = shard_sequence_over(clone(part), {.ranks = ranks, .rank = rank}), .mesh = mesh, .rank = rank};
    verify(of.graph);
    size_t i = 0;
    for (const NodeId node : of.graph.nodes()) {
      const TargetId target = of.graph.node(node).target;
      if (target.index <= target_of(Builtin::kInput).index) {
        const auto sizes = of.graph.sizes(of.graph.results(node)[0].ref.value);
        const at::Tensor& input = inputs[i++];
        const bool cut = !std::ranges::equal(sizes, input.sizes());
        of.inputs.push_back({placeholder_name(of.graph, node), Layout::parse(cut ? "S(1)" : "R"), input.sizes().vec()});
      } else if (target == target_of(Builtin::kGradient)) {
        const ValueId value = of.graph.arguments(node)[0].ref.value;
        const auto sizes = of.graph.sizes(value);
        of.gradients.push_back({placeholder_name(of.graph, of.graph.value(value).producer),
                                Layout::parse("P(avg)"),
                                {sizes.begin(), sizes.end()}});
      }
    }
    of.outputs = {{"", Layout::parse("P(avg)"), {}}};
    all.push_back(std::move(of));
  }
  size_t i = 0;
  for (const NodeId node : whole.nodes()) {
    if (whole.node(node).target.index > target_of(Builtin::kInput).index) continue;
    at::Tensor& input = inputs[i++];
    if (input.scalar_type() == at::kLong && input.dim() == 2) input = in_order_of_ranks(input, ranks);
  }
  return simulate(all, inputs);
}

void compare(const Build& build, int64_t tokens, int64_t ranks, const std::string& recomputed = "") {
  Graph whole = captured(build, tokens), part = captured(build, tokens / ranks);
  if (!recomputed.empty()) checkpoint_modules(part, {.modules = recomputed});
  std::vector<at::Tensor> inputs = real_inputs(whole);
  const SimulatedRun run = run_ranks(whole, part, ranks, inputs);
  const ReplayResult one = Interpreter(whole).run(Bindings().in_order(inputs));
  EXPECT_LE(difference(one.outputs[0], run.outputs[0]), 1e-10);
  ASSERT_EQ(one.gradients.size(), run.gradients.size());
  for (const auto& [name, gradient] : run.gradients) {
    EXPECT_LE(difference(one.gradients.at(name), gradient), 1e-10) << name;
  }
}

TEST(ContextRanks, ComputeWhatOneDeviceDoes) {
  for (const int64_t ranks : {2, 3, 4}) {
    SCOPED_TRACE(ranks);
    compare([](int64_t tokens) { return llama(tokens); }, 24, ranks);
    compare([](int64_t tokens) { return attending(tokens, /*causal=*/true); }, 24, ranks);
  }
}

TEST(ContextRanks, WithoutAMaskTheyDo) {
  for (const int64_t ranks : {2, 3}) {
    SCOPED_TRACE(ranks);
    compare([](int64_t tokens) { return attending(tokens, /*causal=*/false); }, 24, ranks);
  }
}

TEST(ContextRanks, WhatIsComputedAgainIsGatheredAgain) {
  compare([](int64_t tokens) { return llama(tokens); }, 16, 2, "model.layers.*");
  Graph part = captured([](int64_t tokens) { return llama(tokens); }, 8);
  const auto gathers = [](const Graph& graph) {
    return nodes_calling(graph, "_c10d_functional::all_gather_into_tensor").size();
  };
  const size_t kept = gathers(shard_sequence_over(clone(part), {.ranks = 2}));
  checkpoint_modules(part, {.modules = "model.layers.*"});
  EXPECT_EQ(2 * gathers(shard_sequence_over(std::move(part), {.ranks = 2})), 3 * kept);
}

// Counts the query-key pairs in a rank's forward attention.
int64_t scores(const Graph& graph) {
  int64_t all = 0;
  for (const NodeId node : graph.nodes()) {
    const std::string& name = graph.target(node).name();
    if (!name.starts_with("aten::_scaled_dot_product") || name.ends_with("_backward")) continue;
    const int64_t queries = graph.sizes(graph.find_argument(node, "query")->ref.value)[2];
    const int64_t keys = graph.sizes(graph.find_argument(node, "key")->ref.value)[2];
    const Argument* causal = graph.find_argument(node, "is_causal");
    all += causal != nullptr && causal->b ? queries * (queries + 1) / 2 : queries * keys;
  }
  return all;
}

const FakeTensorOptions kOnGpu{.device = c10::kCUDA};
Graph of_gpu(int64_t tokens) {
  return captured([](int64_t n) { return llama(n, at::kBFloat16); }, tokens, kOnGpu);
}

TEST(ContextRanks, EachHasAsMuchWork) {
  const Build build = [](int64_t tokens) { return attending(tokens, true, 0, at::kBFloat16); };
  const int64_t whole = scores(captured(build, 48, kOnGpu));
  const Graph part = captured(build, 12, kOnGpu);
  int64_t all = 0;
  for (int64_t rank = 0; rank < 4; ++rank) {
    const int64_t own = scores(shard_sequence_over(clone(part), {.ranks = 4, .rank = rank}));
    EXPECT_EQ(own, whole / 4) << rank;
    all += own;
  }
  EXPECT_EQ(all, whole);
}

// Tiny model: two key/value heads for four query heads, 8 wide, in two layers; K and V in forward and backward.
TEST(ContextRanks, HeadsThatAreRepeatedAreSentOnce) {
  const Graph rank = shard_sequence_over(of_gpu(16), {.ranks = 4, .rank = 2});
  verify(rank);
  std::map<int64_t, int> sent;
  for (const NodeId node : nodes_calling(rank, "_c10d_functional::all_gather_into_tensor")) {
    ++sent[rank.logical_bytes(rank.find_argument(node, "input")->ref.value)];
  }
  EXPECT_THAT(sent, ::testing::ElementsAre(std::pair(kBatch * 2 * 16 * 8 * 2, 2 * 2 * 2)));
  for (const NodeId node : nodes_calling(rank, "_c10d_functional::reduce_scatter_tensor")) {
    EXPECT_EQ(rank.logical_bytes(rank.find_argument(node, "input")->ref.value), 4 * kBatch * 2 * 16 * 8 * 2);
  }
}

TEST(ContextRanks, NothingLivesLonger) {
  const Graph part = of_gpu(16), rank = shard_sequence_over(clone(part), {.ranks = 4, .rank = 2});
  const auto at_end = [](const Graph& graph) {
    int64_t bytes = 0;
    for (uint32_t i = 0; i < graph.storage_count(); ++i) {
      const Storage& storage = graph.storage(StorageId(i));
      const bool made = storage.born.valid() && !graph.is_erased(storage.born) && !graph.is_placeholder(storage.born);
      if (made && !storage.freed_after.valid()) bytes += storage.bytes;
    }
    return bytes;
  };
  EXPECT_EQ(at_end(rank), at_end(part));
}

TEST(ContextRanks, TheGroupLeavesRoomForTensorParallel) {
  const Graph rank = shard_sequence_over(of_gpu(16), {.ranks = 4, .rank = 2, .apart = 8});
  const std::vector<ProcessGroupInfo> groups = process_groups(rank);
  ASSERT_EQ(groups.size(), 1U);
  EXPECT_EQ(groups[0].rank, 2);
  EXPECT_THAT(groups[0].ranks, ::testing::ElementsAre(0, 8, 16, 24));
}

std::string refused(const Graph& part, const ContextRanks& over = {.ranks = 2}) {
  try {
    shard_sequence_over(clone(part), over);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(ContextRanks, WhatIsNotKnownIsRefused) {
  using ::testing::HasSubstr;
  const auto of = [](const Build& build, int64_t tokens = 16) { return captured(build, tokens, kOnGpu); };
  EXPECT_THAT(refused(of([](int64_t n) { return attending(n, true, 0.5, at::kBFloat16); })), HasSubstr("has dropout"));
  EXPECT_THAT(refused(of_gpu(15)), HasSubstr("must be even"));
  EXPECT_THAT(refused(of_gpu(16), {.ranks = 2, .rank = 2}), HasSubstr("rank 2 is not among 2"));
  EXPECT_THAT(refused(of([](int64_t) { return models::build("resnet18", {.tiny = true}); })),
              HasSubstr("found no attention"));
  const auto changed = [](const std::function<at::Tensor(const at::Tensor&)>& mix) {
    return [mix](int64_t n) {
      BuiltModel built = attending(n, true, 0, at::kBFloat16);
      built.forward = [mix, forward = built.forward](const BuiltModel::Tensors& inputs) {
        return BuiltModel::Tensors{mix(forward(inputs)[0])};
      };
      return built;
    };
  };
  const auto written_out =
      changed([](const at::Tensor& y) { return at::matmul(at::softmax(at::matmul(y, y.transpose(1, 2)), -1), y); });
  EXPECT_THAT(refused(of(written_out)), HasSubstr("attention written out as softmax"));
  const auto masked = changed([](const at::Tensor& y) {
    const at::Tensor heads = y.unsqueeze(1);
    return at::scaled_dot_product_attention(heads, heads, heads, at::zeros({y.size(1), y.size(1)}, y.options()))
        .squeeze(1);
  });
  EXPECT_THAT(refused(of(masked)), HasSubstr("has a mask"));
}

TEST(ContextRanks, TokensThatAreMixedElsewhereAreNoticed) {
  check_tokens_are_independent(of_gpu(64), of_gpu(16), 4);
  const Build mixes = [](int64_t n) {
    BuiltModel built = attending(n, true, 0, at::kBFloat16);
    built.forward = [forward = built.forward](const BuiltModel::Tensors& inputs) {
      const at::Tensor y = forward(inputs)[0];
      return BuiltModel::Tensors{at::matmul(at::matmul(y, y.transpose(1, 2)), y)};
    };
    return built;
  };
  EXPECT_THROW(check_tokens_are_independent(captured(mixes, 64, kOnGpu), captured(mixes, 16, kOnGpu), 4), Error);
}

}  // namespace
}  // namespace shadowgraph
