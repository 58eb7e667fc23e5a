// Writes a plan as one Python file whose `forward` takes and returns tensors by name.
// Works like the C++ writer; `del` frees tensors after their last reader. Operators are written with their overload,
// `torch.ops.aten.add.Tensor`, so that overload resolution cannot choose another one. Linear in the generated text.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>
#include <functional>
#include <set>
#include <string>

#include "codegen/code_layout.h"
#include "codegen/code_names.h"
#include "codegen/literals.h"
#include "core/calls/functions.h"
#include "ir/operators/operator_facts.h"
#include "ir/operators/operator_name.h"
#include "ir/text/tensor_bytes.h"
#include "ir/text/words.h"
#include "shadowgraph/codegen/codegen.h"
#include "shadowgraph/graph/libtorch.h"
#include "shadowgraph/graph/target.h"

namespace shadowgraph {
namespace {

class PythonCalls {
 public:
  using NameOf = std::function<std::string(uint32_t variable)>;

  PythonCalls(const CodeLayout& plan, const CodegenOptions& options)
      : plan_(plan), graph_(*plan.graph), options_(options) {}

  // Throws UnsupportedError for nodes that cannot be expressed.
  std::string call(uint32_t step, const NameOf& name_of) {
    step_ = step;
    name_of_ = &name_of;
    const NodeId node = plan_.steps[step].node;
    const Target& target = graph_.target(node);
    if (graph_.node(node).target == target_of(Builtin::kAlias)) return alias(node);
    if (target.kind() == TargetKind::kBuiltin) return constant(graph_.arguments(node)[0].constant);
    if (target.kind() == TargetKind::kFunction) return function_call(node, target);
    refuse_another_schema(graph_, node);
    const std::vector<std::string> arguments = arguments_of(node, false);
    if (!find_operator(target)) refuse_other_attributes(node, target.signature().name);
    return fmt::format("{}({})", operator_text(target.signature()), fmt::join(arguments, ", "));
  }

  std::string device(c10::Device device) const {
    // A device chosen for the code replaces all recorded ones.
    if (options_.device) device = *options_.device;
    return fmt::format("torch.device(\"{}\")", device.str());
  }

  std::string constant(ConstantId id) const {
    const TensorBytes content = readable_constant(graph_, id, fmt::format("c{}", id.index));
    if (content.bytes.empty()) {
      return fmt::format("torch.empty_strided({}, {}, dtype={})", python::ints(content.sizes),
                         python::ints(content.strides), python::dtype(content.dtype));
    }
    std::string elements;
    if (content.dtype == at::kLong) {
      for (size_t i = 0; i + 8 <= content.bytes.size(); i += 8) {
        int64_t value = 0;
        std::memcpy(&value, content.bytes.data() + i, 8);
        elements += (i == 0 ? "" : ", ") + std::to_string(value);
      }
      elements = "torch.tensor([" + elements + "], dtype=torch.int64)";
    } else {
      // Bytes preserve NaN payloads and half types; integers are more readable as numbers.
      for (const uint8_t byte : content.bytes) elements += fmt::format("{:02x}", byte);
      elements =
          fmt::format("torch.frombuffer(bytearray.fromhex(\"{}\"), dtype={})", elements, python::dtype(content.dtype));
    }
    return fmt::format("{}.as_strided({}, {})", elements, python::ints(content.sizes), python::ints(content.strides));
  }

  const std::set<std::string>& helpers() const { return helpers_; }
  const std::set<std::string>& libraries() const { return libraries_; }
  const std::set<std::string>& modules() const { return modules_; }  // of functions named in the options

 private:
  std::string argument(const Argument& a, const FormalType& type) {
    switch (a.kind) {
      case ArgumentKind::kNone:
        return "None";
      case ArgumentKind::kValue:
        return (*name_of_)(plan_.variable_of(a.ref.value, step_));
      case ArgumentKind::kInt:
        switch (type.type) {
          case TypeClass::kDtype:
            return python::dtype(static_cast<c10::ScalarType>(a.i));
          case TypeClass::kLayout:
            return python::layout(a.i);
          case TypeClass::kMemoryFormat:
            return python::memory_format(a.i);
          default:
            return std::to_string(a.i);
        }
      case ArgumentKind::kFloat:
        return python::number(a.d);
      case ArgumentKind::kBool:
        return a.b ? "True" : "False";
      case ArgumentKind::kComplex: {
        const auto parts = graph_.complex_parts(a);
        return fmt::format("complex({}, {})", python::number(parts[0]), python::number(parts[1]));
      }
      case ArgumentKind::kString:
        return python::quoted(graph_.text(a.string));
      case ArgumentKind::kDevice:
        return device(a.device());
      case ArgumentKind::kIntList:
        return python::ints(graph_.ints(a));
      case ArgumentKind::kList: {
        std::vector<std::string> elements;
        const FormalType element{type.element, type.element_optional};
        for (const Argument& e : graph_.list(a)) elements.push_back(argument(e, element));
        return fmt::format("[{}]", fmt::join(elements, ", "));
      }
      case ArgumentKind::kConstant:
        if (const auto variable = plan_.variable_of_constant(a.constant)) return (*name_of_)(*variable);
        return constant(a.constant);
      case ArgumentKind::kGenerator:
        if (type.optional) return "None";
        return a.device().is_cpu()
                   ? "torch.default_generator"
                   : fmt::format("torch.cuda.default_generators[{}]", std::max<int>(a.device().index(), 0));
      case ArgumentKind::kOpaque:
        refuse_opaque(graph_, plan_.steps[step_].node, a);
    }
    return {};
  }

  // Writes the arguments of a call, omitting trailing defaults unless all are requested. User functions and functional
  // calls take all arguments by position, since they have no schema in Python.
  std::vector<std::string> arguments_of(NodeId node, bool all_by_position) {
    const Signature& formals = graph_.target(node).signature();
    const std::vector<Argument> arguments = arguments_with_device(graph_, node);
    std::vector<std::string> positional, keywords;
    size_t last = 0;
    for (size_t i = 0; i < arguments.size(); ++i) {
      const FormalType type = i < formals.arguments.size() ? formals.arguments[i].type : FormalType{};
      const bool keyword = i < formals.arguments.size() && formals.arguments[i].keyword_only;
      const bool is_default = i < formals.arguments.size() && formals.arguments[i].default_value &&
                              formals.arguments[i].default_value->equals(graph_, arguments[i]);
      const std::string text = argument(arguments[i], type);
      if (all_by_position || !keyword) {
        positional.push_back(text);
        if (!is_default || all_by_position) last = positional.size();
      } else if (!is_default) {
        const std::string& name = formals.arguments[i].name;
        keywords.push_back(python::is_keyword(name) ? fmt::format("**{{{}: {}}}", python::quoted(name), text)
                                                    : name + "=" + text);
      }
    }
    positional.resize(last);
    positional.insert(positional.end(), keywords.begin(), keywords.end());
    return positional;
  }

  // Another tensor over the storage of a value, with the graph's geometry: views that no operator created (.data =).
  std::string alias(NodeId node) {
    const ValueId from = graph_.arguments(node)[0].ref.value, to = graph_.results(node)[0].ref.value;
    helpers_.insert("alias_of");
    return fmt::format("alias_of({}, {}, {}, {}, {})", (*name_of_)(plan_.variable_of(from, step_)),
                       python::dtype(graph_.value(to).dtype), python::ints(graph_.sizes(to)),
                       python::ints(graph_.strides(to)), bytes_between(graph_, from, to));
  }

  std::string function_call(NodeId node, const Target& target) {
    const std::string arguments = fmt::format("{}", fmt::join(arguments_of(node, true), ", "));
    // A function named by the user comes first, so that it can replace the ones below.
    if (const auto named = options_.functions.find(target.name()); named != options_.functions.end()) {
      const auto& [callee, module] = named->second;
      if (module.empty()) return callee + "(" + arguments + ")";
      modules_.insert(module);
      return module + "." + callee + "(" + arguments + ")";
    }
    if (const auto op = operator_of_functional_call(target)) {
      helpers_.insert("functional_call");
      const OperatorFacts& facts = op->facts();
      return fmt::format("functional_call({}, [{}], [{}], [{}])", operator_text(op->signature()),
                         fmt::join(facts.written, ", "),
                         fmt::join(fresh_results(facts, op->signature().returns.size()), ", "), arguments);
    }
    const bool gets = target.name() == get_random_state().name();
    if (gets || target.name() == exchange_random_state().name() || target.name() == set_random_state().name()) {
      helpers_.insert("random_state");
      return gets ? "default_generator(" + arguments + ").get_state()" : "exchange_random_state(" + arguments + ")";
    }
    if (target.name() == seed_generator().name()) {
      helpers_.insert("random_state");
      return "seed_generator(" + arguments + ")";
    }
    refuse_node(graph_, node, why_no_function(target));
  }

  // torch.ops has attributes besides operators: torch.ops.load_library.__self__.load_library(path) runs code.
  void refuse_other_attributes(NodeId node, const std::string& name) const {
    const std::string_view library = namespace_of(name);
    const bool is_attribute = library.empty() || library.starts_with("__") || library == "load_library" ||
                              library == "import_module" || library == "loaded_libraries";
    if (!is_attribute && !name.substr(library.size()).starts_with("::__")) return;
    refuse_node(graph_, node, "this name is not an operator, but an attribute of torch.ops in Python");
  }

  std::string operator_text(const Signature& signature) {
    std::string text = "torch.ops", name = signature.name;
    if (const std::string library(namespace_of(name)); !library.empty()) {
      // These are part of PyTorch; others must be loaded before, as stated in the file.
      if (library != "aten" && library != "prim" && library != "prims") libraries_.insert(library);
      text = python::attribute(text, library);
      name.erase(0, library.size() + 2);
    }
    // random_.from is a Python keyword.
    return python::attribute(python::attribute(text, name),
                             signature.overload.empty() ? "default" : signature.overload);
  }

  const CodeLayout& plan_;
  const Graph& graph_;
  const CodegenOptions& options_;
  std::set<std::string> helpers_;    // "alias_of": functions at the top of the file
  std::set<std::string> libraries_;  // namespaces of operators outside PyTorch
  std::set<std::string> modules_;
  // State of the current call.
  const NameOf* name_of_ = nullptr;
  uint32_t step_ = 0;
};

constexpr const char* kAliasOf = R"(
def alias_of(source, dtype, sizes, strides, offset):
    """Another tensor over the storage of `source`, starting `offset` bytes after its first element."""
    begin = source.storage_offset() * source.element_size() + offset
    alias = torch.empty(0, dtype=dtype, device=source.device)
    return alias.set_(source.untyped_storage(), begin // alias.element_size(), sizes, strides)

)";

constexpr const char* kFunctionalCall = R"(
def functional_call(operator, written, fresh, arguments):
    """Runs an operator that writes its arguments on copies of the written storages."""
    copies = {}

    def add(tensor):
        plain = tensor.conj() if tensor.is_conj() else tensor
        plain = plain._neg_view() if plain.is_neg() else plain
        size, item = plain.untyped_storage().nbytes(), plain.element_size()
        if size % item:  # no whole number of elements: in bytes
            plain, item = plain.as_strided([min(size // item, 1)], [1], 0).view(torch.uint8), 1
        elements = size // item
        copies.setdefault(tensor.untyped_storage()._cdata, plain.as_strided([elements], [1], 0).clone())

    def moved(value):
        if isinstance(value, (list, tuple)):
            return [moved(element) for element in value]
        if not isinstance(value, torch.Tensor) or value.untyped_storage()._cdata not in copies:
            return value
        flat = copies[value.untyped_storage()._cdata]
        if flat.dtype != value.dtype and (rest := flat.nbytes % value.element_size()):
            flat = flat.view(torch.uint8)[:-rest]
        flat = flat if flat.dtype == value.dtype else flat.view(value.dtype)
        result = flat.as_strided(value.shape, value.stride(), value.storage_offset())
        result = result._neg_view() if value.is_neg() else result
        return result.conj() if value.is_conj() else result

    for position in written:
        given = arguments[position]
        for tensor in given if isinstance(given, (list, tuple)) else [given]:
            if isinstance(tensor, torch.Tensor):
                add(tensor)
    arguments = [moved(argument) for argument in arguments]
    names = [argument.name for argument in operator._schema.arguments]
    keywords = {a.name: v for a, v in zip(operator._schema.arguments, arguments) if a.kwarg_only}
    results = operator(*arguments[: len(names) - len(keywords)], **keywords)
    results = results if isinstance(results, (list, tuple)) else [results]
    every = [results[position] for position in fresh] + [arguments[position] for position in written]
    return every[0] if len(every) == 1 else every

)";

constexpr const char* kRandomState = R"(
def default_generator(device):
    """Returns the default generator of the device."""
    return torch.default_generator if device.type == "cpu" else torch.cuda.default_generators[device.index or 0]

def exchange_random_state(state, device):
    """Sets the state of the default generator; returns the previous one."""
    before = default_generator(device).get_state()
    default_generator(device).set_state(state)
    return before

def seed_generator(seed, device):
    """Seeds the default generator."""
    default_generator(device).manual_seed(seed)

)";

constexpr const char* kStatisticsOnce = R"(
class StatisticsOnce:
    """Wraps a checkpoint's function: running statistics, by position, are only updated in its first run."""

    def __init__(self, function, statistics):
        self.function, self.statistics, self.has_run = function, statistics, False

    def __call__(self, *arguments):
        arguments = list(arguments)
        for position, tensor in self.statistics.items():
            arguments.insert(position, tensor.clone() if self.has_run else tensor)
        self.has_run = True
        return self.function(*arguments)

)";

class PythonWriter {
 public:
  PythonWriter(const Graph& graph, const CodegenOptions& options)
      : options_(options),
        name_(identifier(options.name)),
        plan_(CodeLayout::make(graph, options)),
        graph_(*plan_.graph),
        calls_(plan_, options) {}

  GeneratedCode run() {
    functions_.resize(plan_.blocks.size());
    for (uint32_t block = 0; block + 1 < plan_.blocks.size(); ++block) write_function(block);
    const std::string forward = root();
    take_side_constants(plan_, name_, code_);
    std::string text = about();
    text += "import math\nimport os\nimport struct\n\nimport torch\nimport torch.utils.checkpoint\n";
    if (!code_.constants_file.empty()) text += "import torch.jit._pickle\n";
    for (const std::string& module : calls_.modules()) text += "import " + module + "\n";
    text += "\n";
    if (!code_.constants_file.empty()) {
      // The file also has the type of its dictionary; nothing else in it may run code.
      text += fmt::format(
          "with torch.serialization.safe_globals([torch.jit._pickle.restore_type_tag]):\n"
          "    CONSTANTS = torch.load(os.path.join(os.path.dirname(os.path.abspath(__file__)), {}), "
          "weights_only=True)\n\n",
          python::quoted(code_.constants_file));
    }
    if (calls_.helpers().contains("alias_of")) text += kAliasOf;
    if (calls_.helpers().contains("functional_call")) text += kFunctionalCall;
    if (calls_.helpers().contains("random_state")) text += kRandomState;
    if (uses_statistics_) text += kStatisticsOnce;
    for (const std::string& function : written_) text += "\n" + function + "\n";
    code_.files[name_ + ".py"] = text + "\n" + forward;
    for (const std::string& library : calls_.libraries()) code_.libraries_of.push_back(library);
    return std::move(code_);
  }

 private:
  enum class GradMode { kUnknown, kOff, kOn };  // mode of the current function

  std::string about() const {
    std::string text = fmt::format("\"\"\"{}: generated by shadowgraph for PyTorch {}.\n\n", name_, libtorch_version());
    for (const auto& [key, value] : graph_.metadata.lines()) {
      text += python::comment(key) + ": " + python::comment(value) + "\n";
    }
    for (const std::string& library : calls_.libraries()) {
      text += "Requires the library that defines the operators of " + python::comment(library) + ".\n";
    }
    return text + "\"\"\"\n\n";
  }

  // A variable must not shadow a module.
  BlockNames names_in(const CodeBlock& block) const {
    BlockNames names(plan_, block);
    for (const auto& [name, function] : options_.functions) {
      if (!function.from.empty()) names.take(function.from.substr(0, function.from.find('.')));
    }
    return names;
  }

  // Writes a block as a function, unless an equal one exists.
  void write_function(uint32_t number) {
    const CodeBlock& block = plan_.blocks[number];
    BlockNames names = names_in(block);
    std::vector<std::string> parameters;
    for (const uint32_t variable : block.inputs) parameters.push_back(names.of(variable));
    std::string body = body_of(block, names, {}, "    ");
    std::vector<std::string> returned;
    for (const uint32_t variable : block.outputs) returned.push_back(names.of(variable));
    if (!returned.empty()) body += fmt::format("    return {}\n", fmt::join(returned, ", "));
    const std::string rest = fmt::format("({}):\n{}", fmt::join(parameters, ", "), body.empty() ? "    pass\n" : body);
    // Equal layers share one function, so the name is not part of the text.
    const auto [entry, is_new] = by_text_.try_emplace(rest, "");
    if (is_new) {
      entry->second = function_names_.take_identifier(function_name(plan_, block));
      written_.push_back("def " + entry->second + rest);
    }
    functions_[number] = entry->second;
    ++code_.calls;
    code_.functions = static_cast<int64_t>(written_.size());
  }

  std::string body_of(const CodeBlock& block, BlockNames& names, const std::vector<uint32_t>& kept,
                      const std::string& indent) {
    const auto last = last_uses(plan_, block, kept);
    const bool keeps_mode = options_.autograd && leaves_grad_mode(plan_, block.region);
    // The caller's gradient mode. A checkpoint is recomputed after `forward` has returned, so its function reads the
    // mode at its start.
    const bool reads_mode = options_.autograd && checkpoint_around(graph_, block.region).valid();
    const std::string caller_mode = !options_.autograd ? "True"
                                    : reads_mode       ? names.take("with_gradients")
                                                       : "WITH_GRADIENTS[-1]";
    std::string text;
    GradMode mode = reads_mode ? GradMode::kOn : GradMode::kUnknown;
    for (size_t i = 0; i < block.items.size(); ++i) {
      const CodeBlock::Item& item = block.items[i];
      if (item.is_block()) {
        // Functions that read the mode take the current one; other callees set the mode as needed.
        const bool callee_reads_mode =
            options_.autograd && checkpoint_around(graph_, plan_.blocks[item.block].region).valid();
        if (callee_reads_mode && !keeps_mode && plan_.uses_grad_mode) {
          set_grad_mode(true, caller_mode, mode, text, indent);
        }
        mode = GradMode::kUnknown;
        text += block_call(item.block, names, indent);
      } else {
        if (!keeps_mode) grad_mode(item.step, caller_mode, mode, text, indent);
        text += statement(item.step, names, indent);
      }
      std::vector<std::string> dropped;
      for (const uint32_t variable : last[i]) {
        if (item.is_block() || is_bound(item.step, variable)) dropped.push_back(names.of(variable));
      }
      // `del` frees memory where the recorded program freed it; at the end of a function Python does so itself.
      if (!dropped.empty() && i + 1 != block.items.size()) {
        text += fmt::format("{}del {}\n", indent, fmt::join(dropped, ", "));
      }
    }
    const bool has_calls = reads_mode && text.find("_set_grad_enabled(" + caller_mode + ")") != std::string::npos;
    return has_calls ? fmt::format("{}{} = torch.is_grad_enabled()\n", indent, caller_mode) + text : text;
  }

  // Returns whether the statement of `step` binds the variable: not if it is an unused result.
  bool is_bound(uint32_t step, uint32_t variable) const {
    return plan_.variables[variable].defined != step || needs_names(step);
  }
  bool needs_names(uint32_t step) const {
    const CodeStep& s = plan_.steps[step];
    for (size_t i = 0; i < s.results.size(); ++i) {
      if (s.fresh[i] && plan_.variables[s.results[i]].last_use != step) return true;
    }
    return false;
  }

  void grad_mode(uint32_t step, const std::string& caller_mode, GradMode& mode, std::string& text,
                 const std::string& indent) const {
    if (!plan_.uses_grad_mode || graph_.target(plan_.steps[step].node).kind() == TargetKind::kBuiltin) return;
    set_grad_mode(plan_.steps[step].grad_mode, caller_mode, mode, text, indent);
  }
  static void set_grad_mode(bool enabled, const std::string& caller_mode, GradMode& mode, std::string& text,
                            const std::string& indent) {
    if (mode == (enabled ? GradMode::kOn : GradMode::kOff)) return;
    text += fmt::format("{}torch._C._set_grad_enabled({})\n", indent, enabled ? caller_mode : "False");
    mode = enabled ? GradMode::kOn : GradMode::kOff;
  }

  // A function call. With autograd, a checkpoint region becomes torch.utils.checkpoint.
  std::string block_call(uint32_t number, BlockNames& names, const std::string& indent) {
    const CodeBlock& block = plan_.blocks[number];
    std::vector<std::string> arguments;
    for (const uint32_t variable : block.inputs) arguments.push_back(names.of(variable));
    std::vector<std::string> results;
    for (const uint32_t variable : block.outputs) results.push_back(names.of(variable));
    std::string call = fmt::format("{}({})", functions_[number], fmt::join(arguments, ", "));
    if (options_.autograd && block.checkpoint) {
      std::string function = functions_[number];
      if (!block.statistics.empty()) {
        uses_statistics_ = true;
        std::vector<std::string> statistics;  // checkpoint() cannot save tensors that are written
        for (const uint32_t position : block.statistics) {
          statistics.push_back(fmt::format("{}: {}", position, arguments[position]));
        }
        for (size_t i = block.statistics.size(); i-- > 0;) arguments.erase(arguments.begin() + block.statistics[i]);
        function = fmt::format("StatisticsOnce({}, {{{}}})", function, fmt::join(statistics, ", "));
      }
      arguments.insert(arguments.begin(), function);
      call = fmt::format("torch.utils.checkpoint.checkpoint({}, use_reentrant=False)", fmt::join(arguments, ", "));
    }
    if (results.empty()) return indent + call + "\n";
    return fmt::format("{}{} = {}\n", indent, fmt::join(results, ", "), call);
  }

  // One call and the names of its results. Unused results get no name, so that their memory is freed immediately.
  std::string statement(uint32_t number, BlockNames& names, const std::string& indent) {
    const CodeStep& step = plan_.steps[number];
    std::string text;
    for (const CodeStep::Copy& copy : step.copies) {
      text += fmt::format("{}{} = torch.ops.aten.alias.default({})\n", indent, names.of(copy.to), names.of(copy.from));
    }
    const std::string call = calls_.call(number, [&](uint32_t variable) { return names.of(variable); });
    if (!needs_names(number)) return text + indent + call + "\n";
    const auto results = graph_.results(step.node);
    size_t flat = 0;
    std::string lists;
    std::vector<std::string> targets;
    for (const Argument& result : results) {
      if (result.kind == ArgumentKind::kValue) {
        // An operand that is returned has a name already.
        targets.push_back(step.fresh[flat] ? names.of(step.results[flat]) : "_");
        ++flat;
      } else if (result.kind == ArgumentKind::kList) {
        targets.push_back(names.take("list"));
        size_t position = 0;
        for (const Argument& element : graph_.list(result)) {
          if (element.kind == ArgumentKind::kValue) {
            lists += fmt::format("{}{} = {}[{}]\n", indent, names.of(step.results[flat++]), targets.back(), position);
          }
          ++position;
        }
        // The list would keep its tensors alive after the last read of each.
        lists += fmt::format("{}del {}\n", indent, targets.back());
      } else {
        targets.push_back("_");
      }
    }
    return text + fmt::format("{}{} = {}\n", indent, fmt::join(targets, ", "), call) + lists;
  }

  // `forward`: takes the tensors by name, checks them, runs the steps, returns outputs and gradients by name.
  std::string root() {
    const CodeBlock& block = plan_.blocks.back();
    BlockNames names = names_in(block);
    std::string body;
    const std::string indent = "        ";
    for (const auto& given : plan_.given) {
      const std::string name = names.take(given.name);
      names.set(given.variable, name);
      const std::string from = given.constant.valid() ? "CONSTANTS" : "tensors";
      body += fmt::format("{}{} = {}[{}]\n", indent, name, from, python::quoted(given.name));
      if (given.constant.valid()) {
        // CONSTANTS are shared by all calls of forward, so one that is written is copied.
        if (given.written) body += fmt::format("{}{} = {}.clone()\n", indent, name, name);
        continue;
      }
      const ValueId id = graph_.results(given.node)[0].ref.value;
      body += fmt::format("{}expect({}, {}, {}, {})\n", indent, name, python::quoted(given.name),
                          python::dtype(graph_.value(id).dtype), python::ints(graph_.sizes(id)));
      // A separate tensor object: the caller's keeps its sizes.
      if (given.own && !options_.autograd) body += fmt::format("{}{} = {}.detach()\n", indent, name, name);
    }
    body += body_of(block, names, plan_.returned_variables(), indent);
    body += indent + "return {\n";
    for (const auto& output : plan_.outputs) {
      body += fmt::format("{}    {}: {},\n", indent, python::quoted(output.key()),
                          output.variable == CodeLayout::kNoVariable ? "None" : names.of(output.variable));
    }
    body += indent + "}\n";
    const std::string head =
        "def expect(tensor, name, dtype, sizes):\n"
        "    if tensor.dtype != dtype or list(tensor.shape) != sizes:\n"
        "        raise ValueError(f\"{name} is {tensor.dtype}{list(tensor.shape)}, but the code was generated for "
        "{dtype}{sizes}\")\n\n\n";
    if (options_.autograd) {
      return head +
             "WITH_GRADIENTS = [True]\n\n\n"
             "def forward(tensors):\n"
             "    \"\"\"Takes and returns tensors by the graph's names. Differentiable by autograd.\"\"\"\n"
             "    WITH_GRADIENTS.append(torch.is_grad_enabled())\n"
             "    try:\n" +
             body +
             "    finally:\n"
             "        torch._C._set_grad_enabled(WITH_GRADIENTS.pop())\n";
    }
    return head +
           "def forward(tensors):\n"
           "    \"\"\"Takes and returns tensors by the graph's names. Runs below autograd.\"\"\"\n"
           "    with torch.no_grad(), torch._C._AutoDispatchBelowAutograd():\n" +
           body;
  }

  const CodegenOptions& options_;
  std::string name_;
  CodeLayout plan_;
  const Graph& graph_;  // the plan's
  PythonCalls calls_;
  GeneratedCode code_;
  std::vector<std::string> functions_;  // by block
  std::vector<std::string> written_;
  std::unordered_map<std::string, std::string> by_text_;
  Scope function_names_;
  bool uses_statistics_ = false;
};

}  // namespace

GeneratedCode emit_python(const Graph& graph, const CodegenOptions& options) {
  return PythonWriter(graph, options).run();
}

}  // namespace shadowgraph
