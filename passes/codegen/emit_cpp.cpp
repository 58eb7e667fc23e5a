#include "passes/codegen/emit_cpp.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/replay/functional_call.h"
#include "ir/operator_facts.h"
#include "ir/tensor_bytes.h"
#include "ir/words.h"
#include "passes/codegen/code_names.h"
#include "passes/codegen/cpp_call.h"
#include "passes/codegen/cpp_constants.h"
#include "passes/codegen/cpp_helpers.h"

namespace shadowgraph {
namespace {

using Returns = CppCalls::Returns;

class CppWriter {
 public:
  CppWriter(const Graph& graph, const CodegenOptions& options)
      : graph_(graph),
        options_(options),
        name_(identifier(options.name)),
        plan_(CodePlan::make(graph, options)),
        calls_(plan_, options, needs_) {}

  GeneratedCode run() {
    refuse_backward();
    functions_.resize(plan_.blocks.size());
    for (uint32_t block = 0; block + 1 < plan_.blocks.size(); ++block) write_function(block);
    const std::string run = root();
    const std::string declarations = declare();
    const std::string by_name = write_by_name();
    code_.files[name_ + ".cpp"] = assemble(declarations, run, by_name);
    code_.files[name_ + ".h"] = header(declarations);
    code_.files["CMakeLists.txt"] = cmake();
    for (const std::string& library : needs_.libraries) code_.libraries_of.push_back(library);
    return std::move(code_);
  }

 private:
  struct Function {
    std::string name;
    std::string result;  // the struct it gives; "" for none or one output
  };

  void refuse_backward() const {
    if (!options_.autograd) return;
    for (const CodeStep& step : plan_.steps) {
      if (graph_.node(step.node).phase != Graph::kBackward && graph_.node(step.node).phase != Graph::kOptimizer)
        continue;
      calls_.fail(step.node, "code for autograd is made from a forward graph, and this node belongs to the " +
                                 graph_.phase_name(graph_.node(step.node).phase) +
                                 "; capture the forward alone, choose values of the forward, or turn autograd off");
    }
  }

  std::string type_of(uint32_t variable) const {
    const CodeVariable& v = plan_.variables[variable];
    if (v.kind == ValueKind::kTensor) return "at::Tensor";
    if (v.type == c10::TypeKind::NumberType) return "at::Scalar";
    return v.kind == ValueKind::kInt ? "int64_t" : v.kind == ValueKind::kFloat ? "double" : "bool";
  }

  // ---- Functions

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
    ++code_.calls;
    code_.functions = static_cast<int64_t>(written_.size());
  }

  std::string place(const CodeBlock& block) const {
    return block.path.empty() ? graph_.phase_name(block.phase) : block.path;
  }

  // `kept`: variables to be there at the end besides the outputs.
  std::string body_of(const CodeBlock& block, BlockNames& names, const std::vector<uint32_t>& kept) {
    const auto last = last_uses(plan_, block, kept);
    const bool recomputed = in_checkpoint(block.region);
    std::string text;
    std::optional<bool> mode;
    for (size_t i = 0; i < block.items.size(); ++i) {
      const CodeBlock::Item& item = block.items[i];
      if (item.is_block()) {
        text += block_call(item.block, names, last[i]);
        continue;
      }
      if (!(options_.autograd && recomputed)) grad_mode(item.step, mode, text);
      text += statement(item.step, names, last[i], i + 1 == block.items.size());
    }
    return text;
  }

  bool in_checkpoint(RegionId region) const {
    for (; region.valid(); region = graph_.region(region).parent) {
      if (graph_.region(region).kind == RegionKind::kCheckpoint) return true;
    }
    return false;
  }

  // Some kernels ask whether gradients are wanted, and so does autograd.
  void grad_mode(uint32_t step, std::optional<bool>& mode, std::string& text) const {
    if (!plan_.uses_grad_mode || graph_.target(plan_.steps[step].node).kind() == TargetKind::kBuiltin) return;
    const bool wanted = plan_.steps[step].grad_mode;
    if (mode == wanted || (options_.autograd && !mode && wanted)) return;
    if (options_.autograd) {
      if (!declares_mode(text)) {
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
  static bool declares_mode(const std::string& text) { return text.find("with_gradients") != std::string::npos; }

  // ---- Statements

  std::string drops(const std::vector<std::string>& names) {
    if (names.empty()) return "";
    needs_.helpers.insert("drop");
    return fmt::format("  drop({});\n", fmt::join(names, ", "));
  }

  std::string block_call(uint32_t number, BlockNames& names, const std::vector<uint32_t>& last) {
    const CodeBlock& block = plan_.blocks[number];
    const Function& function = functions_[number];
    const auto is_last = [&](uint32_t variable) { return std::ranges::find(last, variable) != last.end(); };
    std::vector<std::string> arguments;
    for (const uint32_t variable : block.inputs) {
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

  std::string checkpoint_call(const CodeBlock& block, const Function& function, BlockNames& names,
                              const std::vector<std::string>& arguments, const std::vector<std::string>& results) {
    needs_.helpers.insert("checkpoint");
    std::vector<std::string> inner;
    std::vector<std::string> captured;
    std::vector<std::string> tensors;
    for (size_t i = 0; i < block.inputs.size(); ++i) {
      if (plan_.variables[block.inputs[i]].kind != ValueKind::kTensor) {
        captured.push_back(names.of(block.inputs[i]));
        inner.push_back(captured.back());
      } else {
        inner.push_back(fmt::format("std::move(in[{}])", tensors.size()));
        tensors.push_back(arguments[i]);
      }
    }
    for (const uint32_t variable : block.outputs) {
      if (plan_.variables[variable].kind == ValueKind::kTensor) continue;
      calls_.fail(plan_.steps[plan_.variables[variable].defined].node,
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
        "      {{{}}});\n",
        results.empty() ? "" : "std::vector<at::Tensor> " + list + " = ", fmt::join(captured, ", "), body,
        fmt::join(tensors, ", "));
    for (size_t i = 0; i < results.size(); ++i) {
      text += fmt::format("  at::Tensor {} = std::move({}[{}]);\n", results[i], list, i);
    }
    return text;
  }

  std::string statement(uint32_t number, BlockNames& names, const std::vector<uint32_t>& last, bool at_end) {
    const CodeStep& step = plan_.steps[number];
    std::string text;
    for (const CodeStep::Copy& copy : step.copies) {
      needs_.helpers.insert("shallow_copy");
      text += fmt::format("  at::Tensor {} = shallow_copy({});\n", names.of(copy.to), names.of(copy.from));
    }
    const auto name_of = [&](uint32_t variable) { return names.of(variable); };
    CppCalls::Call call = calls_.call(number, name_of);
    if (graph_.target(step.node).kind() == TargetKind::kFunction) {
      // functional_call(name, overload, written, fresh, arguments)
      const std::string lists = functional_lists(step.node);
      call.expression.insert(call.expression.find(", {") + 2, lists + ", ");
    }
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
    if (at_end) return text;
    std::vector<std::string> dropped;
    for (const uint32_t variable : last) {
      const bool made_here = std::ranges::find(step.results, variable) != step.results.end() &&
                             plan_.variables[variable].defined == number;
      if (!made_here) dropped.push_back(names.of(variable));
    }
    dropped.insert(dropped.end(), bound.begin(), bound.end());
    return text + drops(dropped);
  }

  std::string functional_lists(NodeId node) const {
    const auto op = operator_of_functional_call(graph_.target(node));
    const OperatorFacts facts = facts_of(*op);
    std::vector<size_t> fresh;
    for (size_t r = 0; r < op->schema().returns().size(); ++r) {
      if (std::ranges::find(facts.aliases, r, &OperatorFacts::Alias::result) == facts.aliases.end()) fresh.push_back(r);
    }
    return fmt::format("{{{}}}, {{{}}}", fmt::join(facts.written, ", "), fmt::join(fresh, ", "));
  }

  std::string from_ivalue(const std::string& text, uint32_t variable) const {
    const CodeVariable& v = plan_.variables[variable];
    if (v.kind == ValueKind::kTensor) return text + ".toTensor()";
    if (v.type == c10::TypeKind::NumberType) return text + ".toScalar()";
    return text + (v.kind == ValueKind::kInt ? ".toInt()" : v.kind == ValueKind::kFloat ? ".toDouble()" : ".toBool()");
  }

  std::string results_of(uint32_t number, const CppCalls::Call& call, BlockNames& names,
                         const std::vector<bool>& wanted, std::vector<std::string>& bound) {
    const CodeStep& step = plan_.steps[number];
    const auto results = graph_.results(step.node);
    std::string text;
    size_t flat = 0;
    const auto element_lines = [&](const std::string& list, const Argument& result) {
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
      if (!all) text += "  " + list + ".clear();\n";
    };
    if (call.returns == Returns::kStack) {
      const std::string stack = names.take("stack");
      text += fmt::format("  std::vector<c10::IValue> {} = {};\n", stack, call.expression);
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
          element_lines(list, results[i]);
        }
      }
      return text + "  " + stack + ".clear();\n";
    }
    if (call.returns == Returns::kOne) {
      if (results[0].kind == ArgumentKind::kList) {
        const std::string list = names.take("list");
        text += fmt::format("  std::vector<at::Tensor> {} = {};\n", list, call.expression);
        element_lines(list, results[0]);
        return text;
      }
      const uint32_t variable = step.results[0];
      return fmt::format("  {} {} = {};\n", type_of(variable), names.of(variable), call.expression);
    }
    // Several. References to operands (out= forms) are not to be bound: letting go of one would take the operand away.
    if (!facts_.of(graph_, graph_.node(step.node).target).written.empty() &&
        !facts_.of(graph_, graph_.node(step.node).target).aliases.empty()) {
      text += "  " + call.expression + ";\n";
      for (size_t i = 0; i < results.size(); ++i) {
        if (results[i].kind != ArgumentKind::kValue) continue;
        if (wanted[flat])
          text += fmt::format("  at::Tensor {} = {};\n", names.of(step.results[flat]), operand(number, i, names));
        ++flat;
      }
      return text;
    }
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
        element_lines(lists[next++].first, results[i]);
      } else if (results[i].kind == ArgumentKind::kValue) {
        ++flat;
      }
    }
    return text;
  }

  // The operand that result `position` is.
  std::string operand(uint32_t number, size_t position, BlockNames& names) {
    const NodeId node = plan_.steps[number].node;
    for (const auto& alias : facts_.of(graph_, graph_.node(node).target).aliases) {
      const auto arguments = graph_.arguments(node);
      if (alias.result != position || arguments[alias.argument].kind != ArgumentKind::kValue) continue;
      return names.of(plan_.variable_of(arguments[alias.argument].ref.value, number));
    }
    calls_.fail(node, "its result " + std::to_string(position) + " is none of its operands");
  }

  // ---- The whole

  std::string root() {
    const CodeBlock& block = plan_.blocks.back();
    BlockNames names(plan_, block);
    std::string start;
    for (const auto& given : plan_.given) {
      member_names_.push_back(names.take(given.name));
      names.set(given.variable, (structs() ? "in." : "") + member_names_.back());
    }
    std::vector<uint32_t> kept;
    for (const auto& output : plan_.outputs) {
      if (output.variable != CodePlan::kNoVariable) kept.push_back(output.variable);
    }
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
    std::string body = body_of(block, names, kept);
    // Outputs.
    Scope outputs;
    for (const auto& output : plan_.outputs) {
      output_names_.push_back(outputs.take(output.gradient ? "gradient_of_" + output.name : output.name));
    }
    if (single_output()) {
      body += "  return " + output_text(0, names) + ";\n";
    } else if (!plan_.outputs.empty()) {
      body += "  Outputs out;\n";
      for (size_t i = 0; i < plan_.outputs.size(); ++i) {
        if (plan_.outputs[i].variable == CodePlan::kNoVariable) continue;
        body += fmt::format("  out.{} = {};\n", output_names_[i], output_text(i, names));
      }
      body += "  return out;\n";
    }
    return signature() + " {\n" + start + body + "}\n";
  }

  bool single_output() const { return plan_.outputs.size() == 1; }
  std::string output_text(size_t i, BlockNames& names) const {
    const uint32_t variable = plan_.outputs[i].variable;
    return variable == CodePlan::kNoVariable ? "at::Tensor()" : names.of(variable);
  }

  std::string check_and_own(const CodePlan::Given& given, const std::string& name) {
    needs_.helpers.insert("expect");
    std::string text;
    if (given.node.valid()) {
      const ValueId id = graph_.results(given.node)[0].ref.value;
      const Value& value = graph_.value(id);
      text = fmt::format("  expect({}, {}, {}, {}, {}, {});\n", name, CppCalls::quoted(given.name),
                         CppCalls::dtype(value.dtype), calls_.device(value.device()), CppCalls::ints(graph_.sizes(id)),
                         CppCalls::ints(graph_.strides(id)));
    }
    if (given.constant.valid() && given.written) {
      needs_.helpers.insert("copy_of");
      return text + fmt::format("  {} = copy_of({});\n", name, name);
    }
    if (!given.own || options_.autograd) return text;
    needs_.helpers.insert("own");
    return text + fmt::format("  {} = own({}, {});\n", name, name, given.written);
  }

  bool structs() const { return plan_.given.size() > 6; }
  std::string output_type() const {
    return plan_.outputs.empty() ? "void" : single_output() ? "at::Tensor" : "Outputs";
  }
  std::vector<std::string> parameters() const {
    std::vector<std::string> list;
    if (structs()) {
      list.emplace_back("Inputs in");
    } else {
      for (const std::string& member : member_names_) list.push_back("at::Tensor " + member);
    }
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

  std::string comment(const CodePlan::Given& given) const {
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

  std::string write_by_name() {
    std::string text = fmt::format("{} run_by_name(const {}& tensors{}) {{\n", kTensors, kTensors,
                                   plan_.random ? ", std::optional<at::Generator> generator" : "");
    if (!plan_.given.empty()) {
      text +=
          "  const auto find = [&](const char* name) {\n"
          "    const auto found = tensors.find(name);\n"
          "    if (found == tensors.end()) throw std::invalid_argument(std::string(\"there is no tensor for \") + "
          "name);\n"
          "    return found->second;\n"
          "  };\n";
    } else {
      text += "  static_cast<void>(tensors);\n";
    }
    std::vector<std::string> found;
    for (const auto& given : plan_.given) found.push_back(fmt::format("find({})", CppCalls::quoted(given.name)));
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
      const auto& output = plan_.outputs[i];
      const std::string key = output.gradient ? "gradient." + output.name : output.name;
      text += fmt::format("  named[{}] = {};\n", CppCalls::quoted(key),
                          single_output() ? "out" : "out." + output_names_[i]);
    }
    return text + "  return named;\n}\n";
  }

  // Constants that did not fit into the code.
  std::string write_constants() {
    for (const auto& given : plan_.given) {
      if (!given.constant.valid()) continue;
      const at::Tensor& tensor = graph_.constant(given.constant);
      if (!tensor_bytes(tensor)) {
        throw CodegenError("the contents of the constant " + given.name + " cannot be read, so no code can hold them");
      }
      code_.constants.emplace_back(given.name, tensor);
    }
    if (code_.constants.empty()) return "";
    code_.constants_file = name_ + "_constants.pt";
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
          "// The tensors of {}, by the names that run_by_name takes.\n{} load_constants(const std::string& file);\n\n",
          code_.constants_file, kTensors);
    }
    if (plan_.random) text += "// Draws random numbers from `generator`, or else from the default one of the device.\n";
    text += fmt::format("{} run({});\n\n", output_type(), fmt::join(list, ", "));
    text +=
        "// The same with the names that the graph has: \"layer.weight\"; gives \"output0\", "
        "\"gradient.layer.weight\".\n";
    text += fmt::format("{} run_by_name(const {}& tensors{});\n", kTensors, kTensors, generator);
    return text;
  }

  std::string about() const {
    std::string text = fmt::format("// {}: written by shadowgraph for libtorch {}, and needs nothing else.\n", name_,
                                   libtorch_version());
    for (const auto& [key, value] : graph_.metadata) {
      text += fmt::format("//   {}: {}\n", comment_text(key), comment_text(value));
    }
    if (options_.autograd) {
      text += "// Autograd differentiates it. What was a checkpoint region is run again in backward.\n";
    } else {
      text += "// It runs below autograd: what it returns has no history.\n";
    }
    for (const std::string& library : needs_.libraries) {
      text += fmt::format("// Needs the library that defines the operators of {}, loaded before it runs.\n",
                          comment_text(library));
    }
    return text;
  }
  static std::string comment_text(std::string text) {
    for (char& c : text) {
      if (static_cast<unsigned char>(c) < 0x20 || c == '\\' || c == '?') c = ' ';
    }
    return text;
  }

  std::string assemble(const std::string& declarations, const std::string& run, const std::string& by_name) {
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
      text += fmt::format("\nconst at::Device {}(\"{}\");\n", calls_.device(c10::Device(device)), device);
    }
    text += helpers + embedded;
    for (const Written& written : written_) {
      text += "\n// " + places(written.places) + "\n" + written.before + written.text;
    }
    text += "\n}  // namespace\n\n" + prototypes_for_source() + constants + "\n" + run + "\n" + by_name +
            "\n}  // namespace " + name_ + "\n";
    return text;
  }

  // Declared before they are defined, so that no warning asks for it.
  std::string prototypes_for_source() const { return "// What " + name_ + ".h declares.\n" + prototypes() + "\n"; }

  static std::string places(const std::vector<std::string>& places) {
    std::string text = comment_text(places.front());
    if (places.size() > 1) text += fmt::format(" ... {}, {} times", comment_text(places.back()), places.size());
    return text;
  }

  std::string header(const std::string& declarations) const {
    std::string text = about() + "#pragma once\n\n#include <ATen/core/Tensor.h>\n";
    if (plan_.random) text += "#include <ATen/core/Generator.h>\n";
    text += "\n#include <map>\n#include <optional>\n#include <string>\n\n";
    return text + "namespace " + name_ + " {\n\n" + declarations + prototypes() + "\n}  // namespace " + name_ + "\n";
  }

  std::string cmake() const {
    return fmt::format(
        R"(# cmake -S . -B build -DCMAKE_PREFIX_PATH=$(python -c 'import torch; print(torch.utils.cmake_prefix_path)')
cmake_minimum_required(VERSION 3.18)
project({0} LANGUAGES CXX)
find_package(Torch REQUIRED)
add_library({0} {0}.cpp)
target_compile_features({0} PUBLIC cxx_std_20)
target_include_directories({0} PUBLIC ${{CMAKE_CURRENT_SOURCE_DIR}})
target_link_libraries({0} PUBLIC ${{TORCH_LIBRARIES}})
)",
        name_);
  }

  struct Written {
    Function function;
    std::string before;
    std::string text;
    std::vector<std::string> places;
  };

  const Graph& graph_;
  const CodegenOptions& options_;
  std::string name_;
  CodePlan plan_;
  CppNeeds needs_;
  CppCalls calls_;
  OperatorFactsCache facts_;
  GeneratedCode code_;
  std::vector<Function> functions_;  // by block
  std::vector<Written> written_;
  std::unordered_map<std::string, size_t> by_text_;
  Scope function_names_;
  std::vector<std::string> member_names_;  // parallel to plan_.given
  std::vector<std::string> output_names_;  // parallel to plan_.outputs
};

}  // namespace

GeneratedCode emit_cpp(const Graph& graph, const CodegenOptions& options) { return CppWriter(graph, options).run(); }

}  // namespace shadowgraph
