// Serving estimates (shadowgraph/plan/serving.h).
#include "shadowgraph/plan/serving.h"

#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include "cli/output.h"
#include "python/src/binding.h"
#include "python/src/cost_rules.h"
#include "python/src/options.h"

namespace shadowgraph::python {
namespace {

using Layer = std::tuple<int64_t, int64_t, int64_t, int64_t, bool>;
using PythonCapture = std::function<std::shared_ptr<Graph>(int64_t, int64_t)>;

Serving serve_in_python(const PythonCapture& capture, const std::vector<Layer>& layers, const std::string& spec,
                        const std::string& interconnect, int64_t memory, int64_t context, const std::string& weights,
                        const std::vector<std::string>& kept, const std::vector<std::string>& assumptions,
                        const py::dict& how) {
  const Machine machine = Machine::find(spec, interconnect);
  std::vector<CacheLayer> cache;
  for (const auto& [token_bytes, window, state_bytes, stride, pending] : layers) {
    cache.push_back({token_bytes, window, state_bytes, stride, pending});
  }
  ServingOptions options{.spec = &machine.specs(),
                         .interconnect = machine.links ? &*machine.links : nullptr,
                         .memory = memory,
                         .context = context,
                         .kept = kept,
                         .assumptions = assumptions};
  read_keywords(options, ServingOptions::table(), how);
  if (!weights.empty()) options.weights = WeightFormat::parse(weights);
  return with_cost_rules([&] {
    return serve([&](int64_t batch, int64_t tokens) { return clone(*capture(batch, tokens)); }, cache, options);
  });
}

}  // namespace

void bind_serving(py::module_& m) {
  py::class_<Serving>(m, "Serving", "Memory, capacity and latency of an inference engine on a device; prints as text.")
      .def_property_readonly("fits", &Serving::fits, "True if at least one request fits.")
      .def_readonly("requests", &Serving::requests, "Maximum number of concurrent requests of `tokens` tokens.")
      .def_readonly("tokens", &Serving::tokens, "Tokens per request.")
      .def_readonly("weights_bytes", &Serving::weights, "Bytes of parameters and buffers in their storage format.")
      .def_readonly("activations_bytes", &Serving::activations, "Peak bytes of activations in a forward pass.")
      .def_readonly("cache_bytes", &Serving::cache, "Bytes of the KV cache.")
      .def_readonly("pages", &Serving::pages, "Number of pages of the KV cache.")
      .def_readonly("token_bytes", &Serving::token_bytes, "Bytes of the KV cache per additional token.")
      .def_readonly("request_bytes", &Serving::request_bytes, "Bytes of the KV cache of a request of `tokens` tokens.")
      .def_readonly("longest_request", &Serving::longest,
                    "Tokens of the longest single request that fits; 2**40 if unlimited.")
      .def_readonly("first_token", &Serving::first_token, "Seconds to the first token of a single request.")
      .def_property_readonly(
          "rows",
          [](const Serving& serving) {
            std::vector<std::tuple<int64_t, double, double>> rows;
            for (const ServingRow& row : serving.rows) {
              rows.emplace_back(row.requests, row.next_token, row.tokens_per_second);
            }
            return rows;
          },
          "[(concurrent requests, seconds per token of each, total tokens per second)].")
      .def_readonly("assumptions", &Serving::assumptions)
      .def(
          "dict", [](const Serving& serving) { return to_python(to_json(serving)); }, "Returns all values by name.")
      .def("__str__", [](const Serving& serving) { return cli::printable(to_text(serving)); });
  m.def("serve", &serve_in_python, py::arg("capture"), py::arg("layers"), py::arg("spec"), py::arg("interconnect"),
        py::arg("memory"), py::arg("context"), py::arg("weights"), py::arg("kept"), py::arg("assumptions"),
        py::arg("how"));
  m.def("_serve_options", [] { return options_of(ServingOptions::table()); });
  m.def("weight_formats", &WeightFormat::names, "Returns the weight formats that `serve` accepts.");
}

}  // namespace shadowgraph::python
