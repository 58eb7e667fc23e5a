// The extension module shadowgraph._shadowgraph of the Python package (python/shadowgraph).
#include "python/src/binding.h"

PYBIND11_MODULE(_shadowgraph, m) {
  using namespace shadowgraph::python;
  m.doc() = "C++ bindings of the package shadowgraph.";
  m.attr("torch_version") = SHADOWGRAPH_TORCH_VERSION;
  m.attr("version") = SHADOWGRAPH_VERSION;
  // Signatures refer to classes that are bound before.
  for (Binding* const bind :
       {bind_errors,  bind_contexts, bind_process,   bind_modes,    bind_graph,    bind_pictures,  bind_capture,
        bind_passes,  bind_profile,  bind_profilers, bind_deferred, bind_table,    bind_kernels,   bind_replay,
        bind_codegen, bind_sizes,    bind_costs,     bind_sources,  bind_sharding, bind_pipelines, bind_plans,
        bind_serving, bind_shapes,   bind_rules,     bind_tool}) {
    bind(m);
  }
}
