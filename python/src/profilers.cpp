// Costs per node: as attributes of a report's nodes, and in tables of built-in and user-defined profilers.
#include "shadowgraph/profile/profilers.h"

#include <fmt/format.h>
#include <pybind11/stl.h>

#include <array>
#include <cmath>
#include <functional>

#include "python/src/cost_rules.h"
#include "python/src/profile.h"

namespace shadowgraph::python {
namespace {

using ProfilePointer = std::shared_ptr<GraphProfile>;

// A node with a profile of its graph.
struct ProfiledNode : PyNode {
  ProfilePointer profile;
};

NodeId checked_id(const ProfiledNode& node) {
  if (node.graph->is_erased(node.id)) throw GraphError("this node has been erased");
  return node.id;
}

ProfiledNode profiled(const ProfilePointer& profile, const PyNode& node) {
  if (node.graph != profile->graph) throw Error("the node belongs to another graph than the profile");
  if (node.id.index >= profile->nodes) {
    throw Error("the node was added after the graph was profiled; profile the graph again");
  }
  return {node, profile};
}

std::vector<ProfiledNode> nodes_of(const ProfilePointer& profile) {
  std::vector<ProfiledNode> nodes;
  nodes.reserve(profile->graph->node_count());
  for (const NodeId node : profile->graph->nodes()) {
    if (node.index < profile->nodes) nodes.push_back({{profile->graph, node}, profile});
  }
  return nodes;
}

// Costs of a node; None if unknown.
template <class Profiler, size_t kIndex>
std::optional<double> metric(const ProfiledNode& node) {
  std::array<std::optional<double>, 4> all;
  Profiler().measure(node.profile->costs, checked_id(node), all);
  return all[kIndex];
}
template <class Profiler, size_t kIndex>
std::optional<int64_t> count(const ProfiledNode& node) {
  const std::optional<double> number = metric<Profiler, kIndex>(node);
  return number ? std::optional(static_cast<int64_t>(*number)) : std::nullopt;
}
template <int64_t NodeFlops::*kMember>
std::optional<int64_t> flops(const ProfiledNode& node) {
  const Profile& costs = node.profile->costs;
  return costs.node_flops().is_uncovered(checked_id(node)) ? std::nullopt : std::optional(costs.of(node.id).*kMember);
}
template <int64_t NodeTraffic::*kMember>
int64_t traffic(const ProfiledNode& node) {
  std::optional<Traffic>& known = node.profile->traffic;
  if (!known) known = Traffic::of(*node.graph);
  return known->of(checked_id(node)).*kMember;
}

[[noreturn]] void refuse(const std::string& metric, const ProfiledNode& node, const std::string& what) {
  throw Error(fmt::format("the rule for '{}' {} for `{}`; it must return a finite number, or None if unknown", metric,
                          what, to_text(*node.graph, node.id)));
}

std::optional<double> number_of(const std::string& metric, const ProfiledNode& node, py::handle result) {
  if (result.is_none()) return std::nullopt;
  const double number = PyFloat_AsDouble(result.ptr());
  if (PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    refuse(metric, node, "returned " + std::string(py::repr(result)));
  }
  if (!std::isfinite(number)) refuse(metric, node, fmt::format("returned {}", number));
  return number;
}

py::object call_rule(const std::string& metric, const ProfiledNode& node, const py::object& rule) {
  try {
    return rule(node);
  } catch (py::error_already_set& error) {
    refuse(metric, node, fmt::format("raised {}", error.what()));
  }
}

// A Python object with metrics() and measure(node).
class PythonProfiler final : public NodeProfiler {
 public:
  PythonProfiler(py::object object, ProfilePointer profile) : object_(std::move(object)), profile_(std::move(profile)) {
    for (const py::handle metric : object_.attr("metrics")()) {
      const auto [name, unit] = metric.cast<std::pair<std::string, std::string>>();
      metrics_.push_back({name, unit});
    }
    if (metrics_.empty())
      throw Error("metrics() of the profiler " + std::string(py::repr(object_)) + " is empty; return [(name, unit)]");
  }
  std::vector<NodeMetric> metrics() const override { return metrics_; }
  void measure(const Profile&, NodeId id, std::span<std::optional<double>> into) const override {
    const ProfiledNode node{{profile_->graph, id}, profile_};
    const py::object results = call_rule(metrics_[0].name, node, object_.attr("measure"));
    if (!py::isinstance<py::sequence>(results) || py::len(results) != into.size()) {
      refuse(
          metrics_[0].name, node,
          fmt::format("returned {} instead of a sequence of {} values", std::string(py::repr(results)), into.size()));
    }
    for (size_t i = 0; i < into.size(); ++i)
      into[i] = number_of(metrics_[i].name, node, py::object(results[py::int_(i)]));
  }

 private:
  py::object object_;
  ProfilePointer profile_;
  std::vector<NodeMetric> metrics_;
};

struct PyTable {
  ProfilePointer profile;
  NodeTable table;

  size_t metric(const std::string& name) const {
    const auto& all = table.metrics();
    const auto found = std::find_if(all.begin(), all.end(), [&](const NodeMetric& one) { return one.name == name; });
    if (found != all.end()) return static_cast<size_t>(found - all.begin());
    std::string names;
    for (const NodeMetric& one : all) names += (names.empty() ? "" : ", ") + one.name;
    throw Error("unknown metric '" + name + "'; the profilers have " + names);
  }
};

ProfilePointer profile_in(const py::object& report) {
  if (py::isinstance<GraphProfile>(report)) return report.cast<ProfilePointer>();
  throw Error("expected a report returned by sg.profile, got " + std::string(py::repr(report)));
}

// Python rules are bound to the profile at each run, since they access its nodes.
class Profilers {
 public:
  Profilers& add(const py::object& profiler, const std::string& unit, const py::object& rule) {
    Step step;
    if (py::isinstance<py::str>(profiler)) {
      if (PyCallable_Check(rule.ptr()) == 0) {
        throw Error("the metric '" + profiler.cast<std::string>() + "' requires rule=, a function of a node");
      }
      step = [name = profiler.cast<std::string>(), unit, rule](GraphProfiler& to, const ProfilePointer& profile) {
        to.add(name, unit, [=](const Profile&, NodeId id) {
          const ProfiledNode node{{profile->graph, id}, profile};
          return number_of(name, node, call_rule(name, node, rule));
        });
      };
    } else if (py::isinstance<NodeProfiler>(profiler)) {
      step = [own = profiler.cast<std::shared_ptr<NodeProfiler>>()](GraphProfiler& to, const ProfilePointer&) {
        to.add(std::shared_ptr<const NodeProfiler>(own));
      };
    } else if (py::hasattr(profiler, "metrics") && py::hasattr(profiler, "measure")) {
      step = [profiler](GraphProfiler& to, const ProfilePointer& profile) {
        to.add(std::make_shared<const PythonProfiler>(profiler, profile));
      };
    } else {
      throw Error(
          "profiler= must be a profiler, an object with metrics() and measure(node), or the name of a metric, "
          "not " +
          std::string(py::repr(profiler)));
    }
    step(names_, nullptr);  // rejects duplicate names
    steps_.push_back(std::move(step));
    return *this;
  }

  PyTable run(const py::object& report) const {
    const ProfilePointer profile = profile_in(report);
    GraphProfiler all;
    for (const Step& step : steps_) step(all, profile);
    return {profile, all.run(profile->costs)};
  }

 private:
  using Step = std::function<void(GraphProfiler&, const ProfilePointer&)>;
  std::vector<Step> steps_;
  GraphProfiler names_;
};

void bind_profiled_node(py::module_& m) {
  py::class_<ProfiledNode, PyNode>(m, "ProfiledNode",
                                   "A node of a report's graph with its costs. Unknown costs are None.")
      .def_property_readonly("flops", &flops<&NodeFlops::matmul>,
                             "FLOPs of matrix products, convolutions, attention and recurrent layers; a "
                             "multiply-accumulate is 2.")
      .def_property_readonly("elementwise_flops", &flops<&NodeFlops::elementwise>,
                             "Elementwise additions, multiplications, divisions and comparisons.")
      .def_property_readonly("transcendental", &flops<&NodeFlops::transcendental>,
                             "Evaluations of exp, log, sqrt, ...; not included in elementwise_flops.")
      .def_property_readonly("bytes_read", &traffic<&NodeTraffic::read>, "Bytes of all operands.")
      .def_property_readonly("bytes_written", &traffic<&NodeTraffic::written>, "Bytes of all results.")
      .def_property_readonly("allocated_bytes", &count<MemoryProfiler, 0>, "Bytes of storages allocated at the node.")
      .def_property_readonly("saved_bytes", &count<MemoryProfiler, 1>,
                             "Bytes of activations saved for backward, counted at the first node that saves them.")
      .def_property_readonly("scratch_bytes", &count<MemoryProfiler, 2>, "Temporary memory of the kernel.")
      .def_property_readonly("seconds", &metric<TimeProfiler, 0>,
                             "Estimated kernel time. None without a device spec, and for collectives.")
      .def_property_readonly("wire_bytes", &count<CommunicationProfiler, 0>, "Bytes sent by this process.")
      .def_property_readonly("communication_seconds", &metric<CommunicationProfiler, 1>,
                             "Estimated time of a collective; None without an interconnect spec.");
}

// (name, unit) of the metrics of a profiler or a table.
template <class Owner>
std::vector<std::pair<std::string, std::string>> metrics_of(const Owner& owner) {
  std::vector<std::pair<std::string, std::string>> all;
  for (const NodeMetric& one : owner.metrics()) all.emplace_back(one.name, one.unit);
  return all;
}

template <class Profiler>
void bind_profiler(py::module_& m, const char* name, const char* doc) {
  py::class_<Profiler, NodeProfiler, std::shared_ptr<Profiler>>(m, name, doc).def(py::init());
}

void bind_own_profilers(py::module_& m) {
  py::class_<NodeProfiler, std::shared_ptr<NodeProfiler>>(m, "NodeProfiler",
                                                          "Base class of profilers, which compute costs per node.")
      .def("metrics", &metrics_of<NodeProfiler>, "Returns [(name, unit)] of the columns it adds to a table.");
  bind_profiler<FlopProfiler>(m, "FlopProfiler", "Computes matmul_flops, elementwise_flops, transcendental.");
  bind_profiler<MemoryProfiler>(m, "MemoryProfiler",
                                "Computes allocated_bytes, saved_bytes, scratch_bytes, moved_bytes.");
  bind_profiler<TimeProfiler>(m, "TimeProfiler", "Computes seconds of kernels. Requires a report with a device spec.");
  bind_profiler<CommunicationProfiler>(m, "CommunicationProfiler",
                                       "Computes wire_bytes and communication_seconds of collectives.");
}

void bind_table_of_nodes(py::module_& m) {
  py::class_<NodeCost>(m, "NodeCost", "A cost of a node and of its backward nodes.")
      .def_readonly("forward", &NodeCost::forward, "Cost of the node itself, in any phase.")
      .def_readonly("backward", &NodeCost::backward, "Total cost of its backward nodes.")
      .def_readonly("unknown", &NodeCost::unknown,
                    "Number of these nodes with unknown cost, which the totals do not include.")
      .def("__repr__", [](const NodeCost& cost) {
        return fmt::format("NodeCost(forward={}, backward={}, unknown={})", cost.forward, cost.backward, cost.unknown);
      });
  py::class_<PyTable>(m, "NodeTable", "Costs per node. Backward nodes with a known forward node are part of its row.")
      .def_property_readonly(
          "metrics", [](const PyTable& t) { return metrics_of(t.table); }, "[(name, unit)]")
      .def_property_readonly(
          "nodes",
          [](const PyTable& t) {
            std::vector<ProfiledNode> nodes;
            for (const NodeId node : t.table.nodes()) nodes.push_back({{t.profile->graph, node}, t.profile});
            return nodes;
          },
          "Nodes with a row, in program order.")
      .def(
          "at",
          [](const PyTable& t, const PyNode& node, const std::string& name) {
            const size_t index = t.metric(name);
            if (!t.table.has(profiled(t.profile, node).id)) {
              throw Error("the node has no row in the table; its costs are part of its forward node");
            }
            return t.table.at(node.id, index);
          },
          "Returns a cost of a node. Raises Error for a node without a row, or an unknown metric.", py::arg("node"),
          py::arg("metric"))
      .def(
          "total", [](const PyTable& t, const std::string& name) { return t.table.total(t.metric(name)); },
          "Returns the total of a cost over all nodes.", py::arg("metric"))
      .def(
          "csv", [](const PyTable& t) { return to_csv(t.table); },
          "Returns CSV with a line per node: node, phase, module, op, source, then each cost, its backward_ cost, and "
          "the number of unknown ones.");
}

}  // namespace

void bind_profilers(py::module_& m) {
  bind_profiled_node(m);
  bind_own_profilers(m);
  bind_table_of_nodes(m);
  m.def("profiled_nodes", &nodes_of, py::arg("profile"));
  m.def("profiled_node", &profiled, py::arg("profile"), py::arg("node"));
  py::class_<Profilers>(
      m, "GraphProfiler",
      "Combines profilers into one table of costs per node.\n\n"
      "    profilers = sg.GraphProfiler(sg.FlopProfiler(), sg.MemoryProfiler())\n"
      "    profilers.add(\"energy\", \"J\", lambda node: 1e-12 * node.flops if node.flops else None)\n"
      "    table = profilers.run(sg.profile(graph))\n"
      "    table.at(node, \"energy\").backward, table.total(\"matmul_flops\"), table.csv()")
      .def(py::init([](const py::args& profilers) {
        Profilers all;
        for (const py::handle one : profilers) all.add(py::reinterpret_borrow<py::object>(one), "", py::none());
        return all;
      }))
      .def("add", &Profilers::add, py::return_value_policy::reference_internal, py::arg("profiler"),
           py::arg("unit") = "", py::arg("rule") = py::none(),
           "Adds a profiler and returns self.\n\n"
           "profiler: a built-in profiler; an object with metrics(), which returns [(name, unit)], and measure(node), "
           "which returns a sequence of numbers, None if unknown; or the name of a metric.\n"
           "unit, rule: for a name, its unit and a function of a node.\n\n"
           "Rules get nodes as in `Profile.nodes`. Raises Error for duplicate names.")
      .def("run", &Profilers::run, py::arg("report"),
           "Returns the table of a report. Raises Error if a rule raises or returns an invalid value.");
}

}  // namespace shadowgraph::python
