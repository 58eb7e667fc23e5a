// Writes kernel groups as functions, which code from emit_cpp calls in place of each group.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "codegen/code_names.h"
#include "kernels/compiler/program_source.h"
#include "shadowgraph/graph/analysis.h"
#include "shadowgraph/graph/edit.h"
#include "shadowgraph/kernels/kernel.h"

namespace shadowgraph {
namespace {

constexpr const char* kCalls = R"(#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_strided.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <tuple>

namespace {0} {{

using Loop = void(void* const* data, const int64_t* sizes, const int64_t* strides, const int64_t* scalars, int64_t begin,
                  int64_t end);
{1}
inline void* written(const at::Tensor& tensor) {{ return tensor.mutable_data_ptr(); }}
inline void* read(const at::Tensor& tensor) {{ return const_cast<void*>(tensor.const_data_ptr()); }}
inline at::Tensor fresh(at::ScalarType dtype, at::IntArrayRef sizes, at::IntArrayRef strides) {{
  return at::empty_strided(sizes, strides, at::TensorOptions(at::kCPU).dtype(dtype));
}}

// One of them is written, and the loop would not see the write through the other.
inline void apart(const at::Tensor& a, int64_t bytes_of_a, const at::Tensor& b, int64_t bytes_of_b) {{
  const auto* const x = static_cast<const char*>(a.const_data_ptr());
  const auto* const y = static_cast<const char*>(b.const_data_ptr());
  if (x < y + bytes_of_b && y < x + bytes_of_a) {{
    throw std::invalid_argument("{0}: tensors overlap that did not overlap when the graph was captured");
  }}
}}

inline void in_range(int64_t wrong) {{
  TORCH_CHECK_INDEX(wrong == 0, "{0}: index out of range");
}}

inline void run(Loop* loop, void* const* data, const int64_t* sizes, const int64_t* strides, const int64_t* scalars,
                int64_t range, int64_t row_work) {{
  constexpr int64_t kElementsOfAThread = 32768;
  if (range * row_work <= kElementsOfAThread || at::get_num_threads() == 1 || at::in_parallel_region()) {{
    if (range > 0) loop(data, sizes, strides, scalars, 0, range);
    return;
  }}
  at::parallel_for(0, range, std::max<int64_t>(kElementsOfAThread / row_work, 1), [&](int64_t begin, int64_t end) {{
    loop(data, sizes, strides, scalars, begin, end);
  }});
}}
{2}
}}  // namespace {0}
)";

class KernelWriter {
 public:
  KernelWriter(const Graph& graph, const KernelGroups& groups, const CodegenOptions& options)
      : graph_(clone(graph)), groups_(groups), options_(options) {
    options_.name = identifier(options.name);
    name_ = options_.name + "_kernels";
  }

  GeneratedCode run() {
    // The readers of a group's values determine which are needed, regardless of saved tensors.
    for (const NodeId node : graph_.nodes()) graph_.set_saved(node, {});
    graph_.reorder(groups_.order());
    const Effects effects = Effects::of(graph_);
    const auto report = groups_.report();
    std::vector<GroupCall> calls;
    for (uint32_t g = 0; g < groups_.groups().size(); ++g) {
      if (report[g].state == KernelGroups::State::kNodes) continue;
      const auto& nodes = groups_.groups()[g].nodes;
      const auto boundary = boundary_of(graph_, nodes);
      const auto in_place = [&](ValueId output) {
        const auto& same = groups_.lowered(g).same_tensor;
        return std::ranges::find(same, output, &LoweredKernel::SameTensor::result) != same.end();
      };
      // emit_cpp() declares new variables for the results of a call, including those written in place. Such groups are
      // not replaced.
      if (boundary.outputs.size() > 1 && std::ranges::any_of(boundary.outputs, in_place)) continue;
      const std::string function = fmt::format("group{}", g);
      calls.push_back({.nodes = nodes, .schema = schema_of(graph_, nodes, "kernels::" + function, effects)});
      options_.functions["kernels::" + function] = {name_ + "::" + function, name_ + ".h"};
      write_group(function, groups_.lowered(g), boundary);
    }
    replace_by_calls(graph_, calls);
    GeneratedCode code = emit_cpp(graph_, options_);
    code.files[name_ + ".h"] =
        "// Kernels of " + options_.name + ".cpp on tensors.\n" + fmt::format(kCalls, name_, declarations_, functions_);
    code.files[name_ + ".cpp"] =
        "// The loops that " + name_ + ".h calls. They are compiled with the flags in CMakeLists.txt.\n" + bodies_;
    build_loops(code.files["CMakeLists.txt"]);
    return code;
  }

 private:
  std::string loop_of(const KernelProgram& program) {
    auto [it, is_new] = loops_.try_emplace(program.text(), "");
    if (!is_new) return it->second;
    const std::string& name = it->second = fmt::format("loop{}", loops_.size());
    declarations_ += fmt::format("Loop {};\n", name);
    std::string source = program_source(program);
    const std::string begin =
        std::string("extern \"C\" __attribute__((visibility(\"default\"))) void ") + kKernelSymbol;
    const size_t at = source.find(begin);
    TORCH_INTERNAL_ASSERT(at != std::string::npos, "program_source() changed the start of its function");
    source.replace(at, begin.size(), "void run");
    constexpr const char* kParameters =
        "void* const* data, const __INT64_TYPE__* sizes, const __INT64_TYPE__* strides, const __INT64_TYPE__* "
        "scalars,\n"
        "    __INT64_TYPE__ begin, __INT64_TYPE__ end";
    bodies_ += fmt::format(
        "\nnamespace {0} {{\nnamespace {{\nnamespace {1}_source {{\n{2}}}  // namespace {1}_source\n}}  // "
        "namespace\n\n"
        "void {1}({3});\nvoid {1}({3}) {{\n  {1}_source::run(data, sizes, strides, scalars, begin, end);\n}}\n"
        "}}  // namespace {0}\n",
        name_, name, source, kParameters);
    return name;
  }

  static std::string list(std::span<const int64_t> numbers) { return fmt::format("{}", fmt::join(numbers, ", ")); }

  // A C++ array needs at least one element.
  static std::string array(const char* name, std::span<const int64_t> numbers) {
    return fmt::format("  static constexpr int64_t {}[] = {{{}}};\n", name, numbers.empty() ? "0" : list(numbers));
  }

  int64_t bytes_of(ValueId v) const {
    if (graph_.numel(v) == 0) return 0;
    return view_of(graph_, v).bytes().second - view_of(graph_, v).bytes().first;
  }

  void write_group(const std::string& function, const LoweredKernel& plan, const Boundary& boundary) {
    std::map<ValueId, std::string> names;
    std::vector<std::string> parameters;
    for (const ValueId input : boundary.inputs) {
      names[input] = fmt::format("x{}", names.size());
      parameters.push_back("[[maybe_unused]] const at::Tensor& " + names[input]);
    }
    std::string body = array("sizes", plan.sizes) + array("strides", plan.strides) + array("scalars", plan.scalars);
    std::vector<std::string> data;
    for (size_t i = 0; i < plan.inputs.size(); ++i) {
      const bool written = plan.program.operands[i].written;
      data.push_back(fmt::format("{}({})", written ? "written" : "read", names.at(plan.inputs[i])));
      for (size_t j = 0; j < i; ++j) {
        const bool known = graph_.value(plan.inputs[i]).storage == graph_.value(plan.inputs[j]).storage;
        if (known || (!written && !plan.program.operands[j].written)) continue;
        body += fmt::format("  apart({}, {}, {}, {});\n", names.at(plan.inputs[i]), bytes_of(plan.inputs[i]),
                            names.at(plan.inputs[j]), bytes_of(plan.inputs[j]));
      }
    }
    for (size_t i = 0; i < plan.outputs.size(); ++i) {
      const ValueId v = plan.outputs[i];
      names[v] = fmt::format("y{}", i);
      body += fmt::format("  const at::Tensor {} = fresh(at::k{}, {{{}}}, {{{}}});\n", names[v],
                          c10::toString(graph_.value(v).dtype), list(graph_.sizes(v)), list(graph_.strides(v)));
      data.push_back(fmt::format("written({})", names[v]));
    }
    if (plan.program.has_checks()) {
      body += "  int64_t wrong = 0;\n";
      data.emplace_back("&wrong");
    }
    body += fmt::format("  void* const data[] = {{{}}};\n", fmt::join(data, ", "));
    body += fmt::format("  run({}, data, sizes, strides, scalars, {}, {});\n", loop_of(plan.program), plan.range,
                        plan.row_work);
    if (plan.program.has_checks()) body += "  in_range(wrong);\n";
    std::vector<std::string> results;
    for (const ValueId output : boundary.outputs) {
      const auto same = std::ranges::find(plan.same_tensor, output, &LoweredKernel::SameTensor::result);
      results.push_back(names.at(same == plan.same_tensor.end() ? output : same->tensor));
    }
    std::string type = "void";
    if (results.size() == 1) {
      type = "at::Tensor";
      body += "  return " + results[0] + ";\n";
    } else if (results.size() > 1) {
      std::vector<std::string> types(results.size(), "at::Tensor");
      type = fmt::format("std::tuple<{}>", fmt::join(types, ", "));
      body += fmt::format("  return {{{}}};\n", fmt::join(results, ", "));
    }
    functions_ += fmt::format("\ninline {} {}({}) {{\n{}}}\n", type, function, fmt::join(parameters, ", "), body);
  }

  void build_loops(std::string& cmake) const {
    const std::string library = fmt::format("add_library({0} {0}.cpp)", options_.name);
    const size_t at = cmake.find(library);
    TORCH_INTERNAL_ASSERT(at != std::string::npos, "emit_cpp() changed its CMakeLists.txt");
    cmake.replace(
        at, library.size(),
        fmt::format("add_library({0} {0}.cpp {1}.cpp)\n"
                    "# Kernels for the native processor. FP contraction must be off.\n"
                    "set({0}_KERNEL_FLAGS \"-w;{2}\" CACHE STRING \"Compiler flags of {1}.cpp\")\n"
                    "set_source_files_properties({1}.cpp PROPERTIES COMPILE_OPTIONS \"${{{0}_KERNEL_FLAGS}}\")",
                    options_.name, name_, fmt::join(kernel_flags(), ";")));
  }

  Graph graph_;
  const KernelGroups& groups_;
  CodegenOptions options_;
  std::string name_;
  std::map<std::string, std::string> loops_;  // by program
  std::string declarations_, functions_, bodies_;
};

}  // namespace

GeneratedCode emit_cpp_with_kernels(const Graph& graph, const KernelGroups& groups, const CodegenOptions& options) {
  if (options.autograd)
    throw UnsupportedError("emit_cpp_with_kernels() does not support autograd; turn it off in CodegenOptions");
  if (options.device)
    throw UnsupportedError("kernels run on the device of the graph; do not set CodegenOptions::device");
  if (!options.only.empty()) throw UnsupportedError("kernels are for the whole graph; do not set CodegenOptions::only");
  return KernelWriter(graph, groups, options).run();
}

}  // namespace shadowgraph
