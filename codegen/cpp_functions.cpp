// Writes every block of a plan as a C++ function, and every step of it as a statement.
//
// Blocks whose text is the same share one function: twelve equal layers are written once and called twelve times. The
// variables of a block are therefore named from its module on, so that the names do not tell the layers apart.
//
// Memory is freed as in the recorded program. A tensor is moved into the call that reads it last, or dropped behind it.
// Linear in the text that is written.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "codegen/cpp_call.h"
#include "codegen/literals.h"
#include "ir/text/tensor_bytes.h"
#include "shadowgraph/codegen/codegen.h"

namespace shadowgraph {
namespace {

// Spells each element as the type T of the list that the generated function is given.
template <class T, class F>
std::string elements(const std::vector<uint8_t>& bytes, F&& spell) {
  std::string text;
  for (size_t i = 0; i + sizeof(T) <= bytes.size(); i += sizeof(T)) {
    T value;
    std::memcpy(&value, bytes.data() + i, sizeof(T));
    text += (i == 0 ? "" : ", ") + spell(value);
  }
  return text;
}

template <class T>
bool all_finite(const std::vector<uint8_t>& bytes) {
  for (size_t i = 0; i + sizeof(T) <= bytes.size(); i += sizeof(T)) {
    T value;
    std::memcpy(&value, bytes.data() + i, sizeof(T));
    if (!std::isfinite(value)) return false;
  }
  return true;
}

}  // namespace

std::string embedded_constant(const Graph& graph, ConstantId id) {
  const auto content = tensor_bytes(graph.constant(id));
  if (!content) {
    throw CodegenError("the contents of the constant c" + std::to_string(id.index) +
                       " cannot be read, so no code can hold them");
  }
  const auto& bytes = content->bytes;
  std::string type = "uint8_t";
  std::string text;
  // Numbers are written so that they read back bit for bit. NaN and infinity have no literal and go as bytes.
  if (content->dtype == at::kFloat && all_finite<float>(bytes)) {
    type = "float";
    text = elements<float>(bytes, [](float value) {
      std::string number = fmt::format("{}", value);
      // "1f" is no C++ literal; "1.0f" is one.
      if (number.find_first_of(".e") == std::string::npos) number += ".0";
      return number + "f";
    });
  } else if (content->dtype == at::kDouble && all_finite<double>(bytes)) {
    type = "double";
    text = elements<double>(bytes, [](double value) { return cpp::number(value); });
  } else if (content->dtype == at::kLong) {
    type = "int64_t";
    text = elements<int64_t>(bytes, [](int64_t value) { return cpp::number(value); });
  } else if (content->dtype == at::kInt) {
    type = "int32_t";
    text = elements<int32_t>(bytes, [](int32_t value) {
      // -2147483648 is the negation of a literal that int32_t cannot hold.
      return value == std::numeric_limits<int32_t>::min() ? "std::numeric_limits<int32_t>::min()"
                                                          : std::to_string(value);
    });
  } else {
    text = elements<uint8_t>(bytes, [](uint8_t value) { return std::to_string(value); });
  }
  return fmt::format("at::Tensor {}() {{\n  return embedded<{}>({}, {}, {}, {{{}}});\n}}\n",
                     CppCalls::constant_name(id), type, cpp::dtype(content->dtype), cpp::ints(content->sizes),
                     cpp::ints(content->strides), text);
}

using Returns = CppCalls::Returns;

std::string CppFunctions::write_all() {
  // The plan lists inner blocks first, so each function is there before one that calls it.
  functions_.resize(plan_.blocks.size());
  for (uint32_t block = 0; block + 1 < plan_.blocks.size(); ++block) write_function(block);
  std::string text;
  for (const Written& written : written_) {
    text += "\n// " + cpp::comment(written.places.front());
    if (written.places.size() > 1) {
      text += fmt::format(" ... {}, {} times", cpp::comment(written.places.back()), written.places.size());
    }
    text += "\n" + written.before + written.text;
  }
  return text;
}

std::string CppFunctions::type_of(uint32_t variable) const {
  const CodeVariable& v = plan_.variables[variable];
  if (v.kind == ValueKind::kTensor) return "at::Tensor";
  if (v.type == TypeClass::kNumber) return "at::Scalar";
  return v.kind == ValueKind::kInt ? "int64_t" : v.kind == ValueKind::kFloat ? "double" : "bool";
}

void CppFunctions::write_function(uint32_t number) {
  const CodeBlock& block = plan_.blocks[number];
  BlockNames names(plan_, block);
  std::vector<std::string> parameters;
  for (const uint32_t variable : block.inputs) parameters.push_back(type_of(variable) + " " + names.of(variable));
  std::string body = body_of(block, names, {});
  std::string members;
  std::vector<std::string> returned;
  for (const uint32_t variable : block.outputs) {
    members += fmt::format("  {} {};\n", type_of(variable), names.of(variable));
    const bool tensor = plan_.variables[variable].kind == ValueKind::kTensor;
    returned.push_back(tensor ? "std::move(" + names.of(variable) + ")" : names.of(variable));
  }
  const bool many = block.outputs.size() > 1;
  if (block.outputs.size() == 1) body += "  return " + names.of(block.outputs[0]) + ";\n";
  if (many) body += fmt::format("  return {{{}}};\n", fmt::join(returned, ", "));
  const std::string signature = fmt::format("({}) {{\n", fmt::join(parameters, ", "));
  const std::string type = many ? "" : block.outputs.empty() ? "void" : type_of(block.outputs[0]);
  // The same text is the same function: its name is no part of it.
  const auto [entry, is_new] = by_text_.try_emplace(type + members + signature + body, written_.size());
  if (is_new) {
    Function made;
    made.name = function_names_.take_identifier(function_name(plan_, block));
    if (many) made.result = function_names_.take_identifier(made.name + "_results");
    Written written;
    written.function = made;
    if (many) written.before = fmt::format("struct {} {{\n{}}};\n", made.result, members);
    written.text = fmt::format("{} {}{}{}}}\n", many ? made.result : type, made.name, signature, body);
    written_.push_back(std::move(written));
  }
  Written& written = written_[entry->second];
  written.places.push_back(place(block));
  functions_[number] = written.function;
}

std::string CppFunctions::place(const CodeBlock& block) const {
  return block.path.empty() ? graph_.phase_name(block.phase) : block.path;
}

std::string CppFunctions::body_of(const CodeBlock& block, BlockNames& names, const std::vector<uint32_t>& kept) {
  // A variable is let go behind its last reader, so memory is freed where the recorded program freed it.
  const auto last = last_uses(plan_, block, kept);
  const bool keeps_mode = options_.autograd && leaves_grad_mode(plan_, block.region);
  std::string text;
  std::optional<bool> mode;
  for (size_t i = 0; i < block.items.size(); ++i) {
    const CodeBlock::Item& item = block.items[i];
    if (item.is_block()) {
      // What is called takes the mode that it finds for its caller's wish.
      if (options_.autograd && mode && !*mode) {
        text += "  c10::GradMode::set_enabled(with_gradients);\n";
        mode.reset();
      }
      text += block_call(item.block, names, last[i]);
      continue;
    }
    if (!keeps_mode) grad_mode(item.step, mode, text);
    text += statement(item.step, names, last[i], i + 1 == block.items.size());
  }
  return text;
}

// Some kernels ask whether gradients are wanted, and so does autograd.
void CppFunctions::grad_mode(uint32_t step, std::optional<bool>& mode, std::string& text) const {
  if (!plan_.uses_grad_mode || graph_.target(plan_.steps[step].node).kind() == TargetKind::kBuiltin) return;
  const bool wanted = plan_.steps[step].grad_mode;
  if ((mode && *mode == wanted) || (options_.autograd && !mode && wanted)) return;
  // Under autograd the caller's mode wins: in his no_grad, `run` must not turn gradients on.
  if (options_.autograd) {
    if (text.find("with_gradients") == std::string::npos) {
      text +=
          "  const bool with_gradients = c10::GradMode::is_enabled();\n"
          "  const c10::AutoGradMode restore_grad_mode(with_gradients);\n";
    }
    text += fmt::format("  c10::GradMode::set_enabled({});\n", wanted ? "with_gradients" : "false");
  } else if (!mode) {
    text += fmt::format("  const c10::AutoGradMode grad_mode({});\n", wanted);
  } else {
    text += fmt::format("  c10::GradMode::set_enabled({});\n", wanted);
  }
  mode = wanted;
}

std::string CppFunctions::drops(const std::vector<std::string>& names) {
  if (names.empty()) return "";
  needs_.helpers.insert("drop");
  return fmt::format("  drop({});\n", fmt::join(names, ", "));
}

// A call of another function. Several results come as a struct, which a structured binding takes apart.
std::string CppFunctions::block_call(uint32_t number, BlockNames& names, const std::vector<uint32_t>& last) {
  const CodeBlock& block = plan_.blocks[number];
  const Function& function = functions_[number];
  const auto is_last = [&](uint32_t variable) { return std::ranges::find(last, variable) != last.end(); };
  std::vector<std::string> arguments;
  for (const uint32_t variable : block.inputs) {
    // A moved operand may die inside the callee; held here, it would live until the call returns.
    arguments.push_back(is_last(variable) ? "std::move(" + names.of(variable) + ")" : names.of(variable));
  }
  std::vector<std::string> unused;
  std::vector<std::string> results;
  for (const uint32_t variable : block.outputs) {
    results.push_back(names.of(variable));
    if (is_last(variable)) unused.push_back(results.back());
  }
  if (options_.autograd && block.checkpoint)
    return checkpoint_call(block, function, names, arguments, results) + drops(unused);
  std::string text = fmt::format("{}({});\n", function.name, fmt::join(arguments, ", "));
  if (results.size() == 1) text = type_of(block.outputs[0]) + " " + results[0] + " = " + text;
  if (results.size() > 1) text = fmt::format("auto [{}] = ", fmt::join(results, ", ")) + text;
  return "  " + text + drops(unused);
}

// A call through the `checkpoint` helper, which keeps the operands and calls the function again in backward. The helper
// takes and gives lists of tensors, so the function is wrapped in a lambda.
std::string CppFunctions::checkpoint_call(const CodeBlock& block, const Function& function, BlockNames& names,
                                          const std::vector<std::string>& arguments,
                                          const std::vector<std::string>& results) {
  needs_.helpers.insert("checkpoint");
  // Autograd keeps the tensors that the helper is given, so tensors go through the list `in`.
  // Numbers need no gradient and are captured by value.
  std::vector<std::string> inner;
  std::vector<std::string> captured;
  std::vector<std::string> tensors;
  std::vector<size_t> statistics;  // among the tensors
  for (size_t i = 0; i < block.inputs.size(); ++i) {
    if (plan_.variables[block.inputs[i]].kind != ValueKind::kTensor) {
      captured.push_back(names.of(block.inputs[i]));
      inner.push_back(captured.back());
    } else {
      if (std::ranges::find(block.statistics, i) != block.statistics.end()) statistics.push_back(tensors.size());
      inner.push_back(fmt::format("std::move(in[{}])", tensors.size()));
      tensors.push_back(arguments[i]);
    }
  }
  for (const uint32_t variable : block.outputs) {
    if (plan_.variables[variable].kind == ValueKind::kTensor) continue;
    refuse_node(graph_, plan_.steps[plan_.variables[variable].defined].node,
                "a number that the host reads inside a checkpoint region and uses outside it cannot be recomputed");
  }
  const std::string call = fmt::format("{}({})", function.name, fmt::join(inner, ", "));
  std::string body;
  if (results.empty()) {
    body = call + ";\n        return {};\n";
  } else if (results.size() == 1) {
    body = "return {" + call + "};\n";
  } else {
    std::vector<std::string> moved;
    for (const std::string& result : results) moved.push_back("std::move(" + result + ")");
    body = fmt::format("auto [{}] = {};\n        return {{{}}};\n", fmt::join(results, ", "), call,
                       fmt::join(moved, ", "));
  }
  const std::string list = results.empty() ? "" : names.take("recomputed");
  std::string text = fmt::format(
      "  {}checkpoint(\n      [{}](std::vector<at::Tensor> in) -> std::vector<at::Tensor> {{\n        {}      }},\n"
      "      {{{}}}{});\n",
      results.empty() ? "" : "std::vector<at::Tensor> " + list + " = ", fmt::join(captured, ", "), body,
      fmt::join(tensors, ", "), statistics.empty() ? "" : fmt::format(", {{{}}}", fmt::join(statistics, ", ")));
  for (size_t i = 0; i < results.size(); ++i) {
    text += fmt::format("  at::Tensor {} = std::move({}[{}]);\n", results[i], list, i);
  }
  return text;
}

// One step: copies of tensor objects that it would change, the call, names for results that somebody reads, and what
// dies behind it.
std::string CppFunctions::statement(uint32_t number, BlockNames& names, const std::vector<uint32_t>& last,
                                    bool at_end) {
  const CodeStep& step = plan_.steps[number];
  std::string text;
  for (const CodeStep::Copy& copy : step.copies) {
    needs_.helpers.insert("shallow_copy");
    text += fmt::format("  at::Tensor {} = shallow_copy({});\n", names.of(copy.to), names.of(copy.from));
  }
  const auto name_of = [&](uint32_t variable) { return names.of(variable); };
  CppCalls::Call call = calls_.call(number, name_of);
  // Results that nobody reads need no name, if there is but one thing that is returned.
  std::vector<bool> wanted(step.results.size());
  bool any = false;
  for (size_t i = 0; i < step.results.size(); ++i) {
    wanted[i] = step.fresh[i] && !(plan_.variables[step.results[i]].last_use == number);
    any |= wanted[i];
  }
  std::vector<std::string> bound;  // made here, and to be dropped
  if (!any) {
    text += "  " + call.expression + ";\n";
  } else {
    text += results_of(number, call, names, wanted, bound);
  }
  // At the end of a function its variables die by themselves.
  if (at_end) return text;
  std::vector<std::string> dropped;
  for (const uint32_t variable : last) {
    // A result that nobody reads was never bound to a name, or is in `bound`.
    const bool made_here =
        std::ranges::find(step.results, variable) != step.results.end() && plan_.variables[variable].defined == number;
    if (!made_here) dropped.push_back(names.of(variable));
  }
  dropped.insert(dropped.end(), bound.begin(), bound.end());
  return text + drops(dropped);
}

// Takes a result out of an IValue, as the type that the variable has.
std::string CppFunctions::from_ivalue(const std::string& text, uint32_t variable) const {
  const CodeVariable& v = plan_.variables[variable];
  if (v.kind == ValueKind::kTensor) return text + ".toTensor()";
  if (v.type == TypeClass::kNumber) return text + ".toScalar()";
  return text + (v.kind == ValueKind::kInt ? ".toInt()" : v.kind == ValueKind::kFloat ? ".toDouble()" : ".toBool()");
}

// Takes the elements of a list that somebody reads out of it. `flat` counts the results of the step.
std::string CppFunctions::list_elements(const CodeStep& step, const std::string& list, const Argument& result,
                                        const std::vector<bool>& wanted, size_t& flat, BlockNames& names) {
  std::string text;
  bool all = true;
  size_t position = 0;
  for (const Argument& element : graph_.list(result)) {
    if (element.kind == ArgumentKind::kValue) {
      if (wanted[flat]) {
        text += fmt::format("  at::Tensor {} = std::move({}[{}]);\n", names.of(step.results[flat]), list, position);
      }
      all &= wanted[flat++];
    }
    ++position;
  }
  // The list would keep the elements that nobody reads alive.
  if (!all) text += "  " + list + ".clear();\n";
  return text;
}

std::string CppFunctions::stack_results(uint32_t number, const CppCalls::Call& call, BlockNames& names,
                                        const std::vector<bool>& wanted) {
  const CodeStep& step = plan_.steps[number];
  const auto results = graph_.results(step.node);
  size_t flat = 0;
  const std::string stack = names.take("stack");
  std::string text = fmt::format("  std::vector<c10::IValue> {} = {};\n", stack, call.expression);
  for (size_t i = 0; i < results.size(); ++i) {
    const std::string at = fmt::format("{}.at({})", stack, i);
    if (results[i].kind == ArgumentKind::kValue) {
      if (wanted[flat]) {
        const uint32_t variable = step.results[flat];
        text += fmt::format("  {} {} = {};\n", type_of(variable), names.of(variable), from_ivalue(at, variable));
      }
      ++flat;
    } else if (results[i].kind == ArgumentKind::kList) {
      const std::string list = names.take("list");
      text += fmt::format("  std::vector<at::Tensor> {} = {}.toTensorVector();\n", list, at);
      text += list_elements(step, list, results[i], wanted, flat, names);
    }
  }
  // The stack holds references too, beside the variables taken from it.
  return text + "  " + stack + ".clear();\n";
}

// Names the results of a call. How depends on what the call returns in C++: a stack of IValues, one tensor or list, or
// a tuple.
std::string CppFunctions::results_of(uint32_t number, const CppCalls::Call& call, BlockNames& names,
                                     const std::vector<bool>& wanted, std::vector<std::string>& bound) {
  const CodeStep& step = plan_.steps[number];
  const auto results = graph_.results(step.node);
  std::string text;
  size_t flat = 0;
  if (call.returns == Returns::kStack) return stack_results(number, call, names, wanted);
  if (call.returns == Returns::kOne) {
    if (results[0].kind == ArgumentKind::kList) {
      const std::string list = names.take("list");
      text += fmt::format("  std::vector<at::Tensor> {} = {};\n", list, call.expression);
      return text + list_elements(step, list, results[0], wanted, flat, names);
    }
    const uint32_t variable = step.results[0];
    return fmt::format("  {} {} = {};\n", type_of(variable), names.of(variable), call.expression);
  }
  // Several. References to operands (out= forms) are not to be bound: letting go of one would take the operand away.
  const OperatorFacts& facts = graph_.facts(step.node);
  if (graph_.target(step.node).kind() == TargetKind::kOperator && !facts.written.empty() && !facts.aliases.empty()) {
    text += "  " + call.expression + ";\n";
    for (size_t i = 0; i < results.size(); ++i) {
      if (results[i].kind != ArgumentKind::kValue) continue;
      if (wanted[flat])
        text += fmt::format("  at::Tensor {} = {};\n", names.of(step.results[flat]), operand(number, i, names));
      ++flat;
    }
    return text;
  }
  // A structured binding must name every result, so those that nobody reads are dropped behind it.
  std::vector<std::string> bindings;
  std::vector<std::pair<std::string, size_t>> lists;
  for (size_t i = 0; i < results.size(); ++i) {
    if (results[i].kind == ArgumentKind::kValue) {
      bindings.push_back(names.of(step.results[flat]));
      if (!wanted[flat] && plan_.variables[step.results[flat]].kind == ValueKind::kTensor) {
        bound.push_back(bindings.back());
      }
      ++flat;
    } else {
      bindings.push_back(names.take(results[i].kind == ArgumentKind::kList ? "list" : "none"));
      if (results[i].kind == ArgumentKind::kList) lists.emplace_back(bindings.back(), i);
    }
  }
  text += fmt::format("  auto [{}] = {};\n", fmt::join(bindings, ", "), call.expression);
  flat = 0;
  size_t next = 0;
  for (size_t i = 0; i < results.size(); ++i) {
    if (results[i].kind == ArgumentKind::kList) {
      text += list_elements(step, lists[next++].first, results[i], wanted, flat, names);
    } else if (results[i].kind == ArgumentKind::kValue) {
      ++flat;
    }
  }
  return text;
}

// The operand that result `position` is.
std::string CppFunctions::operand(uint32_t number, size_t position, BlockNames& names) {
  const NodeId node = plan_.steps[number].node;
  for (const auto& alias : graph_.facts(node).aliases) {
    const auto arguments = graph_.arguments(node);
    if (alias.result != position || arguments[alias.argument].kind != ArgumentKind::kValue) continue;
    return names.of(plan_.variable_of(arguments[alias.argument].ref.value, number));
  }
  refuse_node(graph_, node, "its result " + std::to_string(position) + " is none of its operands");
}

}  // namespace shadowgraph
