// Node, Value, Storage and Region. Access to an erased one raises GraphError.
#include "python/src/graph_parts.h"

#include <fmt/format.h>
#include <pybind11/stl.h>
#include <pybind11/typing.h>
#include <torch/csrc/utils/pybind.h>

#include <array>
#include <ranges>
#include <sstream>

#include "cli/output.h"

namespace shadowgraph::python {
namespace {

const Node& record(const PyNode& node) {
  if (node.graph->is_erased(node.id)) throw GraphError("this node has been erased");
  return node.graph->node(node.id);
}
const Value& record(const PyValue& value) {
  const Value& v = value.graph->value(value.id);
  if (value.graph->is_erased(v.producer)) throw GraphError("the node that produces this value has been erased");
  return v;
}
const Storage& record(const PyStorage& storage) { return storage.graph->storage(storage.id); }
const Region& record(const PyRegion& region) { return region.graph->region(region.id); }

template <class Id>
std::optional<Part<Id>> part_or_none(const GraphPointer& graph, Id id) {
  return id.valid() ? std::optional(Part<Id>{graph, id}) : std::nullopt;
}

py::list argument_list(const GraphPointer& graph, std::span<const Argument> arguments);

py::object argument_object(const GraphPointer& graph, const Argument& argument) {
  switch (argument.kind) {
    case ArgumentKind::kNone:
      return py::none();
    case ArgumentKind::kValue:
      return py::cast(PyValue{graph, argument.ref.value});
    case ArgumentKind::kInt:
      return py::int_(argument.i);
    case ArgumentKind::kFloat:
      return py::float_(argument.d);
    case ArgumentKind::kBool:
      return py::bool_(argument.b);
    case ArgumentKind::kComplex: {
      const auto parts = graph->complex_parts(argument);
      return py::cast(std::complex<double>(parts[0], parts[1]));
    }
    case ArgumentKind::kString:
    case ArgumentKind::kOpaque:
      return text_object(graph->text_or_empty(argument.string));
    case ArgumentKind::kDevice:
    case ArgumentKind::kGenerator:
      return py::str(argument.device().str());
    case ArgumentKind::kIntList: {
      py::list list;
      for (const int64_t element : graph->ints(argument)) list.append(element);
      return list;
    }
    case ArgumentKind::kList:
      return argument_list(graph, graph->list(argument));
    case ArgumentKind::kConstant:
      return py::cast(graph->constant(argument.constant));
  }
  return py::none();
}

py::list argument_list(const GraphPointer& graph, std::span<const Argument> arguments) {
  py::list list;
  for (const Argument& argument : arguments) list.append(argument_object(graph, argument));
  return list;
}

py::typing::Tuple<py::int_, py::ellipsis> tuple_of(std::span<const int64_t> numbers) {
  return py::tuple(py::cast(std::vector<int64_t>(numbers.begin(), numbers.end())));
}

void bind_node_call(py::class_<PyNode>& node) {
  node.def_property_readonly(
          "name", [](const PyNode& n) { return "n" + std::to_string(Numbering::of(*n.graph).of((record(n), n.id))); },
          "Name in the text form, \"n12\". O(n) in the size of the graph.")
      .def_property_readonly(
          "target", [](const PyNode& n) { return std::string(n.graph->target((record(n), n.id)).name()); },
          "Operator with overload: \"aten::addmm\", \"aten::add.Tensor\", \"sg::parameter\".")
      .def_property_readonly(
          "schema", [](const PyNode& n) { return std::string(n.graph->target((record(n), n.id)).schema_text()); })
      .def_property_readonly(
          "is_placeholder", [](const PyNode& n) { return n.graph->is_placeholder((record(n), n.id)); },
          "True for a parameter, buffer, input or constant.")
      .def_property_readonly(
          "is_erased", [](const PyNode& n) { return n.graph->is_erased(n.id); },
          "True if the node was erased. All other attributes then raise GraphError.")
      .def_property_readonly(
          "args", [](const PyNode& n) { return argument_list(n.graph, n.graph->arguments((record(n), n.id))); },
          "Arguments in schema order: values, numbers, strings, lists, None.")
      .def_property_readonly(
          "arg_names",
          [](const PyNode& n) {
            std::vector<std::string> names;
            for (const auto& formal : n.graph->target((record(n), n.id)).signature().arguments)
              names.push_back(formal.name);
            return names;
          },
          "Names of the arguments in the schema, in the order of `args`.")
      .def(
          "argument",
          [](const PyNode& n, const std::string& name) {
            record(n);
            const Argument* const argument = n.graph->find_argument(n.id, name);
            if (argument == nullptr)
              throw py::key_error(std::string(n.graph->target(n.id).name()) + " has no argument " + name);
            return argument_object(n.graph, *argument);
          },
          "Returns the argument with this name in the schema. Raises KeyError.", py::arg("name"))
      .def_property_readonly(
          "inputs",
          [](const PyNode& n) {
            record(n);
            std::vector<PyValue> values;
            n.graph->for_each_input(n.id, [&](ValueId value) { values.push_back({n.graph, value}); });
            return values;
          },
          "Values among the arguments, including those in lists.")
      .def_property_readonly(
          "results", [](const PyNode& n) { return argument_list(n.graph, n.graph->results((record(n), n.id))); },
          "Results in schema order: values, lists of them, None.")
      .def_property_readonly("outputs", [](const PyNode& n) {
        record(n);
        std::vector<PyValue> values;
        n.graph->for_each_output(n.id, [&](ValueId value) { values.push_back({n.graph, value}); });
        return values;
      });
}

void bind_node_place(py::class_<PyNode>& node) {
  node.def_property_readonly(
          "phase", [](const PyNode& n) { return text_object(n.graph->phase_name(record(n).phase)); },
          "\"forward\", \"backward\", \"optimizer\", \"init\" or a user-defined phase.")
      .def_property_readonly(
          "module", [](const PyNode& n) { return text_object(module_of(*n.graph, (record(n), n.id))); },
          "Path of the innermost enclosing module: \"h.0.attn\".")
      .def_property_readonly(
          "region", [](const PyNode& n) { return part_or_none(n.graph, record(n).region); },
          "Innermost enclosing region.")
      .def_property_readonly(
          "previous", [](const PyNode& n) { return part_or_none(n.graph, record(n).previous); },
          "Previous node in program order, or None.")
      .def_property_readonly(
          "next", [](const PyNode& n) { return part_or_none(n.graph, record(n).next); },
          "Next node in program order, or None.")
      .def_property_readonly(
          "modes",
          [](const PyNode& n) {
            const NodeFlags flags = record(n).flags;
            std::vector<std::string> modes;
            if (flags.grad_mode) modes.emplace_back("grad_mode");
            if (flags.inference_mode) modes.emplace_back("inference_mode");
            if (flags.autocast_cpu) modes.emplace_back("autocast_cpu");
            if (flags.autocast_cuda) modes.emplace_back("autocast_cuda");
            return modes;
          },
          "Active modes: grad_mode, inference_mode, autocast_cpu, autocast_cuda.")
      .def_property_readonly(
          "forward", [](const PyNode& n) { return part_or_none(n.graph, record(n).forward); },
          "For a backward node, the corresponding forward node, or None if unknown.")
      .def_property_readonly(
          "source", [](const PyNode& n) { return text_object(n.graph->text_or_empty(record(n).source)); },
          "Source location \"file:line\", or \"\".");
}

void bind_node_lifetimes(py::class_<PyNode>& node) {
  node.def_property_readonly(
          "saved",
          [](const PyNode& n) {
            const auto saved = n.graph->saved((record(n), n.id));
            return parts_of(n.graph, std::views::transform(saved, &SavedTensor::value));
          },
          "Values that autograd saves for backward at this node.")
      .def_property_readonly(
          "frees", [](const PyNode& n) { return parts_of(n.graph, n.graph->frees((record(n), n.id))); },
          "Storages that are freed after this node.");
}

void bind_node_edits(py::class_<PyNode>& node) {
  node.def_property_readonly(
          "notes",
          [](const PyNode& n) {
            record(n);
            py::typing::Dict<py::str, py::str> notes;
            n.graph->for_each_note(n.id, [&](const std::string& key, const std::string& value) {
              notes[text_object(key)] = text_object(value);
            });
            return notes;
          },
          "Notes of passes and users, {key: text}.")
      .def(
          "set_note",
          [](const PyNode& n, const std::string& key, const std::string& value) {
            n.graph->set_note((record(n), n.id), key, value);
          },
          "Sets a note. An empty value removes it.", py::arg("key"), py::arg("value"))
      .def(
          "erase", [](const PyNode& n) { n.graph->erase((record(n), n.id)); },
          "Erases the node. Raises GraphError if its results are used.");
}

void bind_node(py::class_<PyNode>& node) {
  bind_node_call(node);
  bind_node_place(node);
  bind_node_lifetimes(node);
  bind_node_edits(node);
  node.def("__eq__", [](const PyNode& a, const PyNode& b) { return a == b; })
      .def("__hash__", [](const PyNode& n) { return n.id.index; })
      .def("__repr__", [](const PyNode& n) { return to_text(*n.graph, (record(n), n.id)); });
}

void bind_value_geometry(py::class_<PyValue>& value) {
  value
      .def_property_readonly(
          "name", [](const PyValue& v) { return "%" + std::to_string(Numbering::of(*v.graph).of((record(v), v.id))); },
          "Name in the text form, \"%12\". O(n) in the size of the graph.")
      .def_property_readonly(
          "kind", [](const PyValue& v) { return to_string(record(v).kind); },
          "\"tensor\", \"int\", \"float\" or \"bool\".")
      .def_property_readonly(
          "is_tensor", [](const PyValue& v) { return record(v).kind == ValueKind::kTensor; },
          "True for a tensor. For numbers, tensor attributes are empty.")
      .def_property_readonly(
          "shape", [](const PyValue& v) { return tuple_of(v.graph->sizes((record(v), v.id))); }, "Sizes, in elements.")
      .def_property_readonly(
          "stride", [](const PyValue& v) { return tuple_of(v.graph->strides((record(v), v.id))); }, "In elements.")
      .def_property_readonly(
          "offset", [](const PyValue& v) { return record(v).offset; }, "Storage offset, in elements.")
      .def_property_readonly("dtype", [](const PyValue& v) { return record(v).dtype; })
      .def_property_readonly(
          "layout",
          [](const PyValue& v) {
            std::ostringstream text;
            text << record(v).layout;
            return text.str();
          },
          "Name of the c10 layout, such as \"Strided\".")
      .def_property_readonly("device", [](const PyValue& v) { return record(v).device().str(); })
      .def_property_readonly(
          "is_contiguous", [](const PyValue& v) { return v.graph->is_contiguous((record(v), v.id)); },
          "Like torch.Tensor.is_contiguous().")
      .def_property_readonly(
          "elements", [](const PyValue& v) { return v.graph->numel((record(v), v.id)); }, "Number of elements.");
}

void bind_value(py::class_<PyValue>& value) {
  bind_value_geometry(value);
  value.def_property_readonly("requires_grad", [](const PyValue& v) { return record(v).requires_grad; })
      .def_property_readonly(
          "nbytes", [](const PyValue& v) { return v.graph->logical_bytes((record(v), v.id)); },
          "Bytes of the elements; the storage may be larger.")
      .def_property_readonly("storage", [](const PyValue& v) { return part_or_none(v.graph, record(v).storage); })
      .def_property_readonly("producer",
                             [](const PyValue& v) {
                               return PyNode{v.graph, record(v).producer};
                             })
      .def_property_readonly(
          "users", [](const PyValue& v) { return parts_of(v.graph, v.graph->users_of((record(v), v.id))); },
          "Distinct nodes that use the value, in program order.")
      .def(
          "replace_all_uses_with",
          [](const PyValue& v, const PyValue& with) {
            if (v.graph != with.graph) throw GraphError("cannot replace a value by one of another graph");
            return v.graph->replace_all_uses_with((record(v), v.id), (record(with), with.id));
          },
          "Replaces the value by another one in all arguments. Returns the number of changed arguments.",
          py::arg("other"))
      .def("__eq__", [](const PyValue& a, const PyValue& b) { return a == b; })
      .def("__hash__", [](const PyValue& v) { return v.id.index; })
      .def("__repr__", [](const PyValue& v) { return type_text(*v.graph, (record(v), v.id)); });
}

void bind_storage(py::class_<PyStorage>& storage) {
  storage.def_property_readonly("nbytes", [](const PyStorage& s) { return record(s).bytes; })
      .def_property_readonly("device", [](const PyStorage& s) { return record(s).device().str(); })
      .def_property_readonly(
          "kind", [](const PyStorage& s) { return std::string(to_string(record(s).kind)); },
          "\"parameter\", \"buffer\", \"input\", \"constant\", \"activation\", \"gradient\", \"optimizer_state\" or "
          "\"temporary\".")
      .def_property_readonly(
          "born", [](const PyStorage& s) { return part_or_none(s.graph, record(s).born); },
          "Node that allocates the storage.")
      .def_property_readonly(
          "freed_after", [](const PyStorage& s) { return part_or_none(s.graph, record(s).freed_after); },
          "Node after which the storage is freed; None if it is live at the end.")
      .def_property_readonly(
          "values",
          [](const PyStorage& s) {
            std::vector<PyValue> values;
            s.graph->for_each_value_in(s.id, [&](ValueId value) {
              if (!s.graph->is_erased(s.graph->value(value).producer)) values.push_back({s.graph, value});
            });
            std::reverse(values.begin(), values.end());
            return values;
          },
          "Values that share the storage, in order of creation.")
      .def("__eq__", [](const PyStorage& a, const PyStorage& b) { return a == b; })
      .def("__hash__", [](const PyStorage& s) { return s.id.index; })
      .def("__repr__", [](const PyStorage& s) {
        return "<Storage " + std::to_string(record(s).bytes) + " bytes " + record(s).device().str() + " " +
               std::string(to_string(record(s).kind)) + ">";
      });
}

void bind_region(py::class_<PyRegion>& region) {
  region.def_property_readonly("kind", [](const PyRegion& r) { return std::string(to_string(record(r).kind)); })
      .def_property_readonly(
          "name", [](const PyRegion& r) { return text_object(r.graph->text_or_empty(record(r).name)); },
          "Path of a module, or name of a composite operator.")
      .def_property_readonly(
          "class_name", [](const PyRegion& r) { return text_object(r.graph->text_or_empty(record(r).class_name)); })
      .def_property_readonly(
          "call", [](const PyRegion& r) { return record(r).call; }, "Number of earlier entries of the same scope.")
      .def_property_readonly("parent", [](const PyRegion& r) { return part_or_none(r.graph, record(r).parent); })
      .def("__eq__", [](const PyRegion& a, const PyRegion& b) { return a == b; })
      .def("__hash__", [](const PyRegion& r) { return r.id.index; })
      .def("__repr__", [](const PyRegion& r) {
        return cli::printable(
            fmt::format("<Region {} '{}'>", to_string(record(r).kind), r.graph->text_or_empty(record(r).name)));
      });
}

}  // namespace

std::string_view module_of(const Graph& graph, NodeId node) {
  for (RegionId region = graph.node(node).region; region.valid(); region = graph.region(region).parent) {
    if (graph.region(region).kind == RegionKind::kModule) return graph.text_or_empty(graph.region(region).name);
  }
  return {};
}

PyNode NodeIterator::advance() {
  if (!next.valid()) throw py::stop_iteration();
  const NodeId now = next;
  if (graph->is_erased(now)) throw GraphError("the next node was erased during iteration");
  next = graph->node(now).next;
  return {graph, now};
}

void bind_parts(py::module_& m) {
  // Declared before their members, whose signatures refer to them.
  py::class_<PyNode> node(m, "Node",
                          "One call of an operator, or a placeholder (parameter, buffer, input, constant, output).");
  py::class_<PyValue> value(m, "Value", "Metadata of a tensor, or a number that the program read.");
  py::class_<PyStorage> storage(m, "Storage", "A memory allocation, shared by a tensor and its views.");
  py::class_<PyRegion> region(m, "Region",
                              "A dynamic scope of the program: call of a module, composite operator or checkpoint.");
  bind_node(node);
  bind_value(value);
  bind_storage(storage);
  bind_region(region);
  py::class_<NodeIterator>(m, "NodeIterator")
      .def("__iter__", [](NodeIterator& self) -> NodeIterator& { return self; })
      .def("__next__", &NodeIterator::advance);
}

}  // namespace shadowgraph::python
