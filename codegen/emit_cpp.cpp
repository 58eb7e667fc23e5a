// Writes a plan as a C++ library: NAME.cpp, NAME.h and a CMakeLists.txt that finds libtorch.
//
// NAME.cpp holds, from the top down: headers, devices, helpers, small constants, functions, `run` and `run_by_name`. A
// helper is there only if something calls it, so small graphs give small files.
//
// What a graph says is decided in the plan (code_plan.h): variables, functions, lifetimes. Here it gets a C++ form. The
// parts that spell expressions (cpp_call.h) note in CppNeeds which headers, helpers and constants they asked for, and
// assemble() writes those down last.
//
// Linear in the text that is written.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "codegen/cpp_call.h"
#include "codegen/literals.h"
#include "ir/text/words.h"
#include "shadowgraph/codegen/codegen.h"

namespace shadowgraph {
namespace {

class CppWriter {
 public:
  CppWriter(const Graph& graph, const CodegenOptions& options)
      : options_(options),
        name_(identifier(options.name)),
        plan_(CodePlan::make(graph, options)),
        graph_(*plan_.graph),
        functions_(plan_, options, needs_) {}

  GeneratedCode run() {
    // The order counts: each part asks for helpers, headers and names that later parts write down.
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
  // `run`: names what is given, checks it, writes the statements of the outermost block, and returns the outputs.
  std::string root() {
    const CodeBlock& block = plan_.blocks.back();
    BlockNames names(plan_, block);
    std::string start;
    for (const auto& given : plan_.given) {
      member_names_.push_back(names.take(given.name));
      names.set(given.variable, (structs() ? "in." : "") + member_names_.back());
    }
    // Outputs live to the end, though a step may be their last reader.
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
    std::string body = functions_.body_of(block, names, kept);
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

  // Checks a given tensor against the graph. A tensor that the program turns (t_, resize_) gets an object of the run's
  // own, since the caller's must stay as it is.
  std::string check_and_own(const CodePlan::Given& given, const std::string& name) {
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

  // All inputs have one type, so a long parameter list would invite swapping two of them.
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

  // The second entry point, for callers that have a state dict: it finds each tensor by the graph's name and says which
  // one is missing.
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
      const auto& output = plan_.outputs[i];
      const std::string key = output.gradient ? "gradient." + output.name : output.name;
      text += fmt::format("  named[{}] = {};\n", cpp::quoted(key), single_output() ? "out" : "out." + output_names_[i]);
    }
    return text + "  return named;\n}\n";
  }

  // Constants that did not fit into the code.
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

  // Declarations for the header, with what a caller has to know of each.
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
    for (const auto& [key, value] : graph_.metadata.lines()) {
      text += fmt::format("//   {}: {}\n", cpp::comment(key), cpp::comment(value));
    }
    if (options_.autograd) {
      text += "// Autograd differentiates it. What was a checkpoint region is run again in backward.\n";
    } else {
      text += "// It runs below autograd: what it returns has no history.\n";
    }
    for (const std::string& library : needs_.libraries) {
      text += fmt::format("// Needs the library that defines the operators of {}, loaded before it runs.\n",
                          cpp::comment(library));
    }
    return text;
  }

  // Puts NAME.cpp together. Everything that may still ask for a header or a helper has been written before.
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
    // Helpers come last: everything above may still have asked for one.
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
    text += "\n}  // namespace\n\n// What " + name_ + ".h declares.\n" + prototypes() + "\n" + constants + "\n" + run +
            "\n" + by_name + "\n}  // namespace " + name_ + "\n";
    return text;
  }

  std::string header(const std::string& declarations) const {
    std::string text = about() + "#pragma once\n\n#include <ATen/core/Tensor.h>\n";
    if (plan_.random) text += "#include <ATen/core/Generator.h>\n";
    text += "\n#include <map>\n#include <optional>\n#include <string>\n\n";
    return text + "namespace " + name_ + " {\n\n" + declarations + prototypes() + "\n}  // namespace " + name_ + "\n";
  }

  // The project is a library of one file, so that emitted code builds by itself and as a folder of another project.
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
  CodePlan plan_;
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
