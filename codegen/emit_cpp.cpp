// Writes a plan as a C++ library: NAME.cpp, NAME.h and a CMakeLists.txt that finds libtorch.
// Memory is freed as in the recorded program: a tensor is moved into the last call that reads it, or dropped after it.
// Linear in the generated text.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "codegen/cpp_call.h"
#include "codegen/literals.h"
#include "ir/text/tensor_bytes.h"
#include "ir/text/words.h"
#include "shadowgraph/codegen/codegen.h"

namespace shadowgraph {
namespace {

// Writes each element as the type T of the list.
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

// The function that creates a small constant, bit for bit, at each call: from a list of numbers, or of bytes for types
// other than int, long, float and double. Throws UnsupportedError if the contents are not readable.
std::string embedded_constant(const Graph& graph, ConstantId id) {
  const TensorBytes content = readable_constant(graph, id, fmt::format("c{}", id.index));
  const auto& bytes = content.bytes;
  std::string type = "uint8_t", text;
  // Numbers read back bit for bit. NaN and infinity have no literal and are written as bytes.
  if (content.dtype == at::kFloat && all_finite<float>(bytes)) {
    type = "float";
    text = elements<float>(bytes, [](float value) {
      std::string number = fmt::format("{}", value);
      // "1f" is not a C++ literal; "1.0f" is.
      if (number.find_first_of(".e") == std::string::npos) number += ".0";
      return number + "f";
    });
  } else if (content.dtype == at::kDouble && all_finite<double>(bytes)) {
    type = "double";
    text = elements<double>(bytes, [](double value) { return cpp::number(value); });
  } else if (content.dtype == at::kLong) {
    type = "int64_t";
    text = elements<int64_t>(bytes, [](int64_t value) { return cpp::number(value); });
  } else if (content.dtype == at::kInt) {
    type = "int32_t";
    text = elements<int32_t>(bytes, [](int32_t value) {
      // -2147483648 is the negation of a literal that does not fit an int32_t.
      return value == std::numeric_limits<int32_t>::min() ? "std::numeric_limits<int32_t>::min()"
                                                          : std::to_string(value);
    });
  } else {
    text = elements<uint8_t>(bytes, [](uint8_t value) { return std::to_string(value); });
  }
  return fmt::format("at::Tensor {}() {{\n  return embedded<{}>({}, {}, {}, {{{}}});\n}}\n",
                     CppCalls::constant_name(id), type, cpp::dtype(content.dtype), cpp::ints(content.sizes),
                     cpp::ints(content.strides), text);
}

using Returns = CppCalls::Returns;

class CppFunctions {
 public:
  CppFunctions(const CodeLayout& plan, const CodegenOptions& options, CppNeeds& needs)
      : plan_(plan), graph_(*plan.graph), options_(options), needs_(needs), calls_(plan, options, needs) {}

  // Writes a function for every block except the last, which is the whole graph; blocks with equal text share one.
  // Callees come first. Throws UnsupportedError for nodes that cannot be expressed.
  std::string write_all() {
    // The plan lists inner blocks first, so each function is defined before its callers.
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

  // Returns the statements of a block; call after write_all. `kept`: variables needed at the end besides its outputs.
  std::string body_of(const CodeBlock& block, BlockNames& names, const std::vector<uint32_t>& kept) {
    // A variable is dropped after its last reader, so memory is freed where the recorded program freed it.
    const auto last = last_uses(plan_, block, kept);
    const bool keeps_mode = options_.autograd && leaves_grad_mode(plan_, block.region);
    std::string text;
    std::optional<bool> mode;
    for (size_t i = 0; i < block.items.size(); ++i) {
      const CodeBlock::Item& item = block.items[i];
      if (item.is_block()) {
        // Callees take the current gradient mode for the caller's.
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

  int64_t written() const { return static_cast<int64_t>(written_.size()); }
  int64_t called() const { return static_cast<int64_t>(functions_.size()) - 1; }
  CppCalls& calls() { return calls_; }

 private:
  struct Function {
    std::string name;
    std::string result;  // the struct that it returns; "" for no or one output
  };
  struct Written {
    Function function;
    std::string before;               // the struct of its results
    std::string text;                 // signature and body
    std::vector<std::string> places;  // module paths of the blocks that share it, for a comment above it
  };

  std::string type_of(uint32_t variable) const {
    const CodeVariable& v = plan_.variables[variable];
    if (v.kind == ValueKind::kTensor) return "at::Tensor";
    if (v.type == TypeClass::kNumber) return "at::Scalar";
    return v.kind == ValueKind::kInt ? "int64_t" : v.kind == ValueKind::kFloat ? "double" : "bool";
  }

  void write_function(uint32_t number) {
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
    // Functions are equal if their text without the name is.
    const auto [entry, is_new] = by_text_.try_emplace(type + members + signature + body, written_.size());
    if (is_new) {
      Written written;
      Function& made = written.function;
      made.name = function_names_.take_identifier(function_name(plan_, block));
      if (many) made.result = function_names_.take_identifier(made.name + "_results");
      if (many) written.before = fmt::format("struct {} {{\n{}}};\n", made.result, members);
      written.text = fmt::format("{} {}{}{}}}\n", many ? made.result : type, made.name, signature, body);
      written_.push_back(std::move(written));
    }
    Written& written = written_[entry->second];
    written.places.push_back(block.path.empty() ? graph_.phase_name(block.phase) : block.path);
    functions_[number] = written.function;
  }

  // Some kernels depend on the gradient mode, and so does autograd.
  void grad_mode(uint32_t step, std::optional<bool>& mode, std::string& text) const {
    if (!plan_.uses_grad_mode || graph_.target(plan_.steps[step].node).kind() == TargetKind::kBuiltin) return;
    const bool wanted = plan_.steps[step].grad_mode;
    if ((mode && *mode == wanted) || (options_.autograd && !mode && wanted)) return;
    // Under autograd the caller's mode has priority: within no_grad, `run` must not enable gradients.
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

  std::string drops(const std::vector<std::string>& names) {
    if (names.empty()) return "";
    needs_.helpers.insert("drop");
    return fmt::format("  drop({});\n", fmt::join(names, ", "));
  }

  // Statements end the lifetime of variables that they read last, by std::move into the call or by drop afterwards.
  std::string block_call(uint32_t number, BlockNames& names, const std::vector<uint32_t>& last) {
    const CodeBlock& block = plan_.blocks[number];
    const Function& function = functions_[number];
    const auto is_last = [&](uint32_t variable) { return std::ranges::find(last, variable) != last.end(); };
    std::vector<std::string> arguments;
    for (const uint32_t variable : block.inputs) {
      // A moved operand may be freed inside the callee; otherwise it would live until the call returns.
      arguments.push_back(is_last(variable) ? "std::move(" + names.of(variable) + ")" : names.of(variable));
    }
    std::vector<std::string> unused, results;
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

  // A call through the `checkpoint` helper, which saves the operands and calls the function again in backward. The
  // helper takes and returns lists of tensors, so the function is wrapped in a lambda.
  std::string checkpoint_call(const CodeBlock& block, const Function& function, BlockNames& names,
                              const std::vector<std::string>& arguments, const std::vector<std::string>& results) {
    needs_.helpers.insert("checkpoint");
    // Autograd saves the tensors passed to the helper, so tensors are passed in the list `in`. Numbers need no gradient
    // and are captured by value.
    std::vector<std::string> inner, captured, tensors;
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

  // One step: copies of tensor objects that it changes, the call, names for results that are used, and drops.
  std::string statement(uint32_t number, BlockNames& names, const std::vector<uint32_t>& last, bool at_end) {
    const CodeStep& step = plan_.steps[number];
    std::string text;
    for (const CodeStep::Copy& copy : step.copies) {
      needs_.helpers.insert("shallow_copy");
      text += fmt::format("  at::Tensor {} = shallow_copy({});\n", names.of(copy.to), names.of(copy.from));
    }
    const CppCalls::Call call = calls_.call(number, [&](uint32_t variable) { return names.of(variable); });
    // Unused results need no name, if only one thing is returned.
    std::vector<bool> wanted(step.results.size());
    for (size_t i = 0; i < step.results.size(); ++i) {
      wanted[i] = step.fresh[i] && plan_.variables[step.results[i]].last_use != number;
    }
    std::vector<std::string> bound;  // defined here, and to be dropped
    text += std::ranges::find(wanted, true) == wanted.end() ? "  " + call.expression + ";\n"
                                                            : results_of(number, call, names, wanted, bound);
    // At the end of a function its variables are destroyed anyway.
    if (at_end) return text;
    std::vector<std::string> dropped;
    for (const uint32_t variable : last) {
      // An unused result was never bound to a name, or is in `bound`.
      const bool made_here = std::ranges::find(step.results, variable) != step.results.end() &&
                             plan_.variables[variable].defined == number;
      if (!made_here) dropped.push_back(names.of(variable));
    }
    dropped.insert(dropped.end(), bound.begin(), bound.end());
    return text + drops(dropped);
  }

  // Takes a result out of an IValue, with the type of the variable.
  std::string from_ivalue(const std::string& text, uint32_t variable) const {
    const CodeVariable& v = plan_.variables[variable];
    if (v.kind == ValueKind::kTensor) return text + ".toTensor()";
    if (v.type == TypeClass::kNumber) return text + ".toScalar()";
    return text + (v.kind == ValueKind::kInt ? ".toInt()" : v.kind == ValueKind::kFloat ? ".toDouble()" : ".toBool()");
  }

  // Takes the used elements out of a list. `flat` counts the results of the step.
  std::string list_elements(const CodeStep& step, const std::string& list, const Argument& result,
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
    // The list would keep unused elements alive.
    if (!all) text += "  " + list + ".clear();\n";
    return text;
  }

  std::string stack_results(uint32_t number, const CppCalls::Call& call, BlockNames& names,
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
    // The stack also holds references to the results.
    return text + "  " + stack + ".clear();\n";
  }

  // Names the results of a call, depending on its C++ return type: a stack of IValues, one tensor or list, or a tuple.
  std::string results_of(uint32_t number, const CppCalls::Call& call, BlockNames& names,
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
    // Several results. References to operands (out= forms) must not be bound: dropping one would drop the operand.
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
    // A structured binding must name every result, so unused ones are dropped afterwards.
    std::vector<std::string> bindings, lists;
    for (size_t i = 0; i < results.size(); ++i) {
      if (results[i].kind == ArgumentKind::kValue) {
        bindings.push_back(names.of(step.results[flat]));
        if (!wanted[flat] && plan_.variables[step.results[flat]].kind == ValueKind::kTensor) {
          bound.push_back(bindings.back());
        }
        ++flat;
      } else {
        bindings.push_back(names.take(results[i].kind == ArgumentKind::kList ? "list" : "none"));
        if (results[i].kind == ArgumentKind::kList) lists.push_back(bindings.back());
      }
    }
    text += fmt::format("  auto [{}] = {};\n", fmt::join(bindings, ", "), call.expression);
    flat = 0;
    size_t next = 0;
    for (const Argument& result : results) {
      if (result.kind == ArgumentKind::kList) text += list_elements(step, lists[next++], result, wanted, flat, names);
      if (result.kind == ArgumentKind::kValue) ++flat;
    }
    return text;
  }

  // Returns the operand that result `position` is.
  std::string operand(uint32_t number, size_t position, BlockNames& names) {
    const NodeId node = plan_.steps[number].node;
    for (const auto& alias : graph_.facts(node).aliases) {
      const auto arguments = graph_.arguments(node);
      if (alias.result != position || arguments[alias.argument].kind != ArgumentKind::kValue) continue;
      return names.of(plan_.variable_of(arguments[alias.argument].ref.value, number));
    }
    refuse_node(graph_, node, "its result " + std::to_string(position) + " is not one of its operands");
  }

  const CodeLayout& plan_;
  const Graph& graph_;
  const CodegenOptions& options_;
  CppNeeds& needs_;
  CppCalls calls_;
  std::vector<Function> functions_;                  // by block
  std::vector<Written> written_;                     // unique texts, in the order of the file
  std::unordered_map<std::string, size_t> by_text_;  // types, results and body: place in written_
  Scope function_names_;
};

class CppWriter {
 public:
  CppWriter(const Graph& graph, const CodegenOptions& options)
      : options_(options),
        name_(identifier(options.name)),
        plan_(CodeLayout::make(graph, options)),
        graph_(*plan_.graph),
        functions_(plan_, options, needs_) {}

  GeneratedCode run() {
    // The order matters: each part adds helpers, headers and names that later parts write.
    const std::string functions = functions_.write_all();
    const std::string run = root();
    const std::string declarations = declare();
    const std::string by_name = write_by_name();
    code_.files[name_ + ".cpp"] = assemble(declarations, functions, run, by_name);
    code_.files[name_ + ".h"] = header(declarations);
    code_.files["CMakeLists.txt"] = cmake();
    code_.libraries_of.assign(needs_.libraries.begin(), needs_.libraries.end());
    code_.functions = functions_.written();
    code_.calls = functions_.called();
    return std::move(code_);
  }

 private:
  // `run`: names and checks the inputs, writes the statements of the outermost block, and returns the outputs.
  std::string root() {
    const CodeBlock& block = plan_.blocks.back();
    BlockNames names(plan_, block);
    std::string start;
    for (const auto& given : plan_.given) {
      member_names_.push_back(names.take(given.name));
      names.set(given.variable, (structs() ? "in." : "") + member_names_.back());
    }
    // Outputs live to the end, though a step may be their last reader.
    const std::vector<uint32_t> kept = plan_.returned_variables();
    if (!options_.autograd) {
      start +=
          "  // Below autograd and autocast, where the graph was recorded.\n"
          "  const c10::impl::ExcludeDispatchKeyGuard below_autograd("
          "c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset);\n"
          "  const c10::AutoGradMode no_gradients(false);\n";
    }
    if (plan_.random) {
      needs_.helpers.insert("draw_from");
      start += "  const DrawFrom draws(generator);\n";
    }
    for (const auto& given : plan_.given) start += check_and_own(given, names.of(given.variable));
    std::string body = functions_.body_of(block, names, kept);
    Scope outputs;
    for (const auto& output : plan_.outputs) {
      output_names_.push_back(outputs.take(output.gradient ? "gradient_of_" + output.name : output.name));
    }
    if (single_output()) {
      body += "  return " + output_text(0, names) + ";\n";
    } else if (!plan_.outputs.empty()) {
      body += "  Outputs out;\n";
      for (size_t i = 0; i < plan_.outputs.size(); ++i) {
        if (plan_.outputs[i].variable == CodeLayout::kNoVariable) continue;
        body += fmt::format("  out.{} = {};\n", output_names_[i], output_text(i, names));
      }
      body += "  return out;\n";
    }
    return signature() + " {\n" + start + body + "}\n";
  }

  bool single_output() const { return plan_.outputs.size() == 1; }
  std::string output_text(size_t i, BlockNames& names) const {
    const uint32_t variable = plan_.outputs[i].variable;
    return variable == CodeLayout::kNoVariable ? "at::Tensor()" : names.of(variable);
  }

  // Checks an input against the graph. A tensor whose geometry the program changes (t_, resize_) gets a separate tensor
  // object, since the caller's must not change.
  std::string check_and_own(const CodeLayout::Given& given, const std::string& name) {
    needs_.helpers.insert("expect");
    std::string text;
    if (given.node.valid()) {
      const ValueId id = graph_.results(given.node)[0].ref.value;
      const Value& value = graph_.value(id);
      text = fmt::format("  expect({}, {}, {}, {}, {}, {});\n", name, cpp::quoted(given.name), cpp::dtype(value.dtype),
                         functions_.calls().device(value.device()), cpp::ints(graph_.sizes(id)),
                         cpp::ints(graph_.strides(id)));
    }
    if (given.constant.valid() && given.written) {
      needs_.helpers.insert("copy_of");
      return text + fmt::format("  {} = copy_of({});\n", name, name);
    }
    if (!given.own || options_.autograd) return text;
    needs_.helpers.insert("own");
    return text + fmt::format("  {} = own({}, {});\n", name, name, given.written);
  }

  // All inputs have one type, so a long parameter list would invite mistakes.
  bool structs() const { return plan_.given.size() > 6; }
  std::string output_type() const {
    return plan_.outputs.empty() ? "void" : single_output() ? "at::Tensor" : "Outputs";
  }
  std::vector<std::string> parameters() const {
    if (structs()) return {"Inputs in"};
    std::vector<std::string> list;
    for (const std::string& member : member_names_) list.push_back("at::Tensor " + member);
    return list;
  }
  std::string signature() const {
    std::vector<std::string> list = parameters();
    if (plan_.random) list.emplace_back("std::optional<at::Generator> generator");
    return fmt::format("{} run({})", output_type(), fmt::join(list, ", "));
  }

  std::string declare() const {
    std::string text;
    if (structs()) {
      text += "struct Inputs {\n";
      for (size_t i = 0; i < plan_.given.size(); ++i) {
        text += fmt::format("  at::Tensor {};{}\n", member_names_[i], comment(plan_.given[i]));
      }
      text += "};\n\n";
    }
    if (plan_.outputs.size() > 1) {
      text += "struct Outputs {\n";
      for (const std::string& name : output_names_) text += fmt::format("  at::Tensor {};\n", name);
      text += "};\n\n";
    }
    return text;
  }

  std::string comment(const CodeLayout::Given& given) const {
    if (!given.node.valid()) return "";
    const ValueId id = graph_.results(given.node)[0].ref.value;
    const TargetId target = graph_.node(given.node).target;
    const char* kind = target == target_of(Builtin::kParameter) ? "parameter"
                       : target == target_of(Builtin::kBuffer)  ? "buffer"
                       : target == target_of(Builtin::kInput)   ? "input"
                                                                : "constant, in the side file";
    return fmt::format("  // {} {}[{}]{}", kind, dtype_word(graph_.value(id).dtype), fmt::join(graph_.sizes(id), ", "),
                       given.written && !given.constant.valid() ? ", written" : "");
  }

  static constexpr const char* kTensors = "std::map<std::string, at::Tensor>";

  // The second entry point, for callers with a state dict: looks up tensors by the graph's names.
  std::string write_by_name() {
    std::string text = fmt::format("{} run_by_name(const {}& tensors{}) {{\n", kTensors, kTensors,
                                   plan_.random ? ", std::optional<at::Generator> generator" : "");
    if (!plan_.given.empty()) {
      text +=
          "  const auto find = [&](const char* name) {\n"
          "    const auto found = tensors.find(name);\n"
          "    if (found == tensors.end()) throw std::invalid_argument(std::string(\"missing tensor: \") + name);\n"
          "    return found->second;\n"
          "  };\n";
    } else {
      text += "  static_cast<void>(tensors);\n";
    }
    std::vector<std::string> found;
    for (const auto& given : plan_.given) found.push_back(fmt::format("find({})", cpp::quoted(given.name)));
    std::string call = structs() ? fmt::format("{{{}}}", fmt::join(found, ",\n              "))
                                 : fmt::format("{}", fmt::join(found, ", "));
    if (structs()) {
      text += fmt::format("  Inputs in = {};\n", call);
      call = "std::move(in)";
    }
    if (plan_.random) call += call.empty() ? "generator" : ", generator";
    if (plan_.outputs.empty()) return text + fmt::format("  run({});\n  return {{}};\n}}\n", call);
    text += fmt::format("  {} out = run({});\n  {} named;\n", output_type(), call, kTensors);
    for (size_t i = 0; i < plan_.outputs.size(); ++i) {
      text += fmt::format("  named[{}] = {};\n", cpp::quoted(plan_.outputs[i].key()),
                          single_output() ? "out" : "out." + output_names_[i]);
    }
    return text + "  return named;\n}\n";
  }

  // Constants that are too large to embed.
  std::string write_constants() {
    take_side_constants(plan_, name_, code_);
    if (code_.constants.empty()) return "";
    needs_.helpers.insert("load_constants");
    return R"(
std::map<std::string, at::Tensor> load_constants(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  const std::vector<char> bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  if (bytes.empty()) throw std::invalid_argument("cannot read " + file);
  std::map<std::string, at::Tensor> constants;
  for (const auto& entry : torch::jit::pickle_load(bytes).toGenericDict()) {
    constants.emplace(entry.key().toStringRef(), entry.value().toTensor());
  }
  return constants;
}
)";
  }

  // Declarations for the header, with comments for callers.
  std::string prototypes() const {
    std::vector<std::string> list = parameters();
    std::string generator;
    if (plan_.random) {
      list.emplace_back("std::optional<at::Generator> generator = std::nullopt");
      generator = ", std::optional<at::Generator> generator = std::nullopt";
    }
    std::string text;
    if (!code_.constants.empty()) {
      text += fmt::format(
          "// Loads the tensors of {}, with the names used by run_by_name.\n{} load_constants(const std::string& "
          "file);\n\n",
          code_.constants_file, kTensors);
    }
    if (plan_.random) text += "// Uses `generator` for random numbers, or else the device's default generator.\n";
    text += fmt::format("{} run({});\n\n", output_type(), fmt::join(list, ", "));
    text +=
        "// The same with the graph's names: takes \"layer.weight\", returns \"output0\", \"gradient.layer.weight\".\n";
    text += fmt::format("{} run_by_name(const {}& tensors{});\n", kTensors, kTensors, generator);
    return text;
  }

  std::string about() const {
    std::string text = fmt::format("// {}: generated by shadowgraph for libtorch {}; no other dependencies.\n", name_,
                                   libtorch_version());
    for (const auto& [key, value] : graph_.metadata.lines()) {
      text += fmt::format("//   {}: {}\n", cpp::comment(key), cpp::comment(value));
    }
    text += options_.autograd ? "// Differentiable by autograd. Checkpoint regions are recomputed in backward.\n"
                              : "// Runs below autograd: the results have no gradient history.\n";
    for (const std::string& library : needs_.libraries) {
      text += fmt::format("// Requires the library that defines the operators of {}, loaded before it runs.\n",
                          cpp::comment(library));
    }
    return text;
  }

  // Assembles NAME.cpp. Everything that may add a header or a helper has been written before.
  std::string assemble(const std::string& declarations, const std::string& functions, const std::string& run,
                       const std::string& by_name) {
    const std::string constants = write_constants();
    std::string embedded;
    for (const uint32_t id : needs_.constants) {
      embedded += "\n" + embedded_constant(graph_, ConstantId(id));
      needs_.helpers.insert("embedded");
    }
    std::set<std::string> headers = needs_.headers;
    for (const char* header : {"ATen/core/LegacyTypeDispatch.h", "ATen/core/Tensor.h", "c10/core/GradMode.h", "map",
                               "optional", "stdexcept", "string", "vector", "array", "bit", "limits", "utility"}) {
      headers.insert(header);
    }
    if (plan_.random) headers.insert("ATen/core/Generator.h");
    if (needs_.helpers.contains("checkpoint")) headers.insert("algorithm");
    // Helpers come last, since everything above may add one.
    const std::string helpers = cpp_helpers(needs_.helpers, headers);
    std::string text = about() + "\n";
    for (const bool system : {false, true}) {
      for (const std::string& header : headers) {
        if ((header.find('/') == std::string::npos) == system) text += "#include <" + header + ">\n";
      }
      text += "\n";
    }
    text += "namespace " + name_ + " {\n\n" + declarations + "namespace {\n";
    for (const std::string& device : needs_.devices) {
      text += fmt::format("\nconst at::Device {}(\"{}\");\n", functions_.calls().device(c10::Device(device)), device);
    }
    text += helpers + embedded + functions;
    text += "\n}  // namespace\n\n// Declared in " + name_ + ".h.\n" + prototypes() + "\n" + constants + "\n" + run +
            "\n" + by_name + "\n}  // namespace " + name_ + "\n";
    return text;
  }

  std::string header(const std::string& declarations) const {
    std::string text = about() + "#pragma once\n\n#include <ATen/core/Tensor.h>\n";
    if (plan_.random) text += "#include <ATen/core/Generator.h>\n";
    text += "\n#include <map>\n#include <optional>\n#include <string>\n\n";
    return text + "namespace " + name_ + " {\n\n" + declarations + prototypes() + "\n}  // namespace " + name_ + "\n";
  }

  // The project is a library of one file, so generated code builds alone and as a folder of another project.
  std::string cmake() const {
    return fmt::format(
        R"(# cmake -S . -B build -DCMAKE_PREFIX_PATH=$(python -c 'import torch; print(torch.utils.cmake_prefix_path)')
cmake_minimum_required(VERSION 3.18)
project({0} LANGUAGES CXX)
# For a project that adds this folder; before CMake 3.24 it has to find Torch itself.
set(CMAKE_FIND_PACKAGE_TARGETS_GLOBAL ON)
find_package(Torch REQUIRED)
add_library({0} {0}.cpp)
target_compile_features({0} PUBLIC cxx_std_20)
target_include_directories({0} PUBLIC ${{CMAKE_CURRENT_SOURCE_DIR}})
target_link_libraries({0} PUBLIC ${{TORCH_LIBRARIES}})
)",
        name_);
  }

  const CodegenOptions& options_;
  std::string name_;
  CodeLayout plan_;
  const Graph& graph_;  // the plan's
  CppNeeds needs_;
  CppFunctions functions_;
  GeneratedCode code_;
  std::vector<std::string> member_names_;  // parallel to plan_.given
  std::vector<std::string> output_names_;  // parallel to plan_.outputs
};

}  // namespace

GeneratedCode emit_cpp(const Graph& graph, const CodegenOptions& options) { return CppWriter(graph, options).run(); }

}  // namespace shadowgraph
