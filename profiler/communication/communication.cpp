#include "shadowgraph/profile/communication.h"

#include <algorithm>
#include <map>

#include "ir/analysis/module_tree.h"
#include "shadowgraph/units.h"

namespace shadowgraph {
namespace {

// The collective kind of an operator, and the argument that holds the payload, or one of its n parts if `is_part`.
struct CollectiveRow {
  std::string_view name;
  CollectiveKind kind;
  std::string_view argument;
  bool is_part = false;
};

constexpr CollectiveRow kRows[] = {
    {"_c10d_functional::all_reduce", CollectiveKind::kAllReduce, "input"},
    {"_c10d_functional::all_reduce_", CollectiveKind::kAllReduce, "input"},
    {"_c10d_functional::all_reduce_coalesced", CollectiveKind::kAllReduce, "inputs"},
    {"_c10d_functional::all_reduce_coalesced_", CollectiveKind::kAllReduce, "inputs"},
    {"_c10d_functional::all_gather_into_tensor", CollectiveKind::kAllGather, "input", true},
    {"_c10d_functional::all_gather_into_tensor_out", CollectiveKind::kAllGather, "input", true},
    {"_c10d_functional::all_gather_into_tensor_coalesced", CollectiveKind::kAllGather, "inputs", true},
    {"_c10d_functional::reduce_scatter_tensor", CollectiveKind::kReduceScatter, "input"},
    {"_c10d_functional::reduce_scatter_tensor_out", CollectiveKind::kReduceScatter, "input"},
    {"_c10d_functional::reduce_scatter_tensor_coalesced", CollectiveKind::kReduceScatter, "inputs"},
    {"_c10d_functional::all_to_all_single", CollectiveKind::kAllToAll, "input"},
    {"_c10d_functional::broadcast", CollectiveKind::kBroadcast, "input"},
    {"_c10d_functional::broadcast_", CollectiveKind::kBroadcast, "input"},
    {"_c10d_functional::isend", CollectiveKind::kSend, "tensor"},
    {"_c10d_functional::irecv", CollectiveKind::kReceive, "tensor"},
    {"_c10d_functional_autograd::all_reduce", CollectiveKind::kAllReduce, "input"},
    {"_c10d_functional_autograd::all_gather_into_tensor", CollectiveKind::kAllGather, "input", true},
    {"_c10d_functional_autograd::reduce_scatter_tensor", CollectiveKind::kReduceScatter, "input"},
    {"_c10d_functional_autograd::all_to_all_single", CollectiveKind::kAllToAll, "input"},
    {"_dtensor::shard_dim_alltoall", CollectiveKind::kAllToAll, "input"},
    {"c10d::allreduce_", CollectiveKind::kAllReduce, "tensors"},
    {"c10d::allreduce_coalesced_", CollectiveKind::kAllReduce, "tensors"},
    {"c10d::allgather_", CollectiveKind::kAllGather, "input_tensors", true},
    {"c10d::_allgather_base_", CollectiveKind::kAllGather, "output_tensor"},
    {"c10d::allgather_coalesced_", CollectiveKind::kAllGather, "input_list", true},
    {"c10d::allgather_into_tensor_coalesced_", CollectiveKind::kAllGather, "outputs"},
    {"c10d::reduce_scatter_", CollectiveKind::kReduceScatter, "output_tensors", true},
    {"c10d::_reduce_scatter_base_", CollectiveKind::kReduceScatter, "input_tensor"},
    {"c10d::reduce_scatter_tensor_coalesced_", CollectiveKind::kReduceScatter, "inputs"},
    {"c10d::alltoall_base_", CollectiveKind::kAllToAll, "input"},
    {"c10d::alltoall_", CollectiveKind::kAllToAll, "input_tensors"},
    {"c10d::broadcast_", CollectiveKind::kBroadcast, "tensors"},
    {"c10d::reduce_", CollectiveKind::kReduce, "tensors"},
    {"c10d::gather_", CollectiveKind::kGather, "input_tensors", true},
    {"c10d::gather_into_tensor_", CollectiveKind::kGather, "input_tensor", true},
    {"c10d::scatter_", CollectiveKind::kScatter, "output_tensors", true},
    {"c10d::send", CollectiveKind::kSend, "tensors"},
    {"c10d::recv_", CollectiveKind::kReceive, "tensors"},
    {"c10d::recv_any_source_", CollectiveKind::kReceive, "tensors"},
    {"c10d::barrier", CollectiveKind::kBarrier, ""},
    {"c10d::monitored_barrier_", CollectiveKind::kBarrier, ""},
};

// Operators of these namespaces that send nothing.
constexpr std::string_view kSilent[] = {"_c10d_functional::wait_tensor", "_c10d_functional::wait_tensors",
                                        "_c10d_functional::_wrap_tensor_autograd", "c10d::check_for_nan",
                                        "sg_c10d::process_group"};

const CollectiveRow* row_of(std::string_view name) {
  const auto found = std::ranges::find(kRows, name, &CollectiveRow::name);
  return found == std::end(kRows) ? nullptr : found;
}

std::optional<int64_t> integer_named(const Graph& graph, NodeId node, const std::string& name) {
  const Argument* argument = graph.find_argument(node, name);
  if (argument == nullptr || argument->kind != ArgumentKind::kInt) return std::nullopt;
  return argument->i;
}

int64_t tensor_bytes(const Graph& graph, NodeId node, const std::string& argument) {
  const Argument* tensors = argument.empty() ? nullptr : graph.find_argument(node, argument);
  if (tensors == nullptr) return 0;
  int64_t bytes = 0;
  graph.for_each_value(std::span(tensors, 1), [&](ValueId id) {
    const Value& value = graph.value(id);
    if (value.kind != ValueKind::kTensor) return;
    const auto size = static_cast<int64_t>(c10::elementSize(value.dtype));
    bytes = saturating_add(bytes, saturating_multiply(graph.numel(id), size));
  });
  return bytes;
}

// Resolves process groups by name: groups described in the graph, axes of the given mesh, and groups whose size is an
// argument of the operator.
class Groups {
 public:
  Groups(const Graph& graph, const CommunicationOptions& options, std::vector<ProcessGroupInfo>& groups)
      : graph_(graph), groups_(groups) {
    for (ProcessGroupInfo& info : process_groups(graph)) add(std::move(info));
    int64_t stride = 1;
    for (auto axis = options.mesh.rbegin(); axis != options.mesh.rend(); ++axis) {
      ProcessGroupInfo info{.name = axis->name, .size = axis->size, .rank = 0, .ranks = {}, .axis = axis->name};
      for (int64_t i = 0; i < axis->size; ++i) info.ranks.push_back(i * stride);
      stride *= axis->size;
      add(std::move(info));
    }
  }

  std::optional<uint32_t> of(NodeId node) {
    const std::string name = process_group_of(graph_, node);
    if (name.empty()) return std::nullopt;
    if (const auto found = by_name_.find(name); found != by_name_.end()) return found->second;
    const auto size = integer_named(graph_, node, "group_size");
    if (!size || *size < 1) return std::nullopt;
    return add({.name = name, .size = *size, .rank = 0, .ranks = {}, .axis = {}});
  }

 private:
  uint32_t add(ProcessGroupInfo info) {
    const auto [found, fresh] = by_name_.try_emplace(info.name, static_cast<uint32_t>(groups_.size()));
    if (fresh) groups_.push_back(std::move(info));
    return found->second;
  }

  const Graph& graph_;
  std::vector<ProcessGroupInfo>& groups_;
  std::map<std::string, uint32_t> by_name_;
};

CommunicationSum sum_of(const Collective& collective) {
  return {1, collective.payload, collective.cost.wire, collective.cost.seconds()};
}

}  // namespace

CommunicationSum& CommunicationSum::operator+=(const CommunicationSum& other) {
  calls += other.calls;
  payload = saturating_add(payload, other.payload);
  wire = saturating_add(wire, other.wire);
  seconds += other.seconds;
  return *this;
}

Communication Communication::of(const Graph& graph, const CommunicationOptions& options) {
  Communication result;
  result.graph_ = WeakGraph(graph);
  if (options.interconnect != nullptr) {
    result.interconnect_ = options.interconnect->title;
    result.device_share_ = options.interconnect->device_share;
    result.has_seconds_ = true;
  }
  std::vector<ProcessGroupInfo> groups;
  Groups known(graph, options, groups);
  std::map<std::string, int64_t> uncovered;
  std::vector<bool> communicates;
  for (const NodeId node : graph.nodes()) {
    const Target& target = graph.target(node);
    if (target.kind() == TargetKind::kBuiltin || !graph.facts(node).collective) continue;
    if (std::ranges::find(kSilent, target.name()) != std::end(kSilent)) continue;
    const CollectiveRow* row = row_of(target.name());
    const auto group = known.of(node);
    if (row == nullptr || !group) {
      ++uncovered[target.name()];
      continue;
    }
    const ProcessGroupInfo& info = groups[*group];
    Collective collective{.node = node, .kind = row->kind, .group = *group};
    collective.payload = tensor_bytes(graph, node, std::string(row->argument));
    if (row->is_part) collective.payload = saturating_multiply(collective.payload, info.size);
    const auto peer = integer_named(graph, node, row->kind == CollectiveKind::kSend ? "dst" : "src");
    if (options.interconnect != nullptr) {
      collective.cost = collective_cost(row->kind, collective.payload, info, *options.interconnect, peer.value_or(-1));
    } else {
      collective.cost.wire = wire_bytes(row->kind, collective.payload, info.size);
    }
    const Argument* asynchronous = graph.find_argument(node, "async_op");
    collective.asynchronous = row->kind != CollectiveKind::kBarrier &&
                              (asynchronous == nullptr || asynchronous->kind != ArgumentKind::kBool || asynchronous->b);
    const auto index = static_cast<uint32_t>(result.collectives_.size());
    result.of_node_[node] = index + 1;
    if (const NodeId forward = graph.node(node).forward; forward.valid()) result.backward_of_[forward].push_back(index);
    result.collectives_.push_back(collective);
  }
  // Drop groups without communication.
  std::vector<uint32_t> place(groups.size(), 0);
  for (const Collective& collective : result.collectives_) place[collective.group] = 1;
  for (uint32_t i = 0; i < groups.size(); ++i) {
    if (place[i] == 0) continue;
    place[i] = static_cast<uint32_t>(result.groups_.size());
    result.groups_.push_back(std::move(groups[i]));
  }
  for (Collective& collective : result.collectives_) collective.group = place[collective.group];
  for (const auto& [op, count] : uncovered) result.uncovered_.push_back({op, count});
  return result;
}

const Collective* Communication::find(NodeId node) const {
  const uint32_t place = of_node_[node];
  return place == 0 ? nullptr : &collectives_[place - 1];
}

template <class Wanted>
CommunicationSum Communication::sum_if(Wanted&& wanted) const {
  CommunicationSum sum;
  for (const Collective& collective : collectives_) {
    if (wanted(collective)) sum += sum_of(collective);
  }
  return sum;
}

CommunicationSum Communication::total() const {
  return sum_if([](const Collective&) { return true; });
}
CommunicationSum Communication::of(CollectiveKind kind) const {
  return sum_if([&](const Collective& collective) { return collective.kind == kind; });
}
CommunicationSum Communication::of(PhaseId phase) const {
  const Graph& graph = graph_.get("communication");
  return sum_if([&](const Collective& collective) { return graph.node(collective.node).phase == phase; });
}
CommunicationSum Communication::of_group(uint32_t group) const {
  return sum_if([&](const Collective& collective) { return collective.group == group; });
}

CommunicationSum Communication::forward(NodeId node) const {
  const Collective* own = find(node);
  if (own == nullptr || graph_.get("communication").node(node).forward.valid()) return {};
  return sum_of(*own);
}

CommunicationSum Communication::backward(NodeId node) const {
  CommunicationSum sum;
  for (const uint32_t index : backward_of_[node]) sum += sum_of(collectives_[index]);
  return sum;
}

std::vector<Communication::ModuleCommunication> Communication::by_module() const {
  std::vector<ModuleCommunication> modules;
  const Graph& graph = graph_.get("communication");
  std::map<std::string, size_t> places;
  for (const Collective& collective : collectives_) {
    const std::string path = module_path(graph, collective.node);
    const auto [found, fresh] = places.try_emplace(path, modules.size());
    if (fresh) modules.push_back({.path = path, .forward = {}, .backward = {}});
    ModuleCommunication& module = modules[found->second];
    const bool is_backward = graph.node(collective.node).phase == Graph::kBackward;
    (is_backward ? module.backward : module.forward) += sum_of(collective);
  }
  return modules;
}

}  // namespace shadowgraph
