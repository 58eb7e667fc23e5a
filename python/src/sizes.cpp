// Symbolic graphs: fitted to captures, evaluated at other sizes.
#include <pybind11/stl.h>

#include "python/src/binding.h"
#include "python/src/cost_rules.h"

namespace shadowgraph::python {
namespace {

py::dict dict_of(const SizeCost& cost) {
  py::dict costs(py::arg("peak_bytes") = cost.peak_bytes, py::arg("saved_bytes") = cost.saved_bytes,
                 py::arg("flops") = cost.flops.matmul, py::arg("elementwise_flops") = cost.flops.elementwise,
                 py::arg("transcendental") = cost.flops.transcendental);
  if (cost.reserved_bytes) {
    costs["reserved_bytes"] = *cost.reserved_bytes;
    costs["footprint_bytes"] = *cost.footprint_bytes;
  }
  return costs;
}

// A symbolic graph with its costs. The sweep refers to the SymbolicGraph.
class Fit {
 public:
  Fit(const std::vector<std::pair<NamedSizes, std::shared_ptr<Graph>>>& captures,
      const std::optional<std::string>& device, const std::string& allocator)
      : symbolic_(SymbolicGraph::fit(copies(captures))),
        sweep_(symbolic_, {.device = device ? std::optional(c10::Device(*device)) : symbolic_.base().metadata.device,
                           .allocator = AllocatorSettings::parse(allocator)}) {}

  const SymbolicGraph& symbolic() const { return symbolic_; }
  py::dict cost(const NamedSizes& sizes) {
    return dict_of(with_cost_rules([&] { return sweep_.at(sizes); }));
  }
  py::dict flops() const {
    py::dict texts;
    const Graph& graph = symbolic_.base();
    for (uint32_t i = 0; i < graph.phase_count(); ++i) {
      const auto& polynomial = sweep_.matmul_flops(PhaseId(i));
      if (polynomial && !polynomial->terms().empty()) texts[py::str(graph.phase_name(PhaseId(i)))] = text(*polynomial);
    }
    return texts;
  }
  std::vector<std::string> polynomials() const {
    std::vector<std::string> texts;
    for (const Polynomial& polynomial : symbolic_.polynomials()) texts.push_back(text(polynomial));
    return texts;
  }

 private:
  static std::vector<SizedGraph> copies(const std::vector<std::pair<NamedSizes, std::shared_ptr<Graph>>>& captures) {
    std::vector<SizedGraph> graphs;
    for (const auto& [sizes, graph] : captures) graphs.push_back({sizes, clone(*graph)});
    return graphs;
  }
  std::string text(const Polynomial& polynomial) const {
    std::vector<std::string> names;
    for (const auto& dimension : symbolic_.dimensions()) names.push_back(dimension.name);
    return polynomial.to_text(names);
  }

  SymbolicGraph symbolic_;
  SizeSweep sweep_;
};

void bind_costs_of_sizes(py::module_& m) {
  m.def(
      "size_cost",
      [](const Graph& graph, const std::optional<std::string>& device, const std::string& allocator) {
        ProfileOptions options;
        if (device) options.device = c10::Device(*device);
        options.memory.allocator = AllocatorSettings::parse(allocator);
        return dict_of(with_cost_rules([&] { return size_cost(profile(graph, options)); }));
      },
      py::arg("graph"), py::arg("device") = std::nullopt, py::arg("allocator") = "",
      "Returns peak_bytes, saved_bytes, flops, elementwise_flops and transcendental of a graph; on a device with a "
      "caching allocator also reserved_bytes and footprint_bytes.");
  m.def(
      "memory_limit",
      [](const std::string& text) {
        const MemoryLimit limit = MemoryLimit::parse(text);
        return py::make_tuple(limit.bytes, limit.device, limit.title, limit.note);
      },
      py::arg("text"),
      "Returns (bytes, device, title, note) for a size such as \"24GiB\", or the name of a device (docs/memory.md). "
      "Raises Error.");
  m.def("human_bytes", &human_bytes, py::arg("bytes"), "Formats bytes with binary prefixes: \"1.04 GiB\".");
  m.def("human_count", &human_count, py::arg("count"), "Formats a count with decimal prefixes: \"7.44 G\".");
}

}  // namespace

void bind_sizes(py::module_& m) {
  bind_costs_of_sizes(m);
  py::class_<Fit>(m, "SymbolicGraph",
                  "A program for all sizes, returned by shadowgraph.fit: numbers that differ between captures are "
                  "polynomials in the sizes.")
      .def(py::init([](const std::vector<std::pair<NamedSizes, std::shared_ptr<Graph>>>& captures,
                       const std::optional<std::string>& device, const std::string& allocator) {
             return with_cost_rules([&] { return std::make_unique<Fit>(captures, device, allocator); });
           }),
           py::arg("captures"), py::arg("device") = std::nullopt, py::arg("allocator") = "", py::call_guard<CppCall>(),
           "captures: [(sizes by name, graph)], with at least three values of each varying size, and at least two "
           "captures more than sizes.\n"
           "device: device whose memory `cost` reports.\n\n"
           "Raises UnsupportedError with the node or number that cannot be aligned or fitted.")
      .def_property_readonly(
          "dimensions",
          [](const Fit& fit) {
            py::dict dimensions;
            for (const auto& dimension : fit.symbolic().dimensions()) {
              dimensions[py::str(dimension.name)] =
                  py::make_tuple(dimension.smallest, dimension.step, dimension.largest);
            }
            return dimensions;
          },
          "{name: (smallest, step, largest captured)}. Valid sizes are smallest + k * step.")
      .def(
          "refusal", [](const Fit& fit, const NamedSizes& sizes) { return fit.symbolic().refusal(sizes); },
          py::arg("sizes"), "Returns the reason why these sizes are not valid, or None.")
      .def(
          "instantiate",
          [](const Fit& fit, const NamedSizes& sizes) {
            return std::make_shared<Graph>(fit.symbolic().instantiate(sizes));
          },
          py::arg("sizes"), "Returns the graph for these sizes, without a capture. Raises UnsupportedError.")
      .def(
          "difference_from",
          [](const Fit& fit, const NamedSizes& sizes, const Graph& capture) {
            return fit.symbolic().difference_from(sizes, capture);
          },
          py::arg("sizes"), py::arg("capture"),
          "Returns the difference of a capture at these sizes from the instantiated graph, or None.")
      .def("cost", &Fit::cost, py::arg("sizes"), py::call_guard<CppCall>(),
           "Returns peak_bytes, saved_bytes, flops (a multiply-accumulate is 2), elementwise_flops and transcendental "
           "for these sizes; on a device with a caching allocator also reserved_bytes and footprint_bytes. Raises "
           "UnsupportedError.")
      .def_property_readonly("flops", &Fit::flops, "FLOPs per phase as polynomials in the sizes.")
      .def_property_readonly("polynomials", &Fit::polynomials, "All distinct polynomials of the graph.")
      .def("__str__", [](const Fit& fit) { return fit.symbolic().to_text(); })
      .def("__repr__", [](const Fit& fit) {
        return "<shadowgraph.SymbolicGraph of " + std::to_string(fit.symbolic().base().node_count()) + " nodes>";
      });
}

}  // namespace shadowgraph::python
