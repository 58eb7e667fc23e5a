// shadowgraph codegen.
#include "shadowgraph/codegen.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>

#include "cli/commands.h"
#include "shadowgraph/text.h"

namespace shadowgraph::cli {

void generate_code(const CodegenRequest& request) {
  const Graph graph = read_graph_file(request.file);
  CodegenOptions options;
  options.name = request.name.empty() ? std::filesystem::path(request.file).stem().string() : request.name;
  options.autograd = request.autograd;
  if (!request.device.empty()) options.device = parse_device(request.device);
  for (const std::string& text : request.functions) {
    const size_t equals = text.find('=');
    const size_t at = text.find('@', equals);
    options.functions[text.substr(0, equals)] = {.callee = text.substr(equals + 1, at - equals - 1),
                                                 .from = at == text.npos ? "" : text.substr(at + 1)};
  }
  choose_values(graph, request.only, options);
  const GeneratedCode code = request.language == "cpp" ? emit_cpp(graph, options) : emit_python(graph, options);
  write_code(code, request.directory);
  std::vector<std::string> files;
  for (const auto& [name, text] : code.files) files.push_back(name);
  if (!code.constants_file.empty()) files.push_back(code.constants_file);
  fmt::print("{}: {}; {} functions for {} calls\n", request.directory, fmt::join(files, ", "), code.functions,
             code.calls);
  for (const std::string& library : code.libraries_of) {
    fmt::print("  the code needs the library that defines the operators of {}\n", library);
  }
}

}  // namespace shadowgraph::cli
