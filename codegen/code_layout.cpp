// Creates the steps and variables of a plan.
//
//     %2 = aten::add_(%1, %0)      %1 and %2 are one variable: x.add_(y)
//     %3 = aten::t_(%2)            changes the geometry of x; if %2 is read later, `x2 = copy of x` comes before
//
// One pass over the steps of a compiled replay, which determines the steps, their order and their modes, so that
// generated code and replay agree. Linear in the graph, and logarithmic in the copies for each operand.
#include "codegen/code_layout.h"

#include <algorithm>

#include "core/calls/functions.h"
#include "core/replay/replay_program.h"
#include "ir/analysis/identity.h"
#include "shadowgraph/codegen/codegen.h"

namespace shadowgraph {

class CodeLayoutBuilder {
 public:
  CodeLayoutBuilder(const Graph& graph, const CodegenOptions& options, std::vector<ValueId> only)
      : graph_(graph), options_(options), only_(std::move(only)) {}

  CodeLayout run() {
    plan_.graph = &graph_;
    // Replay decides which steps are needed and which tensors keep an old geometry; code must agree with it.
    const auto program =
        ReplayProgram::compile(graph_, {.only = only_, .device = options_.device, .defer_errors = true});
    plan_.random = program->random;
    plan_.variable_of_.assign(graph_.value_capacity(), CodeLayout::kNoVariable);
    plan_.constant_variable_.assign(graph_.constant_count(), CodeLayout::kNoVariable);
    latest_.assign(graph_.value_capacity(), CodeLayout::kNoVariable);
    for (const ReplayProgram::Step& step : program->steps) take(*program, step);
    for (size_t i = 0; i < only_.size(); ++i) {
      const bool named = options_.only_names.size() == only_.size();
      plan_.outputs.push_back(
          {named ? options_.only_names[i] : "value" + std::to_string(i), latest_[only_[i].index], false});
    }
    std::stable_sort(plan_.rebound_.begin(), plan_.rebound_.end(), [](const auto& a, const auto& b) {
      return std::pair(a.value.index, a.step) < std::pair(b.value.index, b.step);
    });
    find_last_uses();
    return std::move(plan_);
  }

 private:
  uint32_t step_count() const { return static_cast<uint32_t>(plan_.steps.size()); }

  uint32_t new_variable(ValueId value, uint32_t defined) {
    const Value& v = graph_.value(value);
    CodeVariable variable{.value = value, .defined = defined, .last_use = defined, .kind = v.kind};
    plan_.variables.push_back(variable);
    return static_cast<uint32_t>(plan_.variables.size()) - 1;
  }

  void bind(ValueId value, uint32_t variable) {
    plan_.variable_of_[value.index] = variable;
    latest_[value.index] = variable;
  }

  void take(const ReplayProgram& program, const ReplayProgram::Step& step) {
    const auto arguments = graph_.arguments(step.node);
    using Kind = ReplayProgram::StepKind;
    if (step.kind == Kind::kPlaceholder) return give(step, graph_.text(arguments[0].string), ConstantId());
    // A large constant in the source would be slow to compile, so it becomes an input from a separate file.
    if (step.kind == Kind::kConstant &&
        graph_.constant(arguments[0].constant).numel() > options_.max_embedded_elements) {
      return give(step, "constant." + std::to_string(constants_++), arguments[0].constant);
    }
    if (step.kind == Kind::kOutput) {
      for (const Argument& output : graph_.list(arguments[0])) {
        plan_.outputs.push_back(
            {"output" + std::to_string(returned_++),
             output.kind == ArgumentKind::kValue ? latest_[output.ref.value.index] : CodeLayout::kNoVariable, false});
      }
      return;
    }
    if (step.kind == Kind::kGradient) return take_gradient(step.node);
    if (step.kind == Kind::kFunction && is_unused_state(step.node)) return;
    refuse_backward(step.node);
    if (step.generator != ReplayProgram::kNoGenerator) {
      refuse_node(
          graph_, step.node,
          "it uses a generator created by the program, but code only supports the default one; exclude its node "
          "with --only, or use the default generator");
    }
    const uint32_t number = step_count();
    CodeStep& made = plan_.steps.emplace_back();
    made.node = step.node;
    made.grad_mode = step.grad_mode;
    if (step.grad_mode && (step.kind == Kind::kOperator || step.kind == Kind::kFunction)) {
      plan_.uses_grad_mode = true;
      const RegionId checkpoint = checkpoint_around(graph_, graph_.node(step.node).region);
      auto& known = plan_.checkpoints_with_grad_mode;
      const auto at = std::ranges::lower_bound(known, checkpoint);
      if (checkpoint.valid() && (at == known.end() || *at != checkpoint)) known.insert(at, checkpoint);
    }
    note_constants(arguments);
    for (const ValueId value : program.preserved(step)) {
      const uint32_t copy = new_variable(value, number);
      made.copies.push_back({latest_[value.index], copy});
      plan_.rebound_.push_back({value, number, copy});
      // This step writes the old tensor object; later readers of the value use the copy.
      rebind_later_.emplace_back(value, copy);
    }
    take_results(step.node, made, number);
    for (const auto& [value, copy] : rebind_later_) latest_[value.index] = copy;
    rebind_later_.clear();
  }

  void refuse_backward(NodeId node) const {
    const PhaseId phase = graph_.node(node).phase;
    if (!options_.autograd || (phase != Graph::kBackward && phase != Graph::kOptimizer)) return;
    refuse_node(graph_, node,
                "code for autograd requires a forward graph, but this node belongs to the " + graph_.phase_name(phase) +
                    "; capture only the forward, select values of the forward, or disable autograd");
  }

  // Returns whether a node saves the generator state for a backward that is not in the graph: a checkpoint in a forward
  // graph.
  bool is_unused_state(NodeId node) const {
    if (graph_.target(node).name() != get_random_state().name()) return false;
    const ValueId state = graph_.results(node)[0].ref.value;
    bool used = std::ranges::find(only_, state) != only_.end();
    graph_.for_each_use(state, [&](NodeId) { used = true; });
    return !used;
  }

  // Adds an input of the code: a placeholder, or a constant from the separate file.
  void give(const ReplayProgram::Step& step, std::string name, ConstantId constant) {
    const ValueId value = graph_.results(step.node)[0].ref.value;
    const uint32_t variable = new_variable(value, CodeLayout::kGiven);
    // kGiven, the largest number, would mean that it is returned.
    plan_.variables[variable].last_use = 0;
    plan_.variables[variable].given = static_cast<uint32_t>(plan_.given.size());
    bind(value, variable);
    plan_.given.push_back({variable, step.node, constant, std::move(name), false, step.written});
  }

  void note_constants(std::span<const Argument> arguments) {
    for (const Argument& argument : arguments) {
      if (argument.kind == ArgumentKind::kList) note_constants(graph_.list(argument));
      if (argument.kind != ArgumentKind::kConstant) continue;
      if (graph_.constant(argument.constant).numel() <= options_.max_embedded_elements) continue;
      uint32_t& variable = plan_.constant_variable_[argument.constant.index];
      if (variable != CodeLayout::kNoVariable) continue;
      variable = static_cast<uint32_t>(plan_.variables.size());
      plan_.variables.push_back({.defined = CodeLayout::kGiven, .given = static_cast<uint32_t>(plan_.given.size())});
      plan_.given.push_back(
          {variable, NodeId(), argument.constant, "constant." + std::to_string(constants_++), false, false});
    }
  }

  // A gradient is an output named after its parameter, or "tensor" if that has no name.
  void take_gradient(NodeId node) {
    const auto arguments = graph_.arguments(node);
    const NodeId parameter = graph_.value(arguments[0].ref.value).producer;
    const bool named = graph_.node(parameter).target.index <= target_of(Builtin::kInput).index;
    if (arguments[1].kind != ArgumentKind::kValue) return;
    plan_.outputs.push_back({named ? graph_.text(graph_.arguments(parameter)[0].string) : "tensor",
                             latest_[arguments[1].ref.value.index], true});
  }

  void take_results(NodeId node, CodeStep& made, uint32_t number) {
    const OperatorFacts& facts = graph_.facts(node);
    const auto arguments = graph_.arguments(node);
    const auto results = graph_.results(node);
    for (const uint16_t written : facts.written) {
      // A caller's tensor must keep its geometry.
      if (written < arguments.size()) graph_.for_each_value({&arguments[written], 1}, [&](ValueId v) { note_own(v); });
    }
    const auto& returns = graph_.target(node).signature().returns;
    for (size_t i = 0; i < results.size(); ++i) {
      const uint32_t same = same_variable(facts, arguments, results[i], i);
      graph_.for_each_value({&results[i], 1}, [&](ValueId value) {
        uint32_t variable = same;
        if (variable == CodeLayout::kNoVariable) {
          variable = new_variable(value, number);
          if (i < returns.size() && plan_.variables[variable].kind != ValueKind::kTensor) {
            plan_.variables[variable].type = returns[i].type.type;
          }
        }
        bind(value, variable);
        made.results.push_back(variable);
        made.fresh.push_back(same == CodeLayout::kNoVariable);
      });
    }
  }

  void note_own(ValueId value) {
    const CodeVariable& variable = plan_.variables[latest_[value.index]];
    if (variable.defined == CodeLayout::kGiven) plan_.given[variable.given].own = true;
  }

  // Returns the variable of the operand that the operator returns with unchanged geometry.
  uint32_t same_variable(const OperatorFacts& facts, std::span<const Argument> arguments, const Argument& result,
                         size_t position) const {
    if (result.kind != ArgumentKind::kValue) return CodeLayout::kNoVariable;
    for (const auto& alias : facts.aliases) {
      if (alias.result != position || alias.argument >= arguments.size()) continue;
      const Argument& argument = arguments[alias.argument];
      const bool written = std::ranges::find(facts.written, alias.argument) != facts.written.end();
      if (!written || argument.kind != ArgumentKind::kValue) continue;
      if (graph_.value(argument.ref.value).storage == graph_.value(result.ref.value).storage &&
          same_type_and_offset(graph_, argument.ref.value, result.ref.value)) {
        return latest_[argument.ref.value.index];
      }
    }
    return CodeLayout::kNoVariable;
  }

  void find_last_uses() {
    for (uint32_t step = 0; step < step_count(); ++step) {
      plan_.for_each_operand(step, [&](uint32_t variable) { plan_.variables[variable].last_use = step; });
      plan_.for_each_constant(graph_.arguments(plan_.steps[step].node),
                              [&](uint32_t variable) { plan_.variables[variable].last_use = step; });
      for (const uint32_t variable : plan_.steps[step].results) plan_.variables[variable].last_use = step;
    }
    // Outputs come last, since they may also be read by steps but are needed beyond those.
    for (const auto& output : plan_.outputs) {
      if (output.variable != CodeLayout::kNoVariable) plan_.variables[output.variable].last_use = step_count();
    }
  }

  const Graph& graph_;
  const CodegenOptions& options_;
  const std::vector<ValueId> only_;
  CodeLayout plan_;
  int constants_ = 0, returned_ = 0;
  std::vector<uint32_t> latest_;  // by value: current variable
  std::vector<std::pair<ValueId, uint32_t>> rebind_later_;
};

CodeLayout CodeLayout::make(const Graph& graph, const CodegenOptions& options) {
  std::optional<InlinedBodies> inlined = inline_bodies(graph, options);
  if (!inlined) {
    CodeLayout plan = CodeLayoutBuilder(graph, options, options.only).run();
    build_blocks(plan, options, {});
    return plan;
  }
  auto own = std::make_unique<const Graph>(std::move(inlined->graph));
  CodeLayout plan = CodeLayoutBuilder(*own, options, std::move(inlined->only)).run();
  plan.own_graph_ = std::move(own);
  build_blocks(plan, options, inlined->functions);
  return plan;
}

// Nearly all values have a single variable, so the list of rebound ones is short and searched by value.
uint32_t CodeLayout::variable_of(ValueId value, uint32_t step) const {
  uint32_t variable = variable_of_[value.index];
  if (rebound_.empty()) return variable;
  auto at = std::ranges::lower_bound(rebound_, value.index, {}, [](const Rebound& r) { return r.value.index; });
  // A copy is used by the steps after the one that created it.
  for (; at != rebound_.end() && at->value == value && at->step < step; ++at) variable = at->variable;
  return variable;
}

std::string_view CodeLayout::path_of(RegionId region) const {
  while (region.valid() && graph->region(region).kind != RegionKind::kRoot) {
    const Region& r = graph->region(region);
    if (r.kind == RegionKind::kModule) return graph->text_or_empty(r.name);
    region = r.parent;
  }
  return {};
}

RegionId checkpoint_around(const Graph& graph, RegionId region) {
  RegionId outermost;
  for (; region.valid(); region = graph.region(region).parent) {
    if (graph.region(region).kind == RegionKind::kCheckpoint) outermost = region;
  }
  return outermost;
}

bool leaves_grad_mode(const CodeLayout& plan, RegionId region) {
  const RegionId checkpoint = checkpoint_around(*plan.graph, region);
  return checkpoint.valid() && !std::ranges::binary_search(plan.checkpoints_with_grad_mode, checkpoint);
}

std::vector<size_t> fresh_results(const OperatorFacts& facts, size_t results) {
  std::vector<size_t> fresh;
  for (size_t r = 0; r < results; ++r) {
    if (std::ranges::find(facts.aliases, r, &OperatorFacts::Alias::result) == facts.aliases.end()) fresh.push_back(r);
  }
  return fresh;
}

TensorBytes readable_constant(const Graph& graph, ConstantId id, const std::string& name) {
  auto content = tensor_bytes(graph.constant(id));
  if (content) return *std::move(content);
  throw UnsupportedError("the contents of the constant " + name + " cannot be read, so code cannot contain them");
}

void refuse_another_schema(const Graph& graph, NodeId node) {
  const Target& target = graph.target(node);
  if (!has_another_schema(target)) return;
  refuse_node(graph, node,
              "this libtorch has the operator with a different schema than " + target.schema_text() +
                  "; capture the graph again with this libtorch");
}

void refuse_opaque(const Graph& graph, NodeId node, const Argument& object) {
  refuse_node(
      graph, node,
      "its argument is an opaque object (" + graph.text(object.string) + "); rewrite the node to operators first");
}

int64_t bytes_between(const Graph& graph, ValueId from, ValueId to) {
  const auto begin = [&](const Value& v) { return v.offset * static_cast<int64_t>(c10::elementSize(v.dtype)); };
  return begin(graph.value(to)) - begin(graph.value(from));
}

std::vector<Argument> arguments_with_device(const Graph& graph, NodeId node) {
  const auto given = graph.arguments(node);
  const auto& formals = graph.target(node).signature().arguments;
  std::vector<Argument> arguments(given.begin(), given.end());
  bool any_tensor = false;
  graph.for_each_input(node, [&](ValueId) { any_tensor = true; });
  ValueId result;
  graph.for_each_output(node, [&](ValueId value) {
    if (!result.valid()) result = value;
  });
  if (any_tensor || !result.valid() || graph.value(result).kind != ValueKind::kTensor) return arguments;
  for (size_t i = 0; i < formals.size() && i < arguments.size(); ++i) {
    if (formals[i].type.type == TypeClass::kDevice && arguments[i].kind == ArgumentKind::kNone) {
      arguments[i] = Argument::of_device(graph.value(result).device());
    }
  }
  return arguments;
}

std::vector<uint32_t> CodeLayout::returned_variables() const {
  std::vector<uint32_t> returned;
  for (const Output& output : outputs) {
    if (output.variable != kNoVariable) returned.push_back(output.variable);
  }
  return returned;
}

void take_side_constants(const CodeLayout& plan, const std::string& name, GeneratedCode& code) {
  for (const auto& given : plan.given) {
    if (!given.constant.valid()) continue;
    readable_constant(*plan.graph, given.constant, given.name);
    code.constants.emplace_back(given.name, plan.graph->constant(given.constant));
  }
  if (!code.constants.empty()) code.constants_file = name + "_constants.pt";
}

std::optional<uint32_t> CodeLayout::variable_of_constant(ConstantId constant) const {
  const uint32_t variable = constant_variable_[constant.index];
  return variable == kNoVariable ? std::nullopt : std::optional(variable);
}

}  // namespace shadowgraph
