// Builds small graphs by hand, for tests of the profiler and of diagrams.
#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "ir/records.h"
#include "shadowgraph/graph/graph.h"

namespace shadowgraph::testing {

struct TestGraph {
  Graph graph;
  PhaseId phase = Graph::kForward;
  RegionId region = Graph::kRootRegion;
  c10::Device device = c10::Device(c10::DeviceType::CPU);
  c10::ScalarType dtype = c10::ScalarType::Float;

  struct Call {
    NodeId node;
    std::vector<ValueId> values;
    operator Argument() const { return Argument::of_value(values.at(0)); }  // NOLINT: reads as the tensor it made
    ValueId value() const { return values.at(0); }
  };

  static int64_t numel(const std::vector<int64_t>& sizes) {
    int64_t count = 1;
    for (int64_t size : sizes) count *= size;
    return count;
  }

  ValueId tensor(NodeId node, const std::vector<int64_t>& sizes, StorageId storage = {}) {
    if (!storage.valid()) {
      Storage fresh;
      fresh.bytes = numel(sizes) * static_cast<int64_t>(c10::elementSize(dtype));
      fresh.device_type = device.type();
      fresh.device_index = device.index();
      fresh.born = node;
      storage = graph.add_storage(fresh);
    }
    std::vector<int64_t> strides(sizes.size(), 1);
    for (size_t d = sizes.size(); d-- > 1;) strides[d - 1] = strides[d] * sizes[d];
    return graph.add_tensor_result(
        node, {.dtype = dtype, .sizes = sizes, .strides = strides, .storage = storage, .device = device});
  }

  Call placeholder(Builtin builtin, const std::string& name, const std::vector<int64_t>& sizes,
                   StorageId storage = {}) {
    Call call;
    call.node = graph.append(target_of(builtin), {graph.string_argument(name)});
    call.values.push_back(tensor(call.node, sizes, storage));
    return call;
  }
  Call parameter(const std::string& name, const std::vector<int64_t>& sizes, StorageId storage = {}) {
    return placeholder(Builtin::kParameter, name, sizes, storage);
  }
  Call input(const std::string& name, const std::vector<int64_t>& sizes) {
    return placeholder(Builtin::kInput, name, sizes);
  }

  // `op` is "aten::mm" or "aten::add.Tensor". Missing trailing arguments are None.
  Call call(const std::string& op, std::vector<Argument> arguments, const std::vector<std::vector<int64_t>>& results,
            NodeId forward = {}) {
    const TargetId target = graph.intern_operator(op);
    arguments.resize(graph.target(target).signature().arguments.size());
    Call made = append(target, arguments, forward);
    for (const auto& sizes : results) made.values.push_back(tensor(made.node, sizes));
    return made;
  }
  // Like call(), with results that alias `base`.
  Call view(const std::string& op, const std::vector<Argument>& arguments, ValueId base,
            const std::vector<int64_t>& sizes, NodeId forward = {}) {
    Call made = call(op, arguments, {}, forward);
    made.values.push_back(tensor(made.node, sizes, graph.value(base).storage));
    return made;
  }
  Call append(TargetId target, const std::vector<Argument>& arguments, NodeId forward = {}) {
    Call made;
    made.node = graph.append(target, arguments);
    mutable_node(graph, made.node).phase = phase;
    mutable_node(graph, made.node).region = region;
    mutable_node(graph, made.node).forward = forward;
    return made;
  }

  StorageId storage(const Call& call, size_t result = 0) const { return graph.value(call.values.at(result)).storage; }
  void free_after(NodeId node, const std::vector<StorageId>& storages) { graph.set_frees(node, storages); }
  void save(NodeId node, const std::vector<ValueId>& values) {
    std::vector<SavedTensor> saved;
    for (ValueId value : values) saved.push_back({.value = value, .role = SavedRole::kArgument});
    graph.set_saved(node, saved);
  }
  void gradient(const Call& parameter, const Call& value) { append(target_of(Builtin::kGradient), {parameter, value}); }
  void output(const std::vector<Argument>& values) { append(target_of(Builtin::kOutput), {graph.make_list(values)}); }

  // Enters a region nested in the current one until the returned guard is destroyed.
  struct Scope {
    TestGraph& owner;
    RegionId before;
    ~Scope() { owner.region = before; }
  };
  Scope module(const std::string& path, const std::string& class_name, uint32_t call = 0) {
    return enter({.kind = RegionKind::kModule,
                  .name = graph.intern(path),
                  .class_name = graph.intern(class_name),
                  .call = call});
  }
  Scope composite(const std::string& name) {
    return enter({.kind = RegionKind::kComposite, .name = graph.intern(name)});
  }
  Scope enter(Region added) {
    added.parent = region;
    const RegionId before = region;
    region = graph.add_region(added);
    return {*this, before};
  }

  Argument ints(const std::vector<int64_t>& values) { return graph.int_list(values); }
  Argument bools(const std::vector<bool>& values) {
    std::vector<Argument> elements;
    for (bool value : values) elements.push_back(Argument::of_bool(value));
    return graph.make_list(elements);
  }
};

}  // namespace shadowgraph::testing
