// Code generation from graphs.
#include "shadowgraph/codegen/codegen.h"

#include <pybind11/stl.h>

#include "python/src/binding.h"
#include "shadowgraph/kernels/kernel.h"

namespace shadowgraph::python {

void bind_codegen(py::module_& m) {
  m.def(
      "emit_code",
      [](const Graph& graph, const std::string& language, const std::string& folder, const std::string& name,
         const std::vector<std::string>& only, const std::optional<std::string>& device, bool autograd,
         const std::map<std::string, std::pair<std::string, std::string>>& functions, int min_function_nodes,
         int max_function_items, int64_t max_embedded_elements, const KernelGroups* groups) {
        CodegenOptions options{.name = name,
                               .autograd = autograd,
                               .min_function_nodes = min_function_nodes,
                               .max_function_items = max_function_items,
                               .max_embedded_elements = max_embedded_elements};
        if (device) options.device = c10::Device(*device);
        for (const auto& [op, function] : functions) options.functions[op] = {function.first, function.second};
        if (!only.empty()) choose_values(graph, only, options);
        const GeneratedCode code = groups != nullptr   ? emit_cpp_with_kernels(graph, *groups, options)
                                   : language == "cpp" ? emit_cpp(graph, options)
                                                       : emit_python(graph, options);
        write_code(code, folder);
        std::vector<std::string> files;
        for (const auto& [file, text] : code.files) files.push_back(file);
        if (!code.constants_file.empty()) files.push_back(code.constants_file);
        return files;
      },
      py::arg("graph"), py::arg("language"), py::arg("folder"), py::arg("name"), py::arg("only"), py::arg("device"),
      py::arg("autograd"), py::arg("functions"), py::arg("min_function_nodes"), py::arg("max_function_items"),
      py::arg("max_embedded_elements"), py::arg("groups") = nullptr, py::call_guard<CppCall>(),
      "Generates \"cpp\" or \"python\" code into the folder. Returns the file names.");
}

}  // namespace shadowgraph::python
