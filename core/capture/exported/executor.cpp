#include "core/capture/exported/executor.h"

#include <ATen/ScalarOps.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/function_schema.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <span>

#include "core/capture/recorder.h"
#include "core/fake/thread_state.h"
#include "core/libtorch/error_text.h"
#include "shadowgraph/capture/activation_checkpoint.h"
#include "shadowgraph/capture/capture.h"
#include "shadowgraph/error.h"

namespace shadowgraph {
namespace {

using IValues = std::vector<c10::IValue>;
using ValueTable = IValues;  // values computed so far in a graph, by value number
using ModuleStack = std::vector<SavedModuleCall>;

// Opens the modules that nodes were called in as regions of the active capture.
class ModuleRegions {
 public:
  // `around`: modules that are already entered.
  explicit ModuleRegions(ModuleStack around = {}) : outer_count_(around.size()), open_(std::move(around)) {}
  ~ModuleRegions() { leave_to(outer_count_); }
  C10_DISABLE_COPY_AND_ASSIGN(ModuleRegions);

  // Leaves the modules that the next node is not in, and enters those it is in.
  void move_to(const ModuleStack& stack) {
    size_t common = 0;
    while (common < stack.size() && common < open_.size() && stack[common].key == open_[common].key) ++common;
    leave_to(std::max(common, outer_count_));
    for (size_t i = common; i < stack.size(); ++i) {
      if (i < outer_count_) continue;  // differs from an enclosing module, which cannot be left here
      if (recorder_ != nullptr) recorder_->enter_region(RegionKind::kModule, stack[i].path, stack[i].class_name);
      open_.push_back(stack[i]);
    }
  }

 private:
  void leave_to(size_t depth) {
    while (open_.size() > depth) {
      open_.pop_back();
      if (recorder_ != nullptr) recorder_->leave_region();
    }
  }

  Recorder* const recorder_ = current_recorder();
  const size_t outer_count_;  // number of open modules that the caller leaves
  ModuleStack open_;
};

const c10::IValue& value_of_operand(const ExportedOperand& operand, const ValueTable& values) {
  return operand.kind == ExportedOperand::Kind::kValue ? values[operand.value] : operand.literal;
}

[[noreturn]] void refuse_argument(const c10::Argument& argument, const std::string& what) {
  throw Error("argument '" + argument.name() + "' is " + what + ", but the operator takes " + argument.type()->str());
}

std::string kind_text(const ExportedOperand& operand, const ValueTable& values) {
  switch (operand.kind) {
    case ExportedOperand::Kind::kList:
      return "a list";
    case ExportedOperand::Kind::kGraph:
      return "a graph";
    case ExportedOperand::Kind::kUnsupported:
      return operand.literal.toStringRef();
    case ExportedOperand::Kind::kLiteral:
    case ExportedOperand::Kind::kValue:
      return "of type " + value_of_operand(operand, values).tagKind();
  }
  return "";
}

at::Tensor number_as_tensor(const c10::IValue& number) {
  at::Tensor tensor = c10::scalar_to_tensor(number.toScalar());  // a real CPU tensor, even inside a fake mode
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

// Converts a value that is not a list; empty if it has another type.
std::optional<c10::IValue> converted(const c10::TypePtr& type, const c10::IValue& value) {
  switch (type->kind()) {
    case c10::TypeKind::TensorType:
      if (value.isTensor()) return value;
      if (value.isNone()) return at::Tensor();
      if (value.isScalar() || value.isBool()) return number_as_tensor(value);
      return std::nullopt;
    case c10::TypeKind::NumberType:
      if (value.isScalar() || value.isBool()) return value;
      if (value.isTensor()) return value.toTensor().item();
      return std::nullopt;
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
      if (value.isInt()) return value;
      if (value.isBool()) return static_cast<int64_t>(value.toBool());
      return std::nullopt;
    case c10::TypeKind::FloatType:
    case c10::TypeKind::SymFloatType:
      if (value.isDouble()) return value;
      if (value.isInt()) return static_cast<double>(value.toInt());
      return std::nullopt;
    case c10::TypeKind::BoolType:
    case c10::TypeKind::SymBoolType:
      return value.isBool() ? std::optional(value) : std::nullopt;
    case c10::TypeKind::StringType:
      return value.isString() ? std::optional(value) : std::nullopt;
    case c10::TypeKind::DeviceObjType:
      return value.isDevice() ? std::optional(value) : std::nullopt;
    case c10::TypeKind::OptionalType:
      if (value.isNone()) return value;
      return converted(type->expectRef<c10::OptionalType>().getElementType(), value);
    default:
      return std::nullopt;
  }
}

// Checks the range of dtypes, layouts and memory formats, which are plain integers in a schema: invalid values must not
// reach a kernel.
bool is_valid_enum(const c10::Argument& argument, const c10::IValue& value) {
  c10::TypePtr type = argument.real_type();
  if (type->kind() == c10::TypeKind::OptionalType) type = type->expectRef<c10::OptionalType>().getElementType();
  int64_t count = INT64_MAX;
  if (type->kind() == c10::TypeKind::ScalarTypeType) count = static_cast<int64_t>(c10::ScalarType::Undefined);
  if (type->kind() == c10::TypeKind::LayoutType) count = static_cast<int64_t>(c10::Layout::NumOptions);
  if (type->kind() == c10::TypeKind::MemoryFormatType) count = static_cast<int64_t>(c10::MemoryFormat::NumOptions);
  if (count == INT64_MAX) return true;
  return value.isInt() && value.toInt() >= 0 && value.toInt() < count;
}

c10::IValue list_for(const c10::Argument& argument, const c10::TypePtr& element, const ExportedOperand& operand,
                     const ValueTable& values) {
  // The element type distinguishes lists of optional tensors, tensors and numbers. Symbolic types are plain here.
  c10::TypePtr stored = element;
  if (element->kind() == c10::TypeKind::SymIntType) stored = c10::IntType::get();
  if (element->kind() == c10::TypeKind::SymFloatType) stored = c10::FloatType::get();
  if (element->kind() == c10::TypeKind::SymBoolType) stored = c10::BoolType::get();
  c10::impl::GenericList list(stored);
  const auto add = [&](const ExportedOperand& one) {
    if (one.kind != ExportedOperand::Kind::kLiteral && one.kind != ExportedOperand::Kind::kValue) {
      refuse_argument(argument, "a list with " + kind_text(one, values));
    }
    auto value = converted(stored, value_of_operand(one, values));
    if (!value) refuse_argument(argument, "a list with an element " + kind_text(one, values));
    list.push_back(*std::move(value));
  };
  if (operand.kind == ExportedOperand::Kind::kList) {
    for (const ExportedOperand& one : operand.elements) add(one);
  } else {
    // One number is broadcast: int[2] stride=1.
    for (int i = 0; i < argument.N().value_or(1); ++i) add(operand);
  }
  return list;
}

void append_plain(const ExportedOperand& operand, const ValueTable& values, IValues& result) {
  switch (operand.kind) {
    case ExportedOperand::Kind::kLiteral:
    case ExportedOperand::Kind::kValue:
      result.push_back(value_of_operand(operand, values));
      return;
    case ExportedOperand::Kind::kList:
      for (const ExportedOperand& element : operand.elements) append_plain(element, values, result);
      return;
    case ExportedOperand::Kind::kGraph:
    case ExportedOperand::Kind::kUnsupported:
      throw Error("unsupported operand: " + kind_text(operand, values));
  }
}

// Converts an operand to the type of the schema's argument. An int for a float becomes a float; a number for a tensor
// becomes a wrapped number, which is not recorded as a tensor. Throws Error that names the argument.
c10::IValue argument_for(const c10::Argument& argument, const ExportedOperand& operand, const ValueTable& values) {
  c10::TypePtr type = argument.type();
  if (type->kind() == c10::TypeKind::OptionalType) {
    if (operand.kind == ExportedOperand::Kind::kLiteral && operand.literal.isNone()) return {};
    type = type->expectRef<c10::OptionalType>().getElementType();
  }
  if (operand.kind == ExportedOperand::Kind::kGraph || operand.kind == ExportedOperand::Kind::kUnsupported) {
    refuse_argument(argument, kind_text(operand, values));
  }
  if (type->kind() == c10::TypeKind::ListType) {
    return list_for(argument, type->expectRef<c10::ListType>().getElementType(), operand, values);
  }
  if (operand.kind == ExportedOperand::Kind::kList) refuse_argument(argument, "a list");
  auto value = converted(type, value_of_operand(operand, values));
  if (!value || !is_valid_enum(argument, *value)) refuse_argument(argument, kind_text(operand, values));
  return *std::move(value);
}

// Returns all operands in order, lists flattened, for targets without a schema. Throws Error for graphs.
IValues flat_arguments(std::span<const NamedOperand> operands, const ValueTable& values) {
  IValues result;
  for (const NamedOperand& operand : operands) append_plain(operand.operand, values, result);
  return result;
}

// Runs a subgraph of the node on the given inputs.
using RunGraph = std::function<IValues(const ExportedGraph&, IValues)>;

struct HigherOrderCall {
  const ExportedNode& node;
  ValueTable& values;  // values last used by the node are moved out, so that the subgraph can free them early
  RunGraph run;        // runs immediately
  RunGraph run_later;  // may also run after the program has returned: in backward
};

[[noreturn]] void refuse_form(const std::string& why) { throw Error("unexpected form of the call: " + why); }

const ExportedGraph& graph_at(const HigherOrderCall& call, size_t position) {
  if (position >= call.node.inputs.size() || call.node.inputs[position].operand.kind != ExportedOperand::Kind::kGraph) {
    refuse_form("input " + std::to_string(position) + " should be a graph");
  }
  return *call.node.inputs[position].operand.graph;
}

// Returns the inputs before the graph.
IValues leading(const HigherOrderCall& call, size_t count) {
  if (call.node.inputs.size() < count) refuse_form("it has too few inputs");
  return flat_arguments(std::span(call.node.inputs).first(count), call.values);
}

// Returns the inputs from `first` on, which are passed to the graph.
IValues operands_from(const HigherOrderCall& call, size_t first) {
  if (call.node.inputs.size() < first) refuse_form("it has too few inputs");
  IValues operands = flat_arguments(std::span(call.node.inputs).subspan(first), call.values);
  for (const uint32_t value : call.node.unused) call.values[value] = c10::IValue();
  return operands;
}

IValues run_with_grad_mode(const HigherOrderCall& call) {
  const IValues head = leading(call, 1);
  if (head.size() != 1 || !head[0].isBool()) refuse_form("the first input should be a boolean");
  IValues operands = operands_from(call, 2);
  const at::AutoGradMode mode(head[0].toBool());
  return call.run(graph_at(call, 1), std::move(operands));
}

IValues with_autocast(const HigherOrderCall& call) {
  const IValues head = leading(call, 4);
  if (head.size() != 4 || !head[0].isString() || !head[2].isBool()) {
    refuse_form("the first inputs should be a device, a dtype and whether autocast is enabled");
  }
  IValues operands = operands_from(call, 5);
  c10::DeviceType device = c10::Device(head[0].toStringRef()).type();
  for (const c10::IValue& operand : operands) {
    // The program may run on another device than it was exported on.
    if (operand.isTensor() && operand.toTensor().defined()) {
      device = operand.toTensor().device().type();
      break;
    }
  }
  const auto dtype = head[1].isInt() ? std::optional(static_cast<c10::ScalarType>(head[1].toInt())) : std::nullopt;
  const AutocastScope scope(device, dtype, head[2].toBool(), !head[3].isBool() || head[3].toBool());
  return call.run(graph_at(call, 4), std::move(operands));
}

IValues run_cond(const HigherOrderCall& call) {
  const IValues head = leading(call, 1);
  if (head.size() != 1) refuse_form("the first input should be a condition");
  if (!head[0].isTensor() && !head[0].isBool()) refuse_form("the condition is of type " + head[0].tagKind());
  const bool condition = head[0].isTensor() ? head[0].toTensor().item().toBool()  // DataDependentError if unknown
                                            : head[0].toBool();
  const ExportedGraph& branch = graph_at(call, condition ? 1 : 2);
  return call.run(branch, operands_from(call, 3));
}

IValues subgraph(const HigherOrderCall& call) {
  return call.run(graph_at(call, 0), operands_from(call, 2));  // input 1 is the graph's name
}

IValues checkpointed(const HigherOrderCall& call) {
  const ExportedGraph& graph = graph_at(call, 0);
  std::vector<NamedOperand> positional;
  for (const NamedOperand& input : std::span(call.node.inputs).subspan(1)) {
    if (input.name.empty()) positional.push_back(input);  // keyword inputs are options of Python's checkpoint
  }
  IValues operands = flat_arguments(positional, call.values);
  Tensors tensors;
  for (c10::IValue& operand : operands) {
    if (operand.isTensor()) tensors.push_back(std::exchange(operand, at::Tensor()).toTensor());
  }
  const Tensors results = checkpoint_tensors(
      [&graph, run = call.run_later, operands](const Tensors& inputs) {
        IValues all = operands;
        size_t next = 0;
        for (c10::IValue& one : all) {
          if (one.isTensor()) one = inputs[next++];
        }
        Tensors outputs;
        for (const c10::IValue& output : run(graph, std::move(all))) {
          if (!output.isTensor()) throw Error("a checkpointed graph may only return tensors");
          outputs.push_back(output.toTensor());
        }
        return outputs;
      },
      std::move(tensors));
  return {results.begin(), results.end()};
}

constexpr std::pair<std::string_view, IValues (*)(const HigherOrderCall&)> kHigherOrderOperators[] = {
    {"wrap_with_set_grad_enabled", &run_with_grad_mode},
    {"wrap_with_autocast", &with_autocast},
    {"cond", &run_cond},
    {"invoke_subgraph", &subgraph},
    {"tag_activation_checkpoint", &checkpointed},
};

constexpr std::string_view kOperators = "torch.ops.";
constexpr std::string_view kHigherOrder = "torch.ops.higher_order.";

// Assertions that hold for the captured shapes; export inserts them, eager has none.
constexpr std::string_view kIgnoredAssertions[] = {
    "torch.ops.aten.sym_constrain_range.default", "torch.ops.aten.sym_constrain_range_for_size.default",
    "torch.ops.aten._assert_tensor_metadata.default",  // the device and dtype at export
};
constexpr std::string_view kAssertScalar = "torch.ops.aten._assert_scalar.default";

thread_local const std::string* current_source = nullptr;
std::string exported_location() { return current_source != nullptr ? *current_source : std::string(); }

// Marks an error that already names its node, so that enclosing nodes rethrow it unchanged.
struct LocatedError {};
template <class Kind>
struct Located : Kind, LocatedError {
  using Kind::Kind;
};

// Returns aten::linear, "" for "torch.ops.aten.linear.default".
c10::OperatorName operator_name(std::string_view target) {
  const std::string_view rest = target.substr(std::min(kOperators.size(), target.size()));
  const size_t first = rest.find('.'), last = rest.rfind('.');
  if (!target.starts_with(kOperators) || first == std::string_view::npos || first == last) {
    throw Error("the target is a Python function, not an operator; only operators can run without Python");
  }
  const std::string_view overload = rest.substr(last + 1);
  return {std::string(rest.substr(0, first)) + "::" + std::string(rest.substr(first + 1, last - first - 1)),
          overload == "default" ? std::string() : std::string(overload)};
}

void assign(const ExportedOperand& output, c10::IValue value, ValueTable& values) {
  if (output.kind == ExportedOperand::Kind::kValue) {
    values[output.value] = std::move(value);
  } else if (output.kind == ExportedOperand::Kind::kList) {
    if (!value.isList()) throw Error("the operator returned a single value, but the archive has a list");
    const auto elements = value.toListRef();
    if (elements.size() != output.elements.size()) {
      throw Error("the operator returned " + std::to_string(elements.size()) + " results, but the archive has " +
                  std::to_string(output.elements.size()));
    }
    for (size_t i = 0; i < elements.size(); ++i) assign(output.elements[i], elements[i], values);
  }
}

size_t count_of(const std::vector<ExportedOperand>& outputs) {
  size_t count = 0;
  for (const ExportedOperand& output : outputs)
    count += output.kind == ExportedOperand::Kind::kList ? output.elements.size() : 1;
  return count;
}

// Assigns results. `flat`: subgraphs return theirs one by one, however the node groups them.
void assign_results(const ExportedNode& node, IValues results, bool flat, ValueTable& values) {
  const size_t expected = flat ? count_of(node.outputs) : node.outputs.size();
  // The format omits None and the result of an operator that returns nothing.
  const auto is_literal = [](const auto& output) { return output.kind == ExportedOperand::Kind::kLiteral; };
  if (std::ranges::all_of(node.outputs, is_literal)) return;
  if (results.size() != expected) {
    throw Error("the operator returned " + std::to_string(results.size()) + " results, but the archive has " +
                std::to_string(expected));
  }
  size_t next = 0;
  for (const ExportedOperand& output : node.outputs) {
    if (flat && output.kind == ExportedOperand::Kind::kList) {
      for (const ExportedOperand& element : output.elements) assign(element, std::move(results[next++]), values);
    } else {
      assign(output, std::move(results[next++]), values);
    }
  }
}

// Throws Error for operators that are not in kHigherOrderOperators.
IValues call_higher_order(const HigherOrderCall& call) {
  const std::string_view target = call.node.target;
  std::string names;
  for (const auto& [name, run] : kHigherOrderOperators) {
    if (name == target.substr(target.rfind('.') + 1)) return run(call);
    names += (names.empty() ? "" : ", ") + std::string(name);
  }
  throw Error("this higher-order operator is not supported; supported are: " + names);
}

class ExportedExecutor {
 public:
  // Keeps references to both. `path` is for messages.
  ExportedExecutor(const SavedProgram& program, const std::string& path) : program_(program), path_(path) {}

  IValues run(IValues inputs) const {
    const LocateScope locations(&exported_location);
    ModuleRegions regions;
    return run_graph(program_.graph, std::move(inputs), {program_.module_stacks[0], regions});
  }

 private:
  // Module context of a graph: nodes without a module stack, as in branches of cond, are in the modules `around` it.
  struct Place {
    const ModuleStack& around;
    ModuleRegions& regions;
  };
  const ModuleStack& stack_of(const ExportedNode& node, const Place& place) const {
    return node.module_stack == 0 ? place.around : program_.module_stacks[node.module_stack];
  }

  IValues run_graph(const ExportedGraph& graph, IValues inputs, Place place) const {
    if (inputs.size() != graph.inputs.size()) {
      throw Error("a graph takes " + std::to_string(graph.inputs.size()) + " inputs, but " +
                  std::to_string(inputs.size()) + " were given");
    }
    ValueTable values(graph.value_names.size());
    for (size_t i = 0; i < inputs.size(); ++i) assign(graph.inputs[i], std::move(inputs[i]), values);
    inputs.clear();
    for (const uint32_t value : graph.unused) values[value] = c10::IValue();
    for (const ExportedNode& node : graph.nodes) run_node(node, values, place);
    IValues outputs;
    for (const ExportedOperand& output : graph.outputs) {
      const bool is_list = output.kind == ExportedOperand::Kind::kList;
      for (const ExportedOperand& element : is_list ? std::span(output.elements) : std::span(&output, 1)) {
        outputs.push_back(value_of_operand(element, values));
      }
    }
    return outputs;
  }

  void run_node(const ExportedNode& node, ValueTable& values, Place place) const {
    const auto message = [&](const std::string& what) {
      return path_ + ": node '" + node.name + "' (" + node.target + ")" +
             (node.source.empty() ? "" : " at " + node.source) + ": " + what;
    };
    const std::string* outer = current_source;
    if (!node.source.empty() || outer == nullptr) current_source = &node.source;
    try {
      assign_results(node, call(node, values, place), node.target.starts_with(kHigherOrder), values);
    } catch (const LocatedError&) {
      throw;
    } catch (const DataDependentError& error) {
      throw Located<DataDependentError>(message(error.what()));
    } catch (const NoRuleError& error) {
      throw Located<NoRuleError>(message(error.what()));
    } catch (const std::exception& error) {
      throw Located<Error>(message(message_of(error)));
    }
    current_source = outer;
    for (const uint32_t value : node.unused) values[value] = c10::IValue();
  }

  IValues call(const ExportedNode& node, ValueTable& values, Place place) const {
    const ModuleStack& around = stack_of(node, place);
    if (node.target.starts_with(kHigherOrder)) {
      place.regions.move_to(around);
      const auto run = [&](const ExportedGraph& graph, IValues inputs) {
        return run_graph(graph, std::move(inputs), {around, place.regions});
      };
      const auto run_later = [executor = *this, &around](const ExportedGraph& graph, IValues inputs) {
        ModuleRegions inner(around);
        return executor.run_graph(graph, std::move(inputs), {around, inner});
      };
      return call_higher_order({node, values, run, run_later});
    }
    if (std::ranges::find(kIgnoredAssertions, node.target) != std::end(kIgnoredAssertions)) return {};
    if (!node.target.starts_with(kOperators) || node.target.starts_with("torch.ops.aten.sym_")) {
      if (auto result = call_scalar_operator(node.target, flat_arguments(node.inputs, values))) {
        return {*std::move(result)};
      }
    }
    if (node.target == kAssertScalar) {
      const IValues operands = flat_arguments(node.inputs, values);
      if (operands.empty() || !(operands[0].isBool() || operands[0].isScalar())) {
        throw Error("the condition is missing");
      }
      if (!operands[0].toScalar().toBool()) {
        throw Error("the input sizes violate a constraint of the program: " +
                    (operands.size() > 1 && operands[1].isString() ? operands[1].toStringRef() : std::string("false")));
      }
      return {};
    }
    place.regions.move_to(around);
    return call_operator(node, values);
  }

  static IValues call_operator(const ExportedNode& node, const ValueTable& values) {
    const c10::OperatorName name = operator_name(node.target);
    const auto handle = c10::Dispatcher::singleton().findSchema(name);
    if (!handle) {
      throw Error("the operator " + toString(name) +
                  " is not registered in this process. Load the library that registers it, or link the program "
                  "with it");
    }
    const c10::FunctionSchema& schema = handle->schema();
    std::vector<const ExportedOperand*> given(schema.arguments().size(), nullptr);
    for (const NamedOperand& input : node.inputs) {
      const auto position = schema.argumentIndexWithName(input.name);
      if (!position) throw Error("the operator has no argument named '" + input.name + "'");
      given[static_cast<size_t>(*position)] = &input.operand;
    }
    torch::jit::Stack stack;
    for (size_t i = 0; i < given.size(); ++i) {
      const c10::Argument& argument = schema.arguments()[i];
      if (given[i] != nullptr) {
        stack.push_back(argument_for(argument, *given[i], values));
      } else if (argument.default_value()) {
        stack.push_back(*argument.default_value());
      } else {
        throw Error("argument '" + argument.name() + "' is missing");
      }
    }
    handle->callBoxed(stack);
    return stack;
  }

  const SavedProgram& program_;
  const std::string& path_;
};

}  // namespace

IValues run_exported(const SavedProgram& program, const std::string& path, IValues inputs) {
  return ExportedExecutor(program, path).run(std::move(inputs));
}

}  // namespace shadowgraph
