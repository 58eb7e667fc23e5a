// The extension module shadowgraph._shadowgraph of the Python package (python/shadowgraph).
#include "python/src/binding.h"
#include "python/src/tool.h"

PYBIND11_MODULE(_shadowgraph, m) {
  using namespace shadowgraph::python;
  m.doc() = "C++ bindings of the package shadowgraph.";
  m.attr("torch_version") = SHADOWGRAPH_TORCH_VERSION;
  m.attr("version") = SHADOWGRAPH_VERSION;
  bind_errors(m);
  bind_contexts(m);
  bind_process(m);
  bind_modes(m);
  bind_graph(m);
  bind_pictures(m);
  bind_capture(m);
  bind_passes(m);
  bind_profile(m);
  bind_profilers(m);
  bind_deferred(m);
  bind_table(m);
  bind_kernels(m);
  bind_replay(m);
  bind_codegen(m);
  bind_sizes(m);
  bind_costs(m);
  bind_sources(m);
  bind_sharding(m);
  bind_pipelines(m);
  bind_plans(m);
  bind_serving(m);
  bind_shapes(m);
  bind_rules(m);
  bind_tool(m);
}
