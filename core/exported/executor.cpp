#include "core/exported/executor.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>

#include "core/exported/higher_order.h"
#include "core/exported/scalar_operators.h"
#include "shadowgraph/capture.h"
#include "shadowgraph/error.h"

namespace shadowgraph {
namespace {

constexpr std::string_view kOperators = "torch.ops.";
constexpr std::string_view kHigherOrder = "torch.ops.higher_order.";

// These checks hold of the shapes and say nothing else; export writes them where eager has none.
constexpr std::string_view kChecksWithoutWork[] = {
    "torch.ops.aten.sym_constrain_range.default", "torch.ops.aten.sym_constrain_range_for_size.default",
    "torch.ops.aten._assert_tensor_metadata.default",  // of the device and dtype that the program was exported for
};
constexpr std::string_view kAssertScalar = "torch.ops.aten._assert_scalar.default";

thread_local const std::string* current_source = nullptr;
std::string exported_location() { return current_source != nullptr ? *current_source : std::string(); }

// While it lives, recorded nodes carry the line of Python that the exported node carries.
class ExportedLocations {
 public:
  ExportedLocations()
      : recorder_(current_recorder()), outer_(recorder_ ? recorder_->set_locate(&exported_location) : nullptr) {}
  ~ExportedLocations() {
    current_source = nullptr;
    if (recorder_) recorder_->set_locate(outer_);
  }
  ExportedLocations(const ExportedLocations&) = delete;
  ExportedLocations& operator=(const ExportedLocations&) = delete;

 private:
  Recorder* recorder_;
  Recorder::Locate outer_;
};

// An error that names its node already, on its way through the nodes that it is within.
template <class Kind>
class Located : public Kind {
 public:
  using Kind::Kind;
};

// Returns aten::linear, "" for "torch.ops.aten.linear.default".
c10::OperatorName operator_name(std::string_view target) {
  const std::string_view rest = target.substr(std::min(kOperators.size(), target.size()));
  const size_t first = rest.find('.');
  const size_t last = rest.rfind('.');
  if (!target.starts_with(kOperators) || first == std::string_view::npos || first == last) {
    throw Error("a Python function, not an operator, which nothing but Python can call");
  }
  const std::string_view overload = rest.substr(last + 1);
  return {std::string(rest.substr(0, first)) + "::" + std::string(rest.substr(first + 1, last - first - 1)),
          overload == "default" ? std::string() : std::string(overload)};
}

void assign(const ExportedOperand& output, c10::IValue value, ValueTable& values) {
  if (output.kind == ExportedOperand::Kind::kValue) {
    values[output.value] = std::move(value);
  } else if (output.kind == ExportedOperand::Kind::kList) {
    if (!value.isList()) throw Error("it gives a value where the archive has a list");
    const auto elements = value.toListRef();
    if (elements.size() != output.elements.size()) {
      throw Error("it gives " + std::to_string(elements.size()) + " results where the archive has " +
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

// Assigns results. Graphs within the node give theirs one by one, however the node groups them.
void assign_results(const ExportedNode& node, std::vector<c10::IValue> results, bool flat, ValueTable& values) {
  const size_t expected = flat ? count_of(node.outputs) : node.outputs.size();
  // The format leaves out None and what an operator without results gives.
  const bool nothing = std::all_of(node.outputs.begin(), node.outputs.end(), [](const ExportedOperand& output) {
    return output.kind == ExportedOperand::Kind::kLiteral;
  });
  if (nothing) return;
  if (results.size() != expected) {
    throw Error("it gives " + std::to_string(results.size()) + " results where the archive has " +
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

}  // namespace

std::vector<c10::IValue> ExportedExecutor::run(std::vector<c10::IValue> inputs) const {
  const ExportedLocations locations;
  ModuleRegions regions;
  return run_graph(program_.graph, std::move(inputs), {program_.module_stacks[0], regions});
}

std::vector<c10::IValue> ExportedExecutor::run_graph(const ExportedGraph& graph, std::vector<c10::IValue> inputs,
                                                     Place place) const {
  if (inputs.size() != graph.inputs.size()) {
    throw Error("a graph of " + std::to_string(graph.inputs.size()) + " inputs is given " +
                std::to_string(inputs.size()));
  }
  ValueTable values(graph.value_names.size());
  for (size_t i = 0; i < inputs.size(); ++i) assign(graph.inputs[i], std::move(inputs[i]), values);
  inputs.clear();
  for (const uint32_t value : graph.unused) values[value] = c10::IValue();
  for (const ExportedNode& node : graph.nodes) run_node(node, values, place);
  std::vector<c10::IValue> outputs;
  for (const ExportedOperand& output : graph.outputs) {
    if (output.kind == ExportedOperand::Kind::kList) {
      for (const ExportedOperand& element : output.elements) {
        outputs.push_back(element.kind == ExportedOperand::Kind::kValue ? values[element.value] : element.literal);
      }
    } else {
      outputs.push_back(output.kind == ExportedOperand::Kind::kValue ? values[output.value] : output.literal);
    }
  }
  return outputs;
}

void ExportedExecutor::run_node(const ExportedNode& node, ValueTable& values, Place place) const {
  const auto message = [&](const char* what) {
    return path_ + ": node '" + node.name + "' (" + node.target + ")" +
           (node.source.empty() ? "" : " at " + node.source) + ": " + what;
  };
  const std::string* outer = current_source;
  if (!node.source.empty() || outer == nullptr) current_source = &node.source;
  try {
    assign_results(node, call(node, values, place), node.target.starts_with(kHigherOrder), values);
  } catch (const Located<Error>&) {
    throw;
  } catch (const Located<DataDependentError>&) {
    throw;
  } catch (const Located<NoRuleError>&) {
    throw;
  } catch (const DataDependentError& error) {
    throw Located<DataDependentError>(message(error.what()));
  } catch (const NoRuleError& error) {
    throw Located<NoRuleError>(message(error.what()));
  } catch (const c10::Error& error) {
    throw Located<Error>(message(error.what_without_backtrace()));
  } catch (const std::exception& error) {
    throw Located<Error>(message(error.what()));
  }
  current_source = outer;
  for (const uint32_t value : node.unused) values[value] = c10::IValue();
}

std::vector<c10::IValue> ExportedExecutor::call(const ExportedNode& node, ValueTable& values, Place place) const {
  if (node.target.starts_with(kHigherOrder)) {
    const ModuleStack& around = stack_of(node, place);
    const auto run = [&](const ExportedGraph& graph, std::vector<c10::IValue> inputs) {
      return run_graph(graph, std::move(inputs), {around, place.regions});
    };
    place.regions.move_to(around);
    const auto run_later = [this, &around](const ExportedGraph& graph, std::vector<c10::IValue> inputs) {
      ModuleRegions inner(&around);
      return run_graph(graph, std::move(inputs), {around, inner});
    };
    return call_higher_order({node, values, run, run_later});
  }
  if (std::find(std::begin(kChecksWithoutWork), std::end(kChecksWithoutWork), node.target) !=
      std::end(kChecksWithoutWork)) {
    return {};
  }
  const bool is_operator = node.target.starts_with(kOperators);
  if (!is_operator || node.target.starts_with("torch.ops.aten.sym_")) {
    if (auto result = call_scalar_operator(node.target, plain_arguments(node.inputs, values))) {
      return {*std::move(result)};
    }
  }
  if (node.target == kAssertScalar) {
    const std::vector<c10::IValue> operands = plain_arguments(node.inputs, values);
    if (operands.empty() || !(operands[0].isBool() || operands[0].isScalar())) throw Error("it is given no condition");
    if (!operands[0].toScalar().toBool()) {
      throw Error("the sizes given break a condition of the program: " +
                  (operands.size() > 1 && operands[1].isString() ? operands[1].toStringRef() : std::string("false")));
    }
    return {};
  }
  place.regions.move_to(stack_of(node, place));
  return call_operator(node, values);
}

std::vector<c10::IValue> ExportedExecutor::call_operator(const ExportedNode& node, const ValueTable& values) const {
  const c10::OperatorName name = operator_name(node.target);
  const auto handle = c10::Dispatcher::singleton().findSchema(name);
  if (!handle) {
    throw Error("the operator " + toString(name) +
                " is not registered in this process; load the library that registers it, or use the C++ API from a "
                "program that is linked with it");
  }
  const c10::FunctionSchema& schema = handle->schema();
  std::vector<const ExportedOperand*> given(schema.arguments().size(), nullptr);
  for (const NamedOperand& input : node.inputs) {
    const auto position = schema.argumentIndexWithName(input.name);
    if (!position) throw Error("the operator has no argument '" + input.name + "'");
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
      throw Error("the argument '" + argument.name() + "' is missing");
    }
  }
  handle->callBoxed(stack);
  return stack;
}

}  // namespace shadowgraph
