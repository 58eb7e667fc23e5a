// One graph for all sizes: fitted to captures, asked for graphs and costs at any.
#include <pybind11/stl.h>

#include "python/src/binding.h"
#include "python/src/cost_rules.h"
#include "python/src/profile.h"
#include "shadowgraph/graph/edit.h"
#include "shadowgraph/passes/symbolic.h"
#include "shadowgraph/profile/fits.h"
#include "shadowgraph/profile/memory.h"

namespace shadowgraph::python {
namespace {

py::dict dict_of(const SizeCost& cost) {
  py::dict figures;
  figures["peak_bytes"] = cost.peak_bytes;
  figures["saved_bytes"] = cost.saved_bytes;
  figures["flops"] = cost.flops.matmul;
  figures["elementwise_flops"] = cost.flops.elementwise;
  figures["transcendental"] = cost.flops.transcendental;
  if (cost.reserved_bytes) {
    figures["reserved_bytes"] = *cost.reserved_bytes;
    figures["footprint_bytes"] = *cost.footprint_bytes;
  }
  return figures;
}

// A fit and what it costs: a sweep holds its SymbolicGraph by reference.
class Fit {
 public:
  Fit(const std::vector<std::pair<NamedSizes, std::shared_ptr<Graph>>>& captures,
      const std::optional<std::string>& device, const std::string& allocator)
      : symbolic_(SymbolicGraph::fit(copies(captures))),
        sweep_(symbolic_, device ? std::optional(c10::Device(*device)) : symbolic_.base().metadata.device,
               AllocatorSettings::parse(allocator)) {}

  const SymbolicGraph& symbolic() const { return symbolic_; }
  py::dict cost(const NamedSizes& sizes) {
    begin_cost_rules();
    const SizeCost cost = sweep_.at(sizes);
    end_cost_rules();
    return dict_of(cost);
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
        begin_cost_rules();
        const SizeCost cost = size_cost(profile(graph, options));
        end_cost_rules();
        return dict_of(cost);
      },
      py::arg("graph"), py::arg("device") = std::nullopt, py::arg("allocator") = "",
      "peak_bytes, saved_bytes, flops, elementwise_flops and transcendental of a graph as it is; on a device with a "
      "caching allocator reserved_bytes and footprint_bytes.");
  m.def(
      "memory_limit",
      [](const std::string& text) {
        const MemoryLimit limit = MemoryLimit::parse(text);
        return py::make_tuple(limit.bytes, limit.device, limit.title, limit.note);
      },
      py::arg("text"),
      "(bytes, device, title, note) of a size such as \"24GiB\", or of a device's name; docs/memory.md. Raises Error.");
  m.def(
      "human_bytes", [](int64_t bytes) { return human_bytes(bytes); }, py::arg("bytes"),
      "\"1.04 GiB\": powers of 1024.");
  m.def(
      "human_count", [](int64_t count) { return human_count(count); }, py::arg("count"), "\"7.44 G\": powers of 1000.");
}

}  // namespace

void bind_sizes(py::module_& m) {
  bind_costs_of_sizes(m);
  py::class_<Fit>(m, "SymbolicGraph",
                  "One program at all sizes: what a few captures have in common, with every number that differs as a "
                  "polynomial in the sizes. Made by shadowgraph.fit.")
      .def(py::init([](const std::vector<std::pair<NamedSizes, std::shared_ptr<Graph>>>& captures,
                       const std::optional<std::string>& device, const std::string& allocator) {
             begin_cost_rules();
             auto fit = std::make_unique<Fit>(captures, device, allocator);
             end_cost_rules();
             return fit;
           }),
           py::arg("captures"), py::arg("device") = std::nullopt, py::arg("allocator") = "", py::call_guard<CppCall>(),
           "captures: (sizes by name, graph), at least three values of each size that varies, and two more than names. "
           "device: whose memory `cost` counts. Raises UnsupportedError that names what does not align or fit.")
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
          "name -> (smallest, step, largest captured): sizes are answered from smallest on, in steps.")
      .def(
          "refusal", [](const Fit& fit, const NamedSizes& sizes) { return fit.symbolic().refusal(sizes); },
          py::arg("sizes"), "Why these sizes are not answered; None if they are.")
      .def(
          "instantiate",
          [](const Fit& fit, const NamedSizes& sizes) {
            return std::make_shared<Graph>(fit.symbolic().instantiate(sizes));
          },
          py::arg("sizes"), "What a capture at these sizes gives, without one. Raises UnsupportedError.")
      .def(
          "difference_from",
          [](const Fit& fit, const NamedSizes& sizes, const Graph& capture) {
            return fit.symbolic().difference_from(sizes, capture);
          },
          py::arg("sizes"), py::arg("capture"), "How a capture at these sizes differs from what is foretold; or None.")
      .def("cost", &Fit::cost, py::arg("sizes"), py::call_guard<CppCall>(),
           "peak_bytes, saved_bytes (bytes), flops (2 a multiply-accumulate), elementwise_flops, transcendental at "
           "these sizes; on a device with a caching allocator reserved_bytes and footprint_bytes. Raises "
           "UnsupportedError.")
      .def_property_readonly("flops", &Fit::flops, "FLOPs of each phase that has any, as polynomials in the sizes.")
      .def_property_readonly("polynomials", &Fit::polynomials, "The different polynomials among all numbers.")
      .def("__str__", [](const Fit& fit) { return fit.symbolic().to_text(); })
      .def("__repr__", [](const Fit& fit) {
        return "<shadowgraph.SymbolicGraph of " + std::to_string(fit.symbolic().base().node_count()) + " nodes>";
      });
}

}  // namespace shadowgraph::python
