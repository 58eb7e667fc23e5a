// Figures of single nodes: as attributes of a report's nodes, and in tables that profilers fill, users' rules among them.
#include "shadowgraph/profile/profilers.h"

#include <fmt/format.h>
#include <pybind11/stl.h>

#include <array>
#include <cmath>
#include <functional>

#include "python/src/cost_rules.h"
#include "python/src/profile.h"
#include "shadowgraph/profile/communication.h"

namespace shadowgraph::python {
namespace {

using ProfilePointer = std::shared_ptr<GraphProfile>;

// A node of a graph, and what it costs by one profile of it.
struct ProfiledNode : PyNode {
  ProfilePointer profile;
};

NodeId asked(const ProfiledNode& node) {
  if (node.graph->is_erased(node.id)) throw GraphError("this node has been erased");
  return node.id;
}

ProfiledNode profiled(const ProfilePointer& profile, const PyNode& node) {
  if (node.graph != profile->graph) throw Error("the node is of another graph than the profile");
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

// ---- A figure of a node: None where it is not known

template <class Profiler, size_t kIndex>
std::optional<double> figure(const ProfiledNode& node) {
  std::array<std::optional<double>, 4> all;
  Profiler().measure(node.profile->costs, asked(node), all);
  return all[kIndex];
}
template <class Profiler, size_t kIndex>
std::optional<int64_t> count(const ProfiledNode& node) {
  const std::optional<double> number = figure<Profiler, kIndex>(node);
  return number ? std::optional(static_cast<int64_t>(*number)) : std::nullopt;
}
template <int64_t NodeFlops::*kMember>
std::optional<int64_t> flops(const ProfiledNode& node) {
  const Profile& costs = node.profile->costs;
  return costs.node_flops().is_uncovered(asked(node)) ? std::nullopt : std::optional(costs.of(node.id).*kMember);
}
template <int64_t NodeTraffic::*kMember>
int64_t traffic(const ProfiledNode& node) {
  std::optional<Traffic>& known = node.profile->traffic;
  if (!known) known = Traffic::of(*node.graph);
  return known->of(asked(node)).*kMember;
}

// ---- Rules from Python

[[noreturn]] void refuse(const std::string& figure, const ProfiledNode& node, const std::string& what) {
  throw Error(fmt::format("the figure '{}' of `{}` {}; a rule gives a number, or None if it cannot tell", figure,
                          to_text(*node.graph, node.id), what));
}

std::optional<double> number_of(const std::string& figure, const ProfiledNode& node, py::handle answer) {
  if (answer.is_none()) return std::nullopt;
  const double number = PyFloat_AsDouble(answer.ptr());
  if (PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    refuse(figure, node, "is " + std::string(py::repr(answer)));
  }
  if (!std::isfinite(number)) refuse(figure, node, fmt::format("is {}", number));
  return number;
}

py::object call_rule(const std::string& figure, const ProfiledNode& node, const py::object& rule) {
  try {
    return rule(node);
  } catch (py::error_already_set& error) {
    refuse(figure, node, fmt::format("raised {}", error.what()));
  }
}

// An object of Python with figures() and measure(node).
class PythonProfiler final : public NodeProfiler {
 public:
  PythonProfiler(py::object object, ProfilePointer profile) : object_(std::move(object)), profile_(std::move(profile)) {
    for (const py::handle figure : object_.attr("figures")()) {
      const auto [name, unit] = figure.cast<std::pair<std::string, std::string>>();
      figures_.push_back({name, unit});
    }
    if (figures_.empty()) throw Error("the profiler " + std::string(py::repr(object_)) + " has no figures");
  }
  std::vector<NodeFigure> figures() const override { return figures_; }
  void measure(const Profile&, NodeId id, std::span<std::optional<double>> into) const override {
    const ProfiledNode node{{profile_->graph, id}, profile_};
    const py::object answers = call_rule(figures_[0].name, node, object_.attr("measure"));
    if (!py::isinstance<py::sequence>(answers) || py::len(answers) != into.size()) {
      refuse(figures_[0].name, node,
             fmt::format("and the others of its profiler are {}, where it has {} figures",
                         std::string(py::repr(answers)), into.size()));
    }
    size_t i = 0;
    for (const py::handle answer : answers) {
      into[i] = number_of(figures_[i].name, node, answer);
      ++i;
    }
  }

 private:
  py::object object_;
  ProfilePointer profile_;
  std::vector<NodeFigure> figures_;
};

struct PyTable {
  ProfilePointer profile;
  NodeTable table;

  size_t figure(const std::string& name) const {
    const auto& all = table.figures();
    const auto found = std::find_if(all.begin(), all.end(), [&](const NodeFigure& one) { return one.name == name; });
    if (found != all.end()) return static_cast<size_t>(found - all.begin());
    std::string names;
    for (const NodeFigure& one : all) names += (names.empty() ? "" : ", ") + one.name;
    throw Error("no profiler has a figure '" + name + "'; there are " + names);
  }
};

ProfilePointer profile_in(const py::object& report) {
  if (py::isinstance<GraphProfile>(report)) return report.cast<ProfilePointer>();
  throw Error("profilers run on a report, which sg.profile gives, not on " + std::string(py::repr(report)));
}

// Adds rules of Python anew for each run, since they see nodes of the profile that is run on.
class Profilers {
 public:
  Profilers& add(const py::object& profiler, const std::string& unit, const py::object& rule) {
    Step step;
    if (py::isinstance<py::str>(profiler)) {
      if (PyCallable_Check(rule.ptr()) == 0) {
        throw Error("the figure '" + profiler.cast<std::string>() + "' has no rule: give a function of a node");
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
    } else if (py::hasattr(profiler, "figures") && py::hasattr(profiler, "measure")) {
      step = [profiler](GraphProfiler& to, const ProfilePointer& profile) {
        to.add(std::make_shared<const PythonProfiler>(profiler, profile));
      };
    } else {
      throw Error("a profiler has figures() and measure(node), or is a name, a unit and a function of a node, not " +
                  std::string(py::repr(profiler)));
    }
    step(names_, nullptr);  // figures of one name are refused
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

// ---- Bindings

void bind_profiled_node(py::module_& m) {
  py::class_<ProfiledNode, PyNode>(
      m, "ProfiledNode", "A node of a report's graph, with what it costs. A figure that is not known is None.")
      .def_property_readonly("flops", &flops<&NodeFlops::matmul>,
                             "Of matrix products, convolutions, attention, recurrent layers: 2 a multiply-accumulate.")
      .def_property_readonly("elementwise_flops", &flops<&NodeFlops::elementwise>,
                             "Additions, multiplications, divisions, comparisons.")
      .def_property_readonly("transcendental", &flops<&NodeFlops::transcendental>,
                             "Evaluations of exp, log, sqrt, ...; not in elementwise_flops.")
      .def_property_readonly("bytes_read", &traffic<&NodeTraffic::read>, "Every operand once.")
      .def_property_readonly("bytes_written", &traffic<&NodeTraffic::written>, "Every result once.")
      .def_property_readonly("allocated_bytes", &count<MemoryProfiler, 0>, "Of storages that are born at it.")
      .def_property_readonly("saved_bytes", &count<MemoryProfiler, 1>,
                             "Of activations that it is the first to keep for backward.")
      .def_property_readonly("scratch_bytes", &count<MemoryProfiler, 2>, "That its kernel takes and gives back.")
      .def_property_readonly("seconds", &figure<TimeProfiler, 0>,
                             "Of its kernel. None without figures of the device, and for collectives.")
      .def_property_readonly("wire_bytes", &count<CommunicationProfiler, 0>, "That this process sends.")
      .def_property_readonly("communication_seconds", &figure<CommunicationProfiler, 1>,
                             "Of a collective; None if nobody knows the links between processes.");
}

void bind_own_profilers(py::module_& m) {
  const auto figures = [](const NodeProfiler& profiler) {
    std::vector<std::pair<std::string, std::string>> all;
    for (const NodeFigure& one : profiler.figures()) all.emplace_back(one.name, one.unit);
    return all;
  };
  py::class_<NodeProfiler, std::shared_ptr<NodeProfiler>>(m, "NodeProfiler", "One kind of figures of nodes.")
      .def("figures", figures, "[(name, unit)]: what a table has of it.");
  py::class_<FlopProfiler, NodeProfiler, std::shared_ptr<FlopProfiler>>(
      m, "FlopProfiler", "matmul_flops, elementwise_flops, transcendental.")
      .def(py::init());
  py::class_<MemoryProfiler, NodeProfiler, std::shared_ptr<MemoryProfiler>>(
      m, "MemoryProfiler", "allocated_bytes, saved_bytes, scratch_bytes, moved_bytes.")
      .def(py::init());
  py::class_<TimeProfiler, NodeProfiler, std::shared_ptr<TimeProfiler>>(
      m, "TimeProfiler", "seconds of kernels, for reports that know the device.")
      .def(py::init());
  py::class_<CommunicationProfiler, NodeProfiler, std::shared_ptr<CommunicationProfiler>>(
      m, "CommunicationProfiler", "wire_bytes, communication_seconds of collectives.")
      .def(py::init());
}

void bind_table_of_nodes(py::module_& m) {
  py::class_<NodeCost>(m, "NodeCost", "A figure of a node, and of the backward nodes that differentiate it.")
      .def_readonly("forward", &NodeCost::forward, "Of the node itself, whatever its phase.")
      .def_readonly("backward", &NodeCost::backward, "Of the backward nodes that differentiate it.")
      .def_readonly("unknown", &NodeCost::unknown,
                    "How many of those nodes have no answer: the sums are then at least.")
      .def("__repr__", [](const NodeCost& cost) {
        return fmt::format("NodeCost(forward={}, backward={}, unknown={})", cost.forward, cost.backward, cost.unknown);
      });
  py::class_<PyTable>(m, "NodeTable",
                      "Figures of nodes: a row each but for backward nodes, which stand at their "
                      "forward node.")
      .def_property_readonly(
          "figures",
          [](const PyTable& t) {
            std::vector<std::pair<std::string, std::string>> all;
            for (const NodeFigure& one : t.table.figures()) all.emplace_back(one.name, one.unit);
            return all;
          },
          "[(name, unit)]")
      .def_property_readonly(
          "nodes",
          [](const PyTable& t) {
            std::vector<ProfiledNode> nodes;
            for (const NodeId node : t.table.nodes()) nodes.push_back({{t.profile->graph, node}, t.profile});
            return nodes;
          },
          "The nodes with a row, in program order.")
      .def(
          "at",
          [](const PyTable& t, const PyNode& node, const std::string& name) {
            const size_t index = t.figure(name);
            if (!t.table.has(profiled(t.profile, node).id)) {
              throw Error("the node is no row of the table: its costs stand at its forward node");
            }
            return t.table.at(node.id, index);
          },
          "Raises Error for a node without a row, and for a figure that is none.", py::arg("node"), py::arg("figure"))
      .def(
          "total", [](const PyTable& t, const std::string& name) { return t.table.total(t.figure(name)); },
          "A figure's sums over all nodes.", py::arg("figure"))
      .def(
          "csv", [](const PyTable& t) { return to_csv(t.table); },
          "A line a node: node, phase, module, op, source, then each figure and backward_ of it, and unknown.");
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
      "Figures of single nodes, each kind by a profiler of its own, put together as one likes.\n\n"
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
           "profiler: one of this module's; an object with figures(), [(name, unit)], and measure(node), a sequence of "
           "numbers, None where it cannot tell; or a figure's name, with its unit and its rule, a function of a "
           "node.\n\n"
           "Rules see nodes with their figures, as `Report.nodes` has them. Raises Error for two figures of one name.")
      .def("run", &Profilers::run, py::arg("report"),
           "The table of a report. Raises Error for a rule that raises, or gives what is no number.");
}

}  // namespace shadowgraph::python
