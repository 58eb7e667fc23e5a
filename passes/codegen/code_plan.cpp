#include "passes/codegen/code_plan.h"

#include <algorithm>

#include "core/replay/replay_program.h"
#include "passes/codegen/codegen.h"
#include "passes/identity.h"

namespace shadowgraph {
namespace {

constexpr size_t kMaxDepth = 32;  // of functions in functions; deeper modules are written where they are

bool is_function_region(const Graph& graph, RegionId id) {
  const Region& region = graph.region(id);
  switch (region.kind) {
    case RegionKind::kCheckpoint:
      return true;
    case RegionKind::kModule:
    case RegionKind::kScope:
      return !graph.text_or_empty(region.name).empty();
    case RegionKind::kRoot:
    case RegionKind::kComposite:
      return false;
  }
  return false;
}

}  // namespace

// Fills a CodePlan.
class CodePlanner {
 public:
  CodePlanner(const Graph& graph, const CodegenOptions& options) : graph_(graph), options_(options) {}

  CodePlan run() {
    plan_.graph = &graph_;
    const auto program =
        ReplayProgram::compile(graph_, {.only = options_.only, .device = options_.device, .defer_errors = true});
    plan_.random = program->random;
    plan_.variable_of_.assign(graph_.value_capacity(), CodePlan::kNoVariable);
    plan_.constant_variable_.assign(graph_.constant_count(), CodePlan::kNoVariable);
    latest_.assign(graph_.value_capacity(), CodePlan::kNoVariable);
    for (const ReplayProgram::Step& step : program->steps) take(*program, step);
    for (size_t i = 0; i < options_.only.size(); ++i) {
      const bool named = options_.only_names.size() == options_.only.size();
      plan_.outputs.push_back(
          {named ? options_.only_names[i] : "value" + std::to_string(i), latest_[options_.only[i].index], false});
    }
    std::stable_sort(plan_.rebound_.begin(), plan_.rebound_.end(), [](const auto& a, const auto& b) {
      return std::pair(a.value.index, a.step) < std::pair(b.value.index, b.step);
    });
    find_last_uses();
    find_regions();
    build({.region = Graph::kRootRegion, .phase = Graph::kForward, .begin = 0, .end = step_count()}, 0);
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

  // ---- Steps and variables

  void take(const ReplayProgram& program, const ReplayProgram::Step& step) {
    const auto arguments = graph_.arguments(step.node);
    switch (step.kind) {
      case ReplayProgram::StepKind::kPlaceholder:
        give(step, graph_.text(arguments[0].string), ConstantId());
        return;
      case ReplayProgram::StepKind::kConstant:
        if (graph_.constant(arguments[0].constant).numel() > options_.max_embedded_elements) {
          give(step, "constant." + std::to_string(constants_++), arguments[0].constant);
          return;
        }
        break;
      case ReplayProgram::StepKind::kOutput:
        for (const Argument& output : graph_.list(arguments[0])) {
          plan_.outputs.push_back(
              {"output" + std::to_string(returned_++),
               output.kind == ArgumentKind::kValue ? latest_[output.ref.value.index] : CodePlan::kNoVariable, false});
        }
        return;
      case ReplayProgram::StepKind::kGradient:
        take_gradient(step.node);
        return;
      case ReplayProgram::StepKind::kAlias:
      case ReplayProgram::StepKind::kOperator:
      case ReplayProgram::StepKind::kFunction:
        break;
    }
    const uint32_t number = step_count();
    CodeStep& made = plan_.steps.emplace_back();
    made.node = step.node;
    made.grad_mode = step.grad_mode;
    const bool calls =
        step.kind == ReplayProgram::StepKind::kOperator || step.kind == ReplayProgram::StepKind::kFunction;
    plan_.uses_grad_mode |= calls && step.grad_mode;
    note_constants(arguments);
    for (const ValueId value : program.preserved(step)) {
      const uint32_t copy = new_variable(value, number);
      made.copies.push_back({latest_[value.index], copy});
      plan_.rebound_.push_back({value, number, copy});
      rebind_later_.emplace_back(value, copy);
    }
    take_results(step.node, made, number);
    for (const auto& [value, copy] : rebind_later_) latest_[value.index] = copy;
    rebind_later_.clear();
  }

  void give(const ReplayProgram::Step& step, std::string name, ConstantId constant) {
    const ValueId value = graph_.results(step.node)[0].ref.value;
    const uint32_t variable = new_variable(value, CodePlan::kGiven);
    plan_.variables[variable].last_use = 0;
    plan_.variables[variable].given = static_cast<uint32_t>(plan_.given.size());
    bind(value, variable);
    plan_.given.push_back({variable, step.node, constant, std::move(name), false, step.written});
  }

  // Tensors that a node holds as an argument, without an sg::constant.
  void note_constants(std::span<const Argument> arguments) {
    for (const Argument& argument : arguments) {
      if (argument.kind == ArgumentKind::kList) note_constants(graph_.list(argument));
      if (argument.kind != ArgumentKind::kConstant) continue;
      if (graph_.constant(argument.constant).numel() <= options_.max_embedded_elements) continue;
      uint32_t& variable = plan_.constant_variable_[argument.constant.index];
      if (variable != CodePlan::kNoVariable) continue;
      variable = static_cast<uint32_t>(plan_.variables.size());
      plan_.variables.push_back({.defined = CodePlan::kGiven, .given = static_cast<uint32_t>(plan_.given.size())});
      plan_.given.push_back(
          {variable, NodeId(), argument.constant, "constant." + std::to_string(constants_++), false, false});
    }
  }

  void take_gradient(NodeId node) {
    const auto arguments = graph_.arguments(node);
    const NodeId parameter = graph_.value(arguments[0].ref.value).producer;
    const bool named = graph_.node(parameter).target.index <= target_of(Builtin::kInput).index;
    if (arguments[1].kind != ArgumentKind::kValue) return;
    plan_.outputs.push_back({named ? graph_.text(graph_.arguments(parameter)[0].string) : "tensor",
                             latest_[arguments[1].ref.value.index], true});
  }

  void take_results(NodeId node, CodeStep& made, uint32_t number) {
    const OperatorFacts& facts = facts_.of(graph_, graph_.node(node).target);
    const auto arguments = graph_.arguments(node);
    const auto results = graph_.results(node);
    for (const uint16_t written : facts.written) {
      if (written < arguments.size()) graph_.for_each_value({&arguments[written], 1}, [&](ValueId v) { note_own(v); });
    }
    const auto& schema = graph_.target(node).schema().returns();
    for (size_t i = 0; i < results.size(); ++i) {
      const uint32_t same = same_variable(facts, arguments, results[i], i);
      graph_.for_each_value({&results[i], 1}, [&](ValueId value) {
        uint32_t variable = same;
        if (variable == CodePlan::kNoVariable) {
          variable = new_variable(value, number);
          if (i < schema.size() && plan_.variables[variable].kind != ValueKind::kTensor) {
            plan_.variables[variable].type = schema[i].type()->kind();
          }
        }
        bind(value, variable);
        made.results.push_back(variable);
        made.fresh.push_back(same == CodePlan::kNoVariable);
      });
    }
  }

  void note_own(ValueId value) {
    const CodeVariable& variable = plan_.variables[latest_[value.index]];
    if (variable.defined == CodePlan::kGiven) plan_.given[variable.given].own = true;
  }

  // The variable of the operand that the operator gives back as it was but for its contents.
  uint32_t same_variable(const OperatorFacts& facts, std::span<const Argument> arguments, const Argument& result,
                         size_t position) const {
    if (result.kind != ArgumentKind::kValue) return CodePlan::kNoVariable;
    for (const auto& alias : facts.aliases) {
      if (alias.result != position || alias.argument >= arguments.size()) continue;
      const Argument& argument = arguments[alias.argument];
      const bool written = std::ranges::find(facts.written, alias.argument) != facts.written.end();
      if (!written || argument.kind != ArgumentKind::kValue) continue;
      if (graph_.value(argument.ref.value).storage == graph_.value(result.ref.value).storage &&
          same_geometry(graph_, argument.ref.value, result.ref.value)) {
        return latest_[argument.ref.value.index];
      }
    }
    return CodePlan::kNoVariable;
  }

  void find_last_uses() {
    for (uint32_t step = 0; step < step_count(); ++step) {
      plan_.for_each_operand(step, [&](uint32_t variable) { plan_.variables[variable].last_use = step; });
      plan_.for_each_constant(graph_.arguments(plan_.steps[step].node),
                              [&](uint32_t variable) { plan_.variables[variable].last_use = step; });
      for (const uint32_t variable : plan_.steps[step].results) plan_.variables[variable].last_use = step;
    }
    for (const auto& output : plan_.outputs) {
      if (output.variable != CodePlan::kNoVariable) plan_.variables[output.variable].last_use = step_count();
    }
  }

  // ---- Blocks

  void find_regions() {
    std::vector<std::vector<RegionId>> chains(graph_.region_count());
    for (uint32_t r = 1; r < graph_.region_count(); ++r) {
      const RegionId id(r);
      const RegionId parent = graph_.region(id).parent;
      if (parent.valid() && parent.index < r) chains[r] = chains[parent.index];
      if (is_function_region(graph_, id) && chains[r].size() < kMaxDepth) chains[r].push_back(id);
    }
    chain_of_.resize(plan_.steps.size());
    for (uint32_t step = 0; step < step_count(); ++step) {
      const Node& node = graph_.node(plan_.steps[step].node);
      if (node.region.valid() && node.region.index < chains.size()) chain_of_[step] = chains[node.region.index];
      const bool after_forward = node.phase == Graph::kBackward || node.phase == Graph::kOptimizer;
      if (chain_of_[step].empty() && after_forward && step != 0 && phase(step - 1) == node.phase) {
        chain_of_[step] = chain_of_[step - 1];
      }
    }
  }

  PhaseId phase(uint32_t step) const { return graph_.node(plan_.steps[step].node).phase; }
  RegionId region_at(uint32_t step, size_t depth) const {
    return depth < chain_of_[step].size() ? chain_of_[step][depth] : RegionId();
  }
  bool has_checkpoint(uint32_t begin, uint32_t end, size_t depth) const {
    for (uint32_t step = begin; step < end; ++step) {
      for (size_t d = depth; d < chain_of_[step].size(); ++d) {
        if (graph_.region(chain_of_[step][d]).kind == RegionKind::kCheckpoint) return true;
      }
    }
    return false;
  }

  // Depth is that of the modules, at most kMaxDepth.
  uint32_t build(CodeBlock block, size_t depth) {
    fill(block, block.begin, block.end, depth);
    while (block.items.size() > static_cast<size_t>(std::max(options_.max_function_items, 2))) {
      const size_t before = block.items.size();
      cut(block, /*by_phase=*/true);
      if (block.items.size() == before) cut(block, /*by_phase=*/false);  // the phases alternate
    }
    return finish(std::move(block));
  }

  void fill(CodeBlock& block, uint32_t begin, uint32_t end, size_t depth) {
    for (uint32_t step = begin; step < end;) {
      const RegionId child = region_at(step, depth);
      uint32_t stop = step + 1;
      while (stop < end && region_at(stop, depth) == child && phase(stop) == phase(step)) ++stop;
      if (!child.valid()) {
        for (; step < stop; ++step) block.items.push_back({.step = step});
        continue;
      }
      const bool checkpoint = graph_.region(child).kind == RegionKind::kCheckpoint;
      if (checkpoint || stop - step >= static_cast<uint32_t>(std::max(options_.min_function_nodes, 1))) {
        const uint32_t inner = build(
            {.region = child, .checkpoint = checkpoint, .phase = phase(step), .begin = step, .end = stop}, depth + 1);
        block.items.push_back({.step = step, .block = inner});
      } else if (has_checkpoint(step, stop, depth + 1)) {
        fill(block, step, stop, depth + 1);
      } else {
        for (uint32_t s = step; s < stop; ++s) block.items.push_back({.step = s});
      }
      step = stop;
    }
  }

  void cut(CodeBlock& block, bool by_phase) {
    const auto most = static_cast<size_t>(std::max(options_.max_function_items, 2));
    std::vector<CodeBlock::Item> items;
    for (size_t i = 0; i < block.items.size();) {
      const PhaseId first = phase(block.items[i].step);
      size_t stop = i;
      while (stop < block.items.size() && stop - i < most && (!by_phase || phase(block.items[stop].step) == first)) {
        ++stop;
      }
      if (stop - i == 1) {
        items.push_back(block.items[i]);
      } else {
        const uint32_t end = stop < block.items.size() ? block.items[stop].step : block.end;
        CodeBlock part{.region = block.region, .part = true, .phase = first, .begin = block.items[i].step, .end = end};
        part.items.assign(block.items.begin() + static_cast<ptrdiff_t>(i),
                          block.items.begin() + static_cast<ptrdiff_t>(stop));
        items.push_back({.step = part.begin, .block = finish(std::move(part))});
      }
      i = stop;
    }
    block.items = std::move(items);
  }

  // Of a checkpoint or scope: what the modules in it have in common.
  std::string path_of(const CodeBlock& block) const {
    const RegionKind kind = graph_.region(block.region).kind;
    if (kind != RegionKind::kCheckpoint && kind != RegionKind::kScope) return std::string(plan_.path_of(block.region));
    std::optional<std::string> common;
    for (const CodeBlock::Item& item : block.items) {
      const std::string path = item.is_block()
                                   ? plan_.blocks[item.block].path
                                   : std::string(plan_.path_of(graph_.node(plan_.steps[item.step].node).region));
      if (!common) common = path;
      while (!common->empty() && path != *common && !path.starts_with(*common + ".")) {
        const size_t dot = common->rfind('.');
        common->resize(dot == std::string::npos ? 0 : dot);
      }
    }
    return common.value_or("");
  }

  uint32_t finish(CodeBlock block) {
    block.path = path_of(block);
    stamp_.resize(plan_.variables.size(), 0);
    ++stamp_now_;
    const auto inside = [&](uint32_t variable) {
      const uint32_t defined = plan_.variables[variable].defined;
      return defined != CodePlan::kGiven && defined >= block.begin && defined < block.end;
    };
    const auto use = [&](uint32_t variable) {
      if (inside(variable) || stamp_[variable] == stamp_now_) return;
      stamp_[variable] = stamp_now_;
      block.inputs.push_back(variable);
    };
    const auto make = [&](uint32_t variable) {
      if (plan_.variables[variable].last_use >= block.end) block.outputs.push_back(variable);
    };
    for (const CodeBlock::Item& item : block.items) {
      if (item.is_block()) {
        for (const uint32_t variable : plan_.blocks[item.block].inputs) use(variable);
        for (const uint32_t variable : plan_.blocks[item.block].outputs) make(variable);
        continue;
      }
      const CodeStep& step = plan_.steps[item.step];
      plan_.for_each_operand(item.step, use);
      plan_.for_each_constant(graph_.arguments(step.node), use);
      for (const CodeStep::Copy& copy : step.copies) make(copy.to);
      for (size_t i = 0; i < step.results.size(); ++i) {
        if (step.fresh[i]) make(step.results[i]);
      }
    }
    plan_.blocks.push_back(std::move(block));
    return static_cast<uint32_t>(plan_.blocks.size()) - 1;
  }

  const Graph& graph_;
  const CodegenOptions& options_;
  CodePlan plan_;
  OperatorFactsCache facts_;
  int constants_ = 0;
  int returned_ = 0;
  std::vector<uint32_t> latest_;  // by value: variable now
  std::vector<std::pair<ValueId, uint32_t>> rebind_later_;
  std::vector<std::vector<RegionId>> chain_of_;  // by step: regions that are functions, outermost first
  std::vector<uint32_t> stamp_;                  // by variable
  uint32_t stamp_now_ = 0;
};

CodePlan CodePlan::make(const Graph& graph, const CodegenOptions& options) { return CodePlanner(graph, options).run(); }

uint32_t CodePlan::variable_of(ValueId value, uint32_t step) const {
  uint32_t variable = variable_of_[value.index];
  if (rebound_.empty()) return variable;
  auto at = std::ranges::lower_bound(rebound_, value.index, {}, [](const Rebound& r) { return r.value.index; });
  for (; at != rebound_.end() && at->value == value && at->step < step; ++at) variable = at->variable;
  return variable;
}

std::string_view CodePlan::path_of(RegionId region) const {
  while (region.valid() && graph->region(region).kind != RegionKind::kRoot) {
    const Region& r = graph->region(region);
    if (r.kind == RegionKind::kModule) return graph->text_or_empty(r.name);
    region = r.parent;
  }
  return {};
}

std::optional<uint32_t> CodePlan::variable_of_constant(ConstantId constant) const {
  const uint32_t variable = constant_variable_[constant.index];
  return variable == kNoVariable ? std::nullopt : std::optional(variable);
}

}  // namespace shadowgraph
