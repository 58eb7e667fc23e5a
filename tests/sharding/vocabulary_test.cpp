// Vocabulary parallel lookups: each rank looks up its own rows, and the sum is the result.
#include <gtest/gtest.h>
#include <torch/nn.h>
#include <torch/optim/sgd.h>

#include "models/llama.h"
#include "shadowgraph/capture/capture.h"
#include "shadowgraph/capture/fake.h"
#include "shadowgraph/graph/edit.h"
#include "shadowgraph/graph/verify.h"
#include "shadowgraph/shard/shard.h"
#include "tests/sharding/captured_step.h"
#include "tests/sharding/random_plan.h"

namespace shadowgraph {
namespace {

constexpr int64_t kWords = 12;
constexpr int64_t kNothing = 3;  // a label that ignore_index excludes from the loss

struct WordsImpl : torch::nn::Module {
  WordsImpl() {
    embedding =
        register_module("embedding", torch::nn::Embedding(torch::nn::EmbeddingOptions(kWords, 8).padding_idx(5)));
    head = register_module("head", torch::nn::Linear(8, kWords));
  }
  at::Tensor forward(const at::Tensor& words) { return head(embedding(words)); }
  torch::nn::Embedding embedding{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(Words);

CapturedStep step_with(at::Reduction::Reduction reduction, bool weighted) {
  CapturedStep step;
  {
    const FakeTensorMode mode;
    Words net;
    net->to(at::kDouble);
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.5));
    const at::Tensor words = at::empty({6, 4}, at::kLong);
    const at::Tensor targets = at::empty({24}, at::kLong);
    const at::Tensor weight = at::empty({kWords}, at::kDouble);
    ProgramToCapture program;
    program.module = net.get();
    program.inputs = {words, targets, weight};
    program.input_names = {"words", "targets", "weight"};
    program.forward = [&](const Tensors& in) -> Tensors { return {net->forward(in[0]), in[1], in[2]}; };
    program.loss = [=](const Tensors& out) {
      const auto weights = weighted ? std::optional<at::Tensor>(out[2]) : std::nullopt;
      const at::Tensor loss =
          at::nll_loss(at::log_softmax(out[0].flatten(0, 1), 1), out[1], weights, reduction, kNothing);
      return reduction == at::Reduction::None ? (loss * loss).sum() : loss;
    };
    program.optimizer = &sgd;
    step.graph = capture_training_step(program).graph;
  }
  split_mean_losses(step.graph);
  at::manual_seed(5);
  for (const NodeId node : step.graph.nodes()) {
    if (step.graph.node(node).target.index > target_of(Builtin::kInput).index) continue;
    const ValueId value = step.graph.results(node)[0].ref.value;
    const auto sizes = step.graph.sizes(value);
    const c10::IntArrayRef shape(sizes.data(), sizes.size());
    step.inputs.push_back(step.graph.value(value).dtype == at::kLong ? at::randint(0, kWords, shape, at::kLong)
                                                                     : at::rand(shape, at::kDouble) + 0.5);
  }
  return step;
}

// Returns the most elements of any tensor that has the unsharded vocabulary as a dimension.
int64_t largest_with(int64_t vocabulary, const Graph& graph) {
  int64_t largest = 0;
  for (const NodeId node : graph.nodes()) {
    graph.for_each_output(node, [&](ValueId v) {
      if (graph.value(v).kind != ValueKind::kTensor) return;
      const auto sizes = graph.sizes(v);
      if (std::ranges::find(sizes, vocabulary) == sizes.end()) return;
      largest = std::max(largest, c10::multiply_integers(sizes));
    });
  }
  return largest;
}

// The embedding and head of a language model are sharded along the vocabulary. No tensor on a device has the whole
// vocabulary, so no collective produces one. If log_softmax is not decomposed, the logits are gathered.
TEST(CutVocabulary, GathersNoLogitsOfALanguageModel) {
  constexpr int64_t vocabulary = 104;  // differs from all other dimensions
  for (const bool split : {true, false}) {
    models::LlamaConfig config = models::tiny(models::LlamaConfig{});
    config.vocab = vocabulary;
    const auto build = [&] {
      models::BuiltModel model = models::build_llama(config, {.batch = 4, .seq = 16, .dtype = at::kDouble});
      for (at::Tensor& parameter : model.module->parameters()) parameter.set_data(parameter.to(at::kDouble));
      return model;
    };
    CapturedStep step = capture_step(build, StepOptimizer::kSgd);
    split_mean_losses(step.graph);
    const WholeRun whole = run_whole(step);
    if (split) {
      EXPECT_GE(split_log_softmaxes(step.graph), 1);
      compute_in_doubles(step.graph);  // the decomposed gradient names its dtype
    }
    PlanMaker maker(step.graph);
    // Tensors with a vocabulary dimension are sharded there if possible; the others keep the layout of their operands.
    const GraphLayouts plan = maker.make(
        DeviceMesh::parse("tp=2"),
        [&](NodeId node, size_t, const NodeStrategies& strategies, const std::vector<Placement>& now) {
          std::vector<ValueId> tensors;
          const auto add = [&](ValueId v) {
            if (step.graph.value(v).kind == ValueKind::kTensor) tensors.push_back(v);
          };
          step.graph.for_each_input(node, add);
          step.graph.for_each_output(node, add);
          std::vector<size_t> order;
          for (size_t i = 0; i < strategies.axis.size(); ++i) {
            const AxisStrategy& one = strategies.axis[i];
            bool any = false, all = true;
            for (size_t t = 0; t < tensors.size(); ++t) {
              const auto sizes = step.graph.sizes(tensors[t]);
              const auto at = std::ranges::find(sizes, vocabulary);
              if (at == sizes.end()) continue;
              any = true;
              const Placement& lies = t < one.operands.size() ? one.operands[t] : one.results[t - one.operands.size()];
              all &= lies == Placement::shard(at - sizes.begin());
            }
            if (any && all) order.push_back(i);
          }
          for (size_t i = 0; i < strategies.axis.size(); ++i) {
            if (strategies.axis[i].operands == now) order.push_back(i);
          }
          return order;
        });
    const std::vector<ShardedGraph> ranks = apply_to_all(step.graph, plan);
    worst_difference(whole, simulate(ranks, step.inputs));
    const int64_t whole_logits = largest_with(vocabulary, step.graph);
    ASSERT_GT(whole_logits, 0);
    if (split) {
      EXPECT_EQ(largest_with(vocabulary, ranks[0].graph), 0);
      for (const NodeId node : nodes_calling(ranks[0].graph, "_c10d_functional::all_gather_into_tensor")) {
        const ValueId gathered = ranks[0].graph.results(node)[0].ref.value;
        EXPECT_LT(c10::multiply_integers(ranks[0].graph.sizes(gathered)), whole_logits);
      }
    } else {
      EXPECT_EQ(largest_with(vocabulary, ranks[0].graph), whole_logits);
    }
  }
}

struct Case {
  const char* name;
  at::Reduction::Reduction reduction;
  bool weighted;
};

class Vocabularies : public ::testing::TestWithParam<Case> {};

// Every node that can be is sharded along the vocabulary, on all mesh axes or on some; the others keep their layout.
TEST_P(Vocabularies, CutLookupsGiveTheSame) {
  const CapturedStep step = step_with(GetParam().reduction, GetParam().weighted);
  const WholeRun whole = run_whole(step);
  PlanMaker maker(step.graph);
  std::map<std::string, int64_t> cut;
  for (const char* mesh : {"2", "3", "4", "2x2", "2x3"}) {
    for (const size_t only : {size_t{0}, size_t{1}, size_t{9}}) {
      SCOPED_TRACE(std::string(mesh) + " axis " + std::to_string(only));
      const DeviceMesh on = DeviceMesh::parse(mesh);
      const GraphLayouts plan = maker.make(
          on, [&](NodeId node, size_t axis, const NodeStrategies& strategies, const std::vector<Placement>& now) {
            std::vector<size_t> order;
            for (size_t i = 0; i < strategies.axis.size(); ++i) {
              const bool is_lookup = strategies.axis[i].name == "v" && (only == 9 || only == axis);
              if (is_lookup && step.graph.target(node).kind() == TargetKind::kOperator) order.push_back(i);
            }
            for (size_t i = 0; i < strategies.axis.size(); ++i) {
              if (strategies.axis[i].operands == now) order.push_back(i);
            }
            return order;
          });
      const ShardingRules rules;
      for (const NodeId node : step.graph.nodes()) {
        const NodeLayouts& layouts = plan.nodes[node];
        if (step.graph.target(node).kind() != TargetKind::kOperator || layouts.operands.empty()) continue;
        const auto lookup = rules.lookup(step.graph, node, layouts.operands, layouts.results, on, on.size() - 1);
        if (!lookup) continue;
        EXPECT_EQ(lookup->end, kWords) << "the last rank has the last words";
        ++cut[step.graph.target(node).name()];
      }
      const std::vector<ShardedGraph> ranks = apply_to_all(step.graph, plan);
      for (const ShardedGraph& rank : ranks) verify(rank.graph);
      worst_difference(whole, simulate(ranks, step.inputs));
      if (testing::Test::HasFailure()) FAIL() << first_wrong_node(step, plan);
    }
  }
  for (const char* name :
       {"aten::embedding", "aten::embedding_dense_backward", "aten::nll_loss_forward", "aten::nll_loss_backward"}) {
    EXPECT_GE(cut[name], 8) << name;
  }
}

// With log_softmax decomposed, the normalization is sharded: ranks exchange a maximum and sums.
TEST_P(Vocabularies, LossesOfCutLogitsAreTheSame) {
  CapturedStep step = step_with(GetParam().reduction, GetParam().weighted);
  const WholeRun before = run_whole(step);
  EXPECT_EQ(split_log_softmaxes(step.graph), 2);
  verify(step.graph);
  PlanMaker maker(step.graph);
  const GraphLayouts plan = maker.by_hand(
      DeviceMesh::parse("tp=4"), [](const std::string& name, Builtin, size_t, std::span<const int64_t> sizes) {
        const bool head = name.starts_with("head.") || (name == "weight" && sizes.size() == 1);
        return head ? Placement::shard(0) : Placement::replicate();
      });
  const std::vector<ShardedGraph> ranks = apply_to_all(step.graph, plan);
  worst_difference(before, simulate(ranks, step.inputs));
  const Graph& graph = ranks[0].graph;
  EXPECT_GE(nodes_calling(graph, "_c10d_functional::all_reduce").size(), 3U);
}

INSTANTIATE_TEST_SUITE_P(Losses, Vocabularies,
                         ::testing::Values(Case{"mean", at::Reduction::Mean, false},
                                           Case{"weighted_mean", at::Reduction::Mean, true},
                                           Case{"sum", at::Reduction::Sum, false},
                                           Case{"weighted_sum", at::Reduction::Sum, true},
                                           Case{"none", at::Reduction::None, true}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace shadowgraph
