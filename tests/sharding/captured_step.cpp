#include "tests/sharding/captured_step.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <map>
#include <memory>

#include "models/program.h"
#include "shadowgraph/capture/capture.h"
#include "shadowgraph/capture/fake.h"
#include "shadowgraph/graph/analysis.h"
#include "shadowgraph/graph/edit.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/passes/shapes.h"

namespace shadowgraph {

namespace {

// Optimizer operators that only Python calls: fused=True uses one operator for all parameters, foreach=True a few; the
// C++ frontend has neither. SGD's momentum buffer is stored in AdamW's exp_avg.
class ListOptimizer : public torch::optim::AdamW {
 public:
  ListOptimizer(const std::vector<at::Tensor>& parameters, StepOptimizer kind)
      : torch::optim::AdamW(parameters, torch::optim::AdamWOptions(1e-3)), kind_(kind) {}

  at::Tensor step(LossClosure = nullptr) override {
    const at::NoGradGuard no_grad;
    for (torch::optim::OptimizerParamGroup& group : param_groups()) {
      const auto& options = static_cast<torch::optim::AdamWOptions&>(group.options());
      const auto [beta1, beta2] = options.betas();
      std::vector<at::Tensor> parameters, gradients, averages, squares, steps;
      int64_t taken = 0;
      for (at::Tensor& parameter : group.params()) {
        if (!parameter.grad().defined()) continue;
        auto& state = state_[parameter.unsafeGetTensorImpl()];
        if (!state) {
          auto made = std::make_unique<torch::optim::AdamWParamState>();
          made->exp_avg(at::zeros_like(parameter));
          made->exp_avg_sq(at::zeros_like(parameter));
          state = std::move(made);
        }
        auto& moments = static_cast<torch::optim::AdamWParamState&>(*state);
        moments.step(moments.step() + 1);
        taken = moments.step();
        parameters.push_back(parameter);
        gradients.push_back(parameter.grad());
        averages.push_back(moments.exp_avg());
        squares.push_back(moments.exp_avg_sq());
        steps.push_back(at::full({}, static_cast<double>(taken), at::kFloat));
      }
      if (kind_ == StepOptimizer::kFusedAdamW) {
        at::_fused_adamw_(parameters, gradients, averages, squares, {}, steps, options.lr(), beta1, beta2,
                          options.weight_decay(), options.eps(), false, false);
      } else if (kind_ == StepOptimizer::kFusedAdam) {
        at::_fused_adam_(parameters, gradients, averages, squares, {}, steps, options.lr(), beta1, beta2,
                         options.weight_decay(), options.eps(), false, false);
      } else if (kind_ == StepOptimizer::kFusedSgd) {
        at::_fused_sgd_(parameters, gradients, averages, 0.0, 0.9, options.lr(), 0.0, false, false, false);
      } else {  // as _multi_tensor_adamw in torch/optim/adam.py
        at::_foreach_mul_(parameters, 1 - options.lr() * options.weight_decay());
        at::_foreach_lerp_(averages, gradients, 1 - beta1);
        at::_foreach_mul_(squares, beta2);
        at::_foreach_addcmul_(squares, gradients, gradients, 1 - beta2);
        const std::vector<at::Scalar> sizes(parameters.size(), -options.lr() / (1 - std::pow(beta1, taken)));
        const std::vector<at::Scalar> corrections(parameters.size(), std::sqrt(1 - std::pow(beta2, taken)));
        const std::vector<at::Tensor> roots = at::_foreach_sqrt(squares);
        at::_foreach_div_(roots, corrections);
        at::_foreach_add_(roots, options.eps());
        at::_foreach_addcdiv_(parameters, averages, roots, sizes);
      }
    }
    return {};
  }

 private:
  StepOptimizer kind_;
};

}  // namespace

void compute_in_doubles(Graph& graph) {
  bool changed = false;
  for (const NodeId node : nodes_calling(graph, "aten::_to_copy")) {
    const Argument* dtype = graph.find_argument(node, "dtype");
    if (dtype == nullptr || dtype->kind != ArgumentKind::kInt || dtype->i != static_cast<int64_t>(at::kFloat)) continue;
    graph.set_argument(node, 1, Argument::of_int(static_cast<int64_t>(at::kDouble)));
    changed = true;
  }
  if (changed) shape_prop(graph, {});
}

CapturedStep capture_step(const std::function<models::BuiltModel()>& build, StepOptimizer kind, int warmup_steps) {
  CapturedStep step;
  {
    const FakeTensorMode mode;
    const models::BuiltModel model = build();
    std::unique_ptr<torch::optim::Optimizer> optimizer;
    if (kind == StepOptimizer::kSgd) {
      optimizer =
          std::make_unique<torch::optim::SGD>(model.module->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    } else if (kind == StepOptimizer::kAdamW) {
      optimizer = std::make_unique<torch::optim::AdamW>(model.module->parameters(), torch::optim::AdamWOptions(1e-3));
    } else {
      optimizer = std::make_unique<ListOptimizer>(model.module->parameters(), kind);
    }
    ProgramToCapture program = models::program_of(model, optimizer.get());
    program.warmup_steps = warmup_steps;
    step.graph = capture_training_step(program).graph;
    compute_in_doubles(step.graph);
  }
  at::manual_seed(2026);
  const models::BuiltModel real = build();
  std::map<std::string, at::Tensor> known;
  for (const auto& entry : real.module->named_parameters()) known[entry.key()] = entry.value().detach();
  for (const auto& entry : real.module->named_buffers()) known[entry.key()] = entry.value();
  for (size_t i = 0; i < real.inputs.size(); ++i) known[real.input_names[i]] = real.inputs[i];
  for (const NodeId node : step.graph.nodes()) {
    if (step.graph.node(node).target.index > target_of(Builtin::kInput).index) continue;
    const auto found = known.find(step.graph.text(step.graph.arguments(node)[0].string));
    if (found != known.end()) {
      step.inputs.push_back(found->second);
      continue;
    }
    // optimizer state: second moments must not be negative
    const ValueId value = step.graph.results(node)[0].ref.value;
    const auto sizes = step.graph.sizes(value);
    step.inputs.push_back(
        at::rand(c10::IntArrayRef(sizes.data(), sizes.size()), at::TensorOptions(step.graph.value(value).dtype)));
  }
  return step;
}

CapturedStep capture_step(const std::string& name, StepOptimizer kind, int64_t batch, int64_t seq, int warmup_steps) {
  const models::ModelOptions options{.batch = batch, .seq = seq, .dtype = at::kDouble, .tiny = true, .dropout = 0.0};
  return capture_step([&] { return models::build(name, options); }, kind, warmup_steps);
}

WholeRun run_whole(const CapturedStep& step) {
  WholeRun run;
  for (const at::Tensor& input : step.inputs) {
    run.inputs.push_back(at::empty_strided(input.sizes(), input.strides(), input.options()).copy_(input));
  }
  Interpreter interpreter(step.graph);
  run.result = interpreter.run(Bindings().in_order(run.inputs));
  return run;
}

double difference(const at::Tensor& a, const at::Tensor& b) {
  if (a.numel() == 0) return 0;
  const at::Tensor x = a.to(at::kDouble), y = b.to(at::kDouble);
  // Values that are zero except for rounding (the gradient of an attention key bias) have no scale.
  const double scale = std::max(x.abs().max().item<double>(), 1e-4);
  return (x - y).abs().max().item<double>() / scale;
}

double worst_difference(const WholeRun& whole, const SimulatedRun& simulated) {
  double worst = 0;
  const auto compare = [&](const at::Tensor& a, const at::Tensor& b, const std::string& what) {
    EXPECT_EQ(a.defined(), b.defined()) << what;
    if (!a.defined() || !b.defined()) return;
    EXPECT_EQ(a.sizes(), b.sizes()) << what;
    const double off = difference(a, b);
    EXPECT_LE(off, 1e-10) << what;
    worst = std::max(worst, off);
  };
  EXPECT_EQ(whole.result.outputs.size(), simulated.outputs.size());
  for (size_t i = 0; i < simulated.outputs.size(); ++i) {
    compare(whole.result.outputs[i], simulated.outputs[i], "output " + std::to_string(i));
  }
  EXPECT_EQ(whole.result.gradients.size(), simulated.gradients.size());
  for (const auto& [name, gradient] : simulated.gradients) {
    compare(whole.result.gradients.at(name), gradient, "gradient of " + name);
  }
  EXPECT_EQ(whole.inputs.size(), simulated.inputs.size());
  for (size_t i = 0; i < simulated.inputs.size(); ++i) {
    compare(whole.inputs[i], simulated.inputs[i], "input " + std::to_string(i));
  }
  return worst;
}

std::string first_wrong_node(const CapturedStep& step, const GraphLayouts& plan, const ApplyOptions& options) {
  CapturedStep all{clone(step.graph), step.inputs};
  GraphLayouts shown = plan;
  std::vector<Argument> values;
  std::vector<Layout> layouts;
  NodeId output;
  const Effects effects = Effects::of(all.graph);
  for (const NodeId node : all.graph.nodes()) {
    if (all.graph.node(node).target == target_of(Builtin::kOutput)) output = node;
    size_t i = 0;
    all.graph.for_each_output(node, [&](ValueId v) {
      if (all.graph.value(v).kind != ValueKind::kTensor) return;
      Layout layout = plan.nodes[node].results[i++];
      const auto target = all.graph.node(node).target;
      if (is_placeholder(target) || effects.final_version(all.graph.value(v).storage) > 0) return;
      for (size_t axis = 0; axis < layout.size(); ++axis) {
        if (layout[axis].is_partial()) layout[axis] = Placement::replicate();
      }
      values.push_back(Argument::of_value(v));
      layouts.push_back(layout);
    });
  }
  const Argument list = all.graph.make_list(values);
  all.graph.set_argument(output, 0, list);
  shown.nodes[output].operands = layouts;
  const WholeRun whole = run_whole(all);
  try {
    const SimulatedRun run = simulate(apply_to_all(all.graph, shown, options), all.inputs);
    for (size_t i = 0; i < values.size(); ++i) {
      if (difference(whole.result.outputs[i], run.outputs[i]) < 1e-10) continue;
      const NodeId node = all.graph.value(values[i].ref.value).producer;
      std::string text = to_text(all.graph, node) + "\n";
      for (const Layout& layout : plan.nodes[node].operands) text += "  operand " + to_string(layout) + "\n";
      for (const Layout& layout : plan.nodes[node].results) text += "  result " + to_string(layout) + "\n";
      size_t at = 0;
      all.graph.for_each_input(node, [&](ValueId v) {
        const NodeId producer = all.graph.value(v).producer;
        size_t r = 0;
        size_t mine = 0;
        all.graph.for_each_output(producer, [&](ValueId o) {
          if (o == v) mine = r;
          ++r;
        });
        text += "  operand " + std::to_string(at++) + " lies " + to_string(plan.nodes[producer].results[mine]) + ": " +
                to_text(all.graph, producer) + "\n";
      });
      return text;
    }
  } catch (const std::exception& error) {
    return error.what();
  }
  return "none";
}

Graph capture_tiny_deepseek() {
  const FakeTensorMode mode({.device = c10::kCUDA});
  const models::BuiltModel built = models::build("deepseek_v3", {.layers = 3, .dtype = at::kBFloat16, .tiny = true});
  ProgramToCapture program = models::program_of(built);
  torch::optim::SGD optimizer(built.module->parameters(), torch::optim::SGDOptions(0.1));
  program.optimizer = &optimizer;
  return capture_training_step(program).graph;
}

}  // namespace shadowgraph
