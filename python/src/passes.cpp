// The pass registry.
#include <pybind11/stl.h>

#include "python/src/binding.h"

namespace shadowgraph::python {

void bind_passes(py::module_& m) {
  m.def(
      "passes",
      [] {
        py::dict all;
        for (const Pass* pass : all_passes()) {
          py::dict options;
          for (const PassOption& option : pass->options) {
            options[py::str(option.name)] = py::make_tuple(option.default_value, option.summary);
          }
          all[py::str(pass->name)] = py::make_tuple(pass->summary, options);
        }
        return all;
      },
      "Returns all passes: {name: (summary, {option: (default, summary)})}.");
}

}  // namespace shadowgraph::python
