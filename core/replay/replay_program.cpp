#include "core/replay/replay_program.h"

#include "core/replay/body_function.h"
#include "ir/analysis/identity.h"
#include "ir/operators/operator_facts.h"
#include "ir/operators/operator_name.h"
#include "ir/operators/schema_changes.h"
#include "shadowgraph/capture/functions.h"
#include "shadowgraph/error.h"
#include "shadowgraph/graph/libtorch.h"
#include "shadowgraph/graph/text.h"

namespace shadowgraph {

std::vector<NodeId> slice_for(const Graph& graph, const Effects& effects, std::span<const ValueId> values) {
  std::vector<bool> needed_value(graph.value_capacity());
  std::vector<bool> needed_storage(graph.storage_count() + effects.pseudo_storage_count());
  const auto need = [&](ValueId value) {
    needed_value[value.index] = true;
    const StorageId storage = graph.value(value).storage;
    if (storage.valid()) needed_storage[storage.index] = true;
  };
  for (const ValueId value : values) {
    if (!value.valid() || value.index >= graph.value_capacity() || !graph.value(value).producer.valid() ||
        graph.is_erased(graph.value(value).producer)) {
      throw Error("cannot slice for value %" + std::to_string(value.index) +
                  " (value id): it is not in the graph or was erased");
    }
    need(value);
  }

  std::vector<NodeId> nodes;
  // Backwards: a storage becomes needed at its last reader, so that later writes are not part of the slice.
  for (NodeId node = graph.last(); node.valid(); node = graph.node(node).previous) {
    if (is_end(graph.node(node).target)) continue;
    bool needed = false;
    graph.for_each_output(node, [&](ValueId value) { needed |= needed_value[value.index]; });
    for (const StorageWrite& write : effects.writes(node)) needed |= needed_storage[write.storage.index];
    if (!needed) continue;
    nodes.push_back(node);
    graph.for_each_input(node, need);
    for (const StorageVersion& read : effects.reads(node)) needed_storage[read.storage.index] = true;
  }
  std::reverse(nodes.begin(), nodes.end());
  return nodes;
}

namespace {

// The graph precedes the interpreter that refers to it.
struct Body {
  Graph graph;
  Interpreter interpreter;

  Body(Graph parsed, const InterpreterOptions& options)
      : graph(std::move(parsed)),
        interpreter(graph, {.device = options.device, .check_results = options.check_results}) {}
};

// Separates outputs that are the same tensor, such as self and the result of an in-place operator, so that changing the
// geometry of one (t_) does not change the other.
void part(std::vector<at::Tensor>& outputs) {
  for (size_t i = 1; i < outputs.size(); ++i) {
    const auto is_same = [&](const at::Tensor& earlier) { return earlier.is_same(outputs[i]); };
    if (!outputs[i].defined()) continue;
    if (std::ranges::any_of(std::span(outputs).first(i), is_same)) outputs[i] = shallow_copy(outputs[i]);
  }
}

using Step = ReplayProgram::Step;
using StepKind = ReplayProgram::StepKind;

ValueId first_tensor(const Graph& graph, const Argument& argument) {
  ValueId first;
  graph.for_each_value({&argument, 1}, [&](ValueId value) {
    if (!first.valid()) first = value;
  });
  return first;
}

class Compiler {
 public:
  Compiler(const Graph& graph, const InterpreterOptions& options)
      : graph_(graph), options_(options), program_(std::make_unique<ReplayProgram>(graph)) {}

  std::unique_ptr<const ReplayProgram> run() {
    std::vector<NodeId> nodes;
    if (!options_.nodes.empty()) {
      nodes = options_.nodes;
    } else if (options_.only.empty()) {
      nodes.reserve(graph_.node_count());
      for (const NodeId node : graph_.nodes()) nodes.push_back(node);
    } else {
      nodes = slice_for(graph_, Effects::of(graph_), options_.only);
    }
    const bool grouped = options_.groups != nullptr && options_.nodes.empty() && !options_.autograd;
    if (grouped) nodes = in_order_of_groups(nodes);
    for (const NodeId node : graph_.nodes()) {
      if (is_bound(graph_, node)) position_[node] = program_->all_placeholders++;
    }
    find_last_uses(nodes);
    find_written_storages(nodes);
    program_->operators.resize(graph_.target_count());
    program_->functions.resize(graph_.target_count());
    looked_up_.resize(graph_.target_count());
    program_->steps.reserve(nodes.size());
    same_tensor_.resize(graph_.value_capacity(), kAlone);
    for (const NodeId node : nodes) compile(node);
    if (grouped) find_groups(nodes);
    return std::move(program_);
  }

 private:
  static constexpr uint32_t kAlone = 0xFFFFFFFFU;

  std::vector<NodeId> in_order_of_groups(const std::vector<NodeId>& nodes) const {
    IdMap<NodeId, uint32_t> wanted;
    for (const NodeId node : nodes) wanted[node] = 1;
    std::vector<NodeId> ordered;
    ordered.reserve(nodes.size());
    for (const NodeId node : options_.groups->order()) {
      const bool known = node.index < graph_.node_capacity() && !graph_.is_erased(node);
      if (known && std::exchange(wanted[node], 0U) != 0) ordered.push_back(node);
    }
    if (ordered.size() != nodes.size() || options_.groups->order().size() != graph_.node_count()) {
      throw Error("InterpreterOptions::groups do not match the graph; create them again after changing it");
    }
    return ordered;
  }

  void find_groups(const std::vector<NodeId>& nodes) {
    IdMap<NodeId, uint32_t> step_of;
    for (uint32_t step = 0; step < nodes.size(); ++step) step_of[nodes[step]] = step + 1;
    std::vector<bool> chosen(graph_.value_capacity());
    for (const ValueId value : options_.only) chosen[value.index] = true;
    const auto& groups = options_.groups->groups();
    for (uint32_t number = 0; number < groups.size(); ++number) {
      const uint32_t begin = step_of[groups[number].nodes[0]];
      if (begin != 0 && holds_whole(groups[number], begin - 1, nodes, chosen)) add_group(number, begin - 1);
    }
  }

  // Returns whether the slice contains the whole group and needs none of its internal values.
  bool holds_whole(const NodeGroups::Group& group, uint32_t begin, const std::vector<NodeId>& nodes,
                   const std::vector<bool>& chosen) const {
    if (begin + group.nodes.size() > nodes.size()) return false;
    bool whole = std::equal(group.nodes.begin(), group.nodes.end(), nodes.begin() + begin);
    for (const NodeId node : group.nodes) {
      graph_.for_each_output(node, [&](ValueId value) {
        if (chosen[value.index]) whole = whole && std::ranges::find(group.results, value) != group.results.end();
      });
    }
    return whole;
  }

  void add_group(uint32_t number, uint32_t begin) {
    const auto end = begin + static_cast<uint32_t>(options_.groups->groups()[number].nodes.size());
    auto& values = program_->values;
    ReplayProgram::Range released{static_cast<uint32_t>(values.size()), 0};
    for (uint32_t step = begin; step < end; ++step) {
      const ReplayProgram::Range range = program_->steps[step].released;
      for (uint32_t i = 0; i < range.size; ++i) values.push_back(ValueId(values[range.begin + i]));
    }
    released.size = static_cast<uint32_t>(values.size()) - released.begin;
    program_->steps[begin].group = static_cast<uint32_t>(program_->groups.size());
    program_->groups.push_back({number, end, released});
  }

  void find_last_uses(const std::vector<NodeId>& nodes) {
    last_use_.assign(graph_.value_capacity(), 0);
    for (uint32_t step = 0; step < nodes.size(); ++step) {
      graph_.for_each_output(nodes[step], [&](ValueId value) { last_use_[value.index] = step; });
      graph_.for_each_input(nodes[step], [&](ValueId value) { last_use_[value.index] = step; });
    }
    for (const ValueId value : options_.only) last_use_[value.index] = static_cast<uint32_t>(nodes.size());
  }

  void find_written_storages(const std::vector<NodeId>& nodes) {
    written_.assign(graph_.storage_count(), false);
    for (const NodeId node : nodes) {
      const OperatorFacts& facts = graph_.facts(node);
      const auto arguments = graph_.arguments(node);
      const auto write = [&](ValueId value) {
        const StorageId storage = graph_.value(value).storage;
        if (storage.valid()) written_[storage.index] = true;
      };
      program_->random |= facts.random;
      const bool opaque = std::ranges::any_of(
          arguments, [](const Argument& argument) { return argument.kind == ArgumentKind::kOpaque; });
      if (facts.unknown || opaque) {
        graph_.for_each_value(arguments, write);
      } else if (!facts.written.empty() && writes_now(graph_, node, facts)) {
        for (const uint16_t position : facts.written) {
          if (position < arguments.size()) graph_.for_each_value(arguments.subspan(position, 1), write);
        }
      }
    }
  }

  c10::Device mapped(c10::Device device) const { return options_.device ? *options_.device : device; }

  void note_device(c10::Device device, NodeId node) {
    for (const auto& use : program_->devices) {
      if (use.device == device) return;
    }
    program_->devices.push_back({device, node});
  }

  void note_problem(std::string what) {
    const auto step = static_cast<uint32_t>(program_->steps.size());
    if (program_->problem(step) == nullptr) program_->problems.push_back({step, std::move(what)});
  }

  void compile_arguments(Step& step, const Signature& formals) {
    const auto device = [this](c10::Device named) {
      note_device(mapped(named), node_);
      return mapped(named);
    };
    const auto problem = [this](const std::string& what) { note_problem(what); };
    step.call = program_->templates.add(node_, formals, {.device = device, .problem = problem});
    if (step.call.patches.size == 0) name_factory_options(step, formals);
  }

  void compile_generator(Step& step) {
    const auto own = program_generator_of(graph_, node_);
    if (!own) return;
    auto& known = program_->generators;
    const auto same = std::ranges::find(known, own->name, &ProgramGenerator::name);
    step.generator = static_cast<uint32_t>(same - known.begin());
    step.generator_position = own->position;
    if (same == known.end()) known.push_back(*own);
  }

  // Fills device and dtype arguments that defaulted at capture from the result's.
  void name_factory_options(const Step& step, const Signature& formals) {
    const auto results = graph_.results(node_);
    const ValueId result = results.empty() ? ValueId() : first_tensor(graph_, results[0]);
    if (!result.valid() || graph_.value(result).kind != ValueKind::kTensor) return;
    for (uint32_t i = 0; i < formals.arguments.size() && i < step.call.arguments.size; ++i) {
      c10::IValue& argument = program_->templates.at(step.call, i);
      if (argument.isNone() && formals.arguments[i].type.type == TypeClass::kDtype) {
        argument = static_cast<int64_t>(graph_.value(result).dtype);
      }
      if (formals.arguments[i].type.type != TypeClass::kDevice || !argument.isNone()) continue;
      argument = mapped(graph_.value(result).device());
      note_device(argument.toDevice(), node_);
    }
  }

  void compile_results(Step& step) {
    step.results.begin = static_cast<uint32_t>(program_->result_codes.size());
    for (const Argument& result : graph_.results(node_)) push_code(result);
    step.results.size = static_cast<uint32_t>(program_->result_codes.size()) - step.results.begin;
  }

  void push_code(const Argument& result) {
    auto& codes = program_->result_codes;
    if (result.kind == ArgumentKind::kValue) {
      codes.push_back(result.ref.value.index);
    } else if (result.kind == ArgumentKind::kList) {
      const auto elements = graph_.list(result);
      codes.push_back(ReplayProgram::kList | static_cast<uint32_t>(elements.size()));
      for (const Argument& element : elements) {
        codes.push_back(element.kind == ArgumentKind::kValue ? element.ref.value.index : ReplayProgram::kNoValue);
      }
    } else {
      codes.push_back(ReplayProgram::kNoValue);
    }
  }

  void compile_releases(Step& step) {
    const auto number = static_cast<uint32_t>(program_->steps.size());
    auto& values = program_->values;
    step.released.begin = static_cast<uint32_t>(values.size());
    const auto release = [&](ValueId value) {
      uint32_t& last = last_use_[value.index];
      if (last != number) return;
      last = kAlone;  // only once, even if the node uses it several times
      values.push_back(value);
    };
    graph_.for_each_input(node_, release);
    graph_.for_each_output(node_, release);
    step.released.size = static_cast<uint32_t>(values.size()) - step.released.begin;
  }

  void compile_identity(Step& step) {
    const OperatorFacts& facts = graph_.facts(node_);
    const auto arguments = graph_.arguments(node_);
    const auto results = graph_.results(node_);
    step.preserved.begin = static_cast<uint32_t>(program_->values.size());
    const bool gives_self = graph_.target(node_).name() == "aten::lift_fresh";
    const auto follow = [&](size_t argument, size_t result, bool written) {
      if (argument >= arguments.size() || result >= results.size() || results[result].kind != ArgumentKind::kValue ||
          arguments[argument].kind != ArgumentKind::kValue) {
        return;
      }
      const ValueId before = arguments[argument].ref.value, after = results[result].ref.value;
      if (same_place(graph_, before, after)) {
        join(before, after);
      } else if (written) {
        preserve(before);
      }
    };
    // In-place operators return self. set_ does too, although its schema declares an alias of the source.
    const bool in_place = !facts.written.empty() && is_in_place_name(graph_.target(node_).signature().name);
    if (in_place) follow(facts.written[0], 0, true);
    for (const auto& alias : facts.aliases) {
      if (in_place && alias.result == 0) continue;
      const bool written = std::find(facts.written.begin(), facts.written.end(), alias.argument) != facts.written.end();
      if (written || !alias.always || gives_self) follow(alias.argument, alias.result, written);
    }
    step.preserved.size = static_cast<uint32_t>(program_->values.size()) - step.preserved.begin;
  }

  void join(ValueId before, ValueId after) {
    uint32_t& set = same_tensor_[before.index];
    if (set == kAlone) {
      set = static_cast<uint32_t>(sets_.size());
      sets_.push_back({before});
    }
    same_tensor_[after.index] = set;
    sets_[set].push_back(after);
  }

  // Linear over the whole program: each value is preserved at most once, and is a separate tensor afterwards.
  void preserve(ValueId changed) {
    const auto number = static_cast<uint32_t>(program_->steps.size());
    const auto keep = [&](ValueId value) {
      if (last_use_[value.index] > number && last_use_[value.index] != kAlone) program_->values.push_back(value);
      same_tensor_[value.index] = kAlone;
    };
    const uint32_t set = same_tensor_[changed.index];
    if (set == kAlone) {
      keep(changed);
    } else {
      for (const ValueId value : sets_[set]) keep(value);
      sets_[set].clear();
    }
  }

  void look_up_operator(Step& step, const Target& target, TargetId id) {
    auto& handle = program_->operators[id.index];
    if (!looked_up_[id.index]) handle = find_operator(target);
    looked_up_[id.index] = true;
    if (handle) {
      step.op = &*handle;
      return;
    }
    if (has_another_schema(target)) {
      note_problem("the operator has a different schema in this process than " + target.schema_text() +
                   "; capture the graph again with this libtorch version");
    } else if (const std::string_view why = why_removed(target.name()); !why.empty()) {
      note_problem("operator " + target.name() + " does not exist: " + std::string(why));
    } else {
      note_problem("the operator is not registered in this process; load the library that registers " + target.name());
    }
  }

  void find_function_of(Step& step, const Target& target, TargetId id) {
    auto& function = program_->functions[id.index];
    if (!looked_up_[id.index]) function = find_function(target);
    looked_up_[id.index] = true;
    step.function = function.get();
    if (function != nullptr) return;
    if (const std::string_view body = graph_.note(node_, kBodyNote); !body.empty()) {
      program_->bodies.push_back(function_of_body(target, body, options_));
      step.function = program_->bodies.back().get();
    } else {
      note_problem("the function is not registered in this process" +
                   std::string(find_function(target.name()) == nullptr ? "" : " with this schema") +
                   "; call shadowgraph::register_function(\"" + target.schema_text() + "\", ...) first");
    }
  }

  // Kernels reject an `out=` with gaps or no elements if it is the same tensor as an operand, but not if it is another
  // tensor on the same memory. Two tensors of the program may be one value here (`.data =`).
  bool has_loose_out() const {
    const auto& formals = graph_.target(node_).signature().arguments;
    const auto arguments = graph_.arguments(node_);
    for (size_t i = 0; i < arguments.size() && i < formals.size(); ++i) {
      if (!formals[i].out || arguments[i].kind != ArgumentKind::kValue) continue;
      const ValueId out = arguments[i].ref.value;
      if (graph_.numel(out) == 0 || !is_dense(view_of(graph_, out))) return true;
    }
    return false;
  }

  void compile(NodeId node) {
    node_ = node;
    const TargetId id = graph_.node(node).target;
    const Target& target = graph_.target(id);
    Step step;
    step.node = node;
    step.grad_mode = graph_.node(node).flags.grad_mode;
    if (target.kind() == TargetKind::kBuiltin) {
      compile_builtin(step, static_cast<Builtin>(id.index));
    } else {
      program_->grad_mode |= step.grad_mode;
      if (target.kind() == TargetKind::kOperator) {
        look_up_operator(step, target, id);
        step.loose_out = has_loose_out();
        step.transfers = step.op != nullptr && PendingTransfers::transfers(*step.op);
        program_->transfers |= step.transfers;
      } else {
        step.kind = StepKind::kFunction;
        find_function_of(step, target, id);
      }
      compile_arguments(step, graph_.target(id).signature());
      if (graph_.facts(node).random) compile_generator(step);
      compile_identity(step);
    }
    compile_results(step);
    compile_releases(step);
    program_->steps.push_back(step);
  }

  void compile_builtin(Step& step, Builtin builtin) {
    static constexpr StepKind kKinds[kBuiltinCount] = {
        StepKind::kPlaceholder, StepKind::kPlaceholder, StepKind::kPlaceholder, StepKind::kConstant,
        StepKind::kAlias,       StepKind::kOutput,      StepKind::kGradient};
    const TargetId target = target_of(builtin);
    if (target.index >= kBuiltinCount) {
      return note_problem("unknown built-in " + graph_.target(node_).name() +
                          "; the graph needs a newer version of shadowgraph");
    }
    step.kind = kKinds[target.index];
    if (is_placeholder(target)) {
      const ValueId value = first_tensor(graph_, graph_.results(node_)[0]);
      step.written = written_[graph_.value(value).storage.index];
    }
    if (step.kind != StepKind::kPlaceholder) return;
    program_->placeholders.push_back({static_cast<uint32_t>(program_->steps.size()), position_[node_],
                                      &graph_.text(graph_.arguments(node_)[0].string)});
  }

  const Graph& graph_;
  const InterpreterOptions& options_;
  std::unique_ptr<ReplayProgram> program_;
  NodeId node_;
  IdMap<NodeId, uint32_t> position_;   // of placeholders, among all
  std::vector<bool> looked_up_;        // by TargetId
  std::vector<uint32_t> last_use_;     // by value: step
  std::vector<bool> written_;          // by storage
  std::vector<uint32_t> same_tensor_;  // by value: index into sets_ of values with the same TensorImpl
  std::vector<std::vector<ValueId>> sets_;
};

}  // namespace

std::shared_ptr<const RegisteredFunction> function_of_body(const Target& target, std::string_view text,
                                                           const InterpreterOptions& options) {
  Graph graph = parse(text);
  size_t inputs = 0, outputs = 0;
  NodeId last;
  for (const NodeId node : graph.nodes()) {
    inputs += graph.node(node).target == target_of(Builtin::kInput);
    if (graph.node(node).target == target_of(Builtin::kOutput)) outputs = graph.list(graph.arguments(node)[0]).size();
    last = node;
  }
  const auto tensors = std::ranges::count_if(target.signature().arguments, [](const Formal& formal) {
    return formal.type.type == TypeClass::kTensor && !formal.type.optional;
  });
  if (inputs != static_cast<size_t>(tensors) || outputs != target.signature().returns.size()) {
    throw ReplayError("the body of " + target.name() + " takes " + std::to_string(inputs) + " tensors and returns " +
                          std::to_string(outputs) + ", which does not match " + target.schema_text(),
                      NodeId());
  }
  const auto body = std::make_shared<Body>(std::move(graph), options);
  const FunctionKernel kernel = [body](std::span<const c10::IValue> arguments) {
    std::vector<at::Tensor> tensors;
    for (const c10::IValue& argument : arguments) {
      if (argument.isTensor()) tensors.push_back(argument.toTensor());
    }
    std::vector<at::Tensor> outputs = body->interpreter.run(Bindings().in_order(std::move(tensors))).outputs;
    part(outputs);
    return std::vector<c10::IValue>(outputs.begin(), outputs.end());
  };
  return std::make_shared<const RegisteredFunction>(RegisteredFunction{target.schema_text(), kernel, kernel});
}

const ReplayProgram::Problem* ReplayProgram::problem(uint32_t step) const {
  const auto found = std::lower_bound(problems.begin(), problems.end(), step,
                                      [](const Problem& problem, uint32_t wanted) { return problem.step < wanted; });
  return found != problems.end() && found->step == step ? &*found : nullptr;
}

std::unique_ptr<const ReplayProgram> ReplayProgram::compile(const Graph& graph, const InterpreterOptions& options) {
  return Compiler(graph, options).run();
}

}  // namespace shadowgraph
