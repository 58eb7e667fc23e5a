// Groups nodes into kernels, and runs the groups as launches.
//
// Units form a line that is always a valid execution order. A unit is a growing group, or a single node. A node that a
// kernel supports joins units that it depends on, in one of two ways:
//
//   %2 = mul(%0, %1)      %2 is not used yet, so its unit moves to the end of the line, and the add, which is there,
//   %5 = add(%2, %4)      joins it
//
//   %2 = mul(%0, %1)      mm uses %2, so the unit keeps its place; the relu depends on nothing after the unit, and
//   %3 = mm(%2, %w)       moves up
//   %4 = relu(%2)
//
// In the first way, several units may move to the node and merge. Both ways keep the line a valid order, so groups
// never depend on each other in a cycle. lower_kernel decides which nodes can be one group, and is called for each
// attempted union.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <vector>

#include "kernels/replay/launch.h"
#include "shadowgraph/graph/analysis.h"
#include "shadowgraph/kernels/kernel.h"

namespace shadowgraph {
namespace {

struct Grouping {
  std::vector<NodeId> order;                // all nodes
  std::vector<std::vector<NodeId>> groups;  // in the order of `order`, each in program order
};

class Grouper {
 public:
  Grouper(const Graph& graph, const GroupKernelsOptions& options)
      : graph_(graph), options_(options), dependences_(Dependences::of(graph)) {}

  Grouping run() {
    find_lazy_storages();
    for (const NodeId node : graph_.nodes()) place(node);
    return result();
  }

 private:
  struct Unit {
    std::vector<NodeId> nodes;  // in program order
    uint32_t position = 0;      // in the line
    bool kernel = false;        // supported by a kernel
    bool needed = false;        // by a later unit
  };

  uint32_t unit_of(NodeId node) {
    uint32_t unit = unit_of_[node];
    while (joined_[unit] != unit) unit = joined_[unit] = joined_[joined_[unit]];
    return unit;
  }

  // Finds storages with negative or conjugate views, which values of the graph do not distinguish.
  void find_lazy_storages() {
    lazy_storages_.assign(graph_.storage_count(), false);
    for (const NodeId node : graph_.nodes()) {
      if (!graph_.facts(node).negates && !graph_.facts(node).conjugates) continue;
      graph_.for_each_output(node, [&](ValueId v) {
        if (graph_.value(v).storage.valid()) lazy_storages_[graph_.value(v).storage.index] = true;
      });
    }
  }

  bool uses_lazy_storage(NodeId node) const {
    bool found = false;
    const auto look = [&](ValueId v) {
      const StorageId storage = graph_.value(v).storage;
      found |= storage.valid() && lazy_storages_[storage.index];
    };
    graph_.for_each_input(node, look);
    graph_.for_each_output(node, look);
    return found;
  }

  bool is_kernel(std::span<const NodeId> nodes) const {
    const auto plan = lower_kernel(
        graph_, nodes, options_.kernels, [](ValueId) { return true; }, nullptr);
    return plan && (nodes.size() == 1 || keeps_threads_busy(*plan));
  }

  // Returns whether a plan has work for all threads. A reduction to a few numbers would limit everything that joins it.
  static bool keeps_threads_busy(const LoweredKernel& plan) {
    const int64_t shares = plan.range * plan.row_work / kElementsOfAThread;
    return plan.range >= std::min<int64_t>(shares, at::get_num_threads());
  }

  // A cheap check before calling lower_kernel.
  bool may_join(const Unit& unit, NodeId node) const {
    return unit.kernel && graph_.node(unit.nodes[0]).phase == graph_.node(node).phase &&
           unit.nodes.size() < static_cast<size_t>(options_.max_nodes);
  }

  std::vector<NodeId> merged(std::span<const NodeId> a, std::span<const NodeId> b) const {
    std::vector<NodeId> nodes(a.size() + b.size());
    std::ranges::merge(a, b, nodes.begin(), [&](NodeId x, NodeId y) { return graph_.is_before(x, y); });
    return nodes;
  }

  void place(NodeId node) {
    before_.clear();
    for (const NodeId other : dependences_.before(node)) before_.push_back(unit_of(other));
    std::ranges::sort(before_, [&](uint32_t a, uint32_t b) { return units_[a].position > units_[b].position; });
    before_.erase(std::ranges::unique(before_).begin(), before_.end());

    const auto own = static_cast<uint32_t>(units_.size());
    const bool kernel = !uses_lazy_storage(node) && is_kernel({&node, 1});
    units_.push_back({.nodes = {node}, .position = ++end_, .kernel = kernel});
    joined_.push_back(own);
    unit_of_[node] = own;
    if (kernel && !before_.empty()) join(own, node);
    const uint32_t unit = unit_of(node);
    for (const uint32_t other : before_) {
      if (joined_[other] == other && other != unit) units_[other].needed = true;
    }
  }

  void join(uint32_t own, NodeId node) {
    const Unit& last = units_[before_[0]];
    // The node may move up and join a unit that cannot be moved, if it depends on nothing after that unit.
    const bool up = last.needed && may_join(last, node);
    std::vector<NodeId> nodes = {node};
    std::vector<uint32_t> taken;
    for (const uint32_t other : before_) {
      const bool waits = !units_[other].needed;
      const bool stays = up && other == before_[0];
      if ((!waits && !stays) || !may_join(units_[other], node)) continue;
      std::vector<NodeId> all = merged(units_[other].nodes, nodes);
      if (all.size() > static_cast<size_t>(options_.max_nodes) || !is_kernel(all)) continue;
      nodes = std::move(all);
      taken.push_back(other);
    }
    if (taken.empty()) return;
    Unit& unit = units_[own];
    if (up && taken[0] == before_[0]) {
      unit.position = last.position;
      unit.needed = true;
    }
    for (const uint32_t other : taken) {
      joined_[other] = own;
      units_[other].nodes.clear();
    }
    unit.nodes = std::move(nodes);
  }

  Grouping result() {
    std::vector<uint32_t> line;
    for (uint32_t unit = 0; unit < units_.size(); ++unit) {
      if (joined_[unit] == unit) line.push_back(unit);
    }
    std::ranges::sort(line, {}, [&](uint32_t unit) { return units_[unit].position; });
    Grouping grouping;
    for (const uint32_t number : line) {
      Unit& unit = units_[number];
      grouping.order.insert(grouping.order.end(), unit.nodes.begin(), unit.nodes.end());
      if (unit.kernel && unit.nodes.size() >= static_cast<size_t>(options_.min_nodes)) {
        grouping.groups.push_back(std::move(unit.nodes));
      }
    }
    return grouping;
  }

  const Graph& graph_;
  const GroupKernelsOptions& options_;
  const Dependences dependences_;
  std::vector<bool> lazy_storages_;  // by storage
  std::vector<Unit> units_;
  std::vector<uint32_t> joined_;  // by unit: itself, or the unit that it was merged into
  IdMap<NodeId, uint32_t> unit_of_;
  uint32_t end_ = 0;
  std::vector<uint32_t> before_;  // units that the current node depends on, the latest first
};

struct Geometry : ResultGeometry {
  int64_t bytes = 0;  // from the first element to the end of the last; 0 if empty
  bool contiguous = false;
};

Geometry geometry_of(const Graph& graph, ValueId v) {
  Geometry out{ResultGeometry::of(graph, v), 0, graph.is_contiguous(v)};
  if (graph.numel(v) == 0) return out;
  int64_t elements = 1;
  for (size_t d = 0; d < out.sizes.size(); ++d) elements += (out.sizes[d] - 1) * out.strides[d];
  out.bytes = elements * static_cast<int64_t>(c10::elementSize(out.dtype));
  return out;
}

struct GroupInput {
  ValueId value;
  Geometry geometry;
  bool written = false;
};

struct ResultSource {
  ValueId value;
  uint32_t operand = 0;  // inputs, then outputs
};

struct PreparedGroup {
  LoweredKernel plan;
  std::vector<std::string> operators;
  std::string original;  // equal for groups of the same operators
  KernelRef kernel;
  std::string problem;
  std::vector<GroupInput> inputs;
  std::vector<Geometry> outputs;
  std::vector<ResultSource> results;
  // Inputs in different storages, one of them written: they must not overlap.
  std::vector<std::pair<uint32_t, uint32_t>> apart;
  std::atomic<Trial*> trial = nullptr;  // set once the kernel is ready
  std::atomic<int64_t> kernel_runs = 0, node_runs = 0;
  std::atomic<int64_t> began = -1;  // start time of the measured nodes
};

bool is_plain(const at::Tensor& tensor, c10::DeviceType device) {
  constexpr c10::DispatchKeySet kPassedOver =
      c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset;
  return tensor.defined() && tensor.device().type() == device &&
         tensor.key_set() - kPassedOver ==
             c10::DispatchKeySet(c10::computeDispatchKey(std::nullopt, c10::kStrided, c10::Device(device)));
}

bool fits(const at::Tensor& tensor, const Geometry& geometry) {
  if (tensor.scalar_type() != geometry.dtype || tensor.sizes() != c10::IntArrayRef(geometry.sizes)) return false;
  if (geometry.contiguous && tensor.is_contiguous()) return true;
  const auto strides = tensor.strides();
  for (size_t d = 0; d < geometry.sizes.size(); ++d) {
    if (geometry.sizes[d] != 1 && strides[d] != geometry.strides[d]) return geometry.bytes == 0;
  }
  return true;
}

class Groups final : public KernelGroups {
 public:
  Groups(const Graph& graph, std::shared_ptr<KernelCache> cache, const GroupKernelsOptions& options)
      : cache_(std::move(cache)), trials_(*cache_, options.measure) {
    Grouping grouping = Grouper(graph, options).run();
    order_ = std::move(grouping.order);
    IdMap<NodeId, int32_t> group_of(-1);
    for (size_t g = 0; g < grouping.groups.size(); ++g) {
      for (const NodeId node : grouping.groups[g]) group_of[node] = static_cast<int32_t>(g);
    }
    IdMap<NodeId, int32_t> done;
    for (size_t g = 0; g < grouping.groups.size(); ++g) {
      auto prepared = std::make_unique<PreparedGroup>();
      const auto escapes = [&](ValueId v) {
        bool outside = false;
        graph.for_each_use(v, [&](NodeId user) { outside |= group_of[user] != static_cast<int32_t>(g); });
        return outside;
      };
      if (!prepare(graph, grouping.groups[g], options.kernels, escapes, *prepared)) continue;
      for (const NodeId node : grouping.groups[g]) done[node] = 1;
      Group group{.nodes = std::move(grouping.groups[g])};
      for (const ResultSource& result : prepared->results) group.results.push_back(result.value);
      groups_.push_back(std::move(group));
      prepared_.push_back(std::move(prepared));
    }
    for (const NodeId node : order_) {
      if (graph.target(node).kind() != TargetKind::kBuiltin && done[node] == 0) ++calls_[graph.target(node).name()];
    }
  }

  const std::vector<NodeId>& order() const override { return order_; }
  const std::vector<Group>& groups() const override { return groups_; }
  const LoweredKernel& lowered(uint32_t group) const override { return prepared_.at(group)->plan; }
  void wait() const override { cache_->wait(); }

  bool run(uint32_t number, std::span<c10::IValue> values) override {
    PreparedGroup& group = *prepared_[number];
    const bool ran = run_kernel(group, values);
    (ran ? group.kernel_runs : group.node_runs).fetch_add(1, std::memory_order_relaxed);
    return ran;
  }

  void nodes_ran(uint32_t number) override {
    PreparedGroup& group = *prepared_[number];
    const int64_t began = group.began.exchange(-1, std::memory_order_relaxed);
    if (began < 0) return;
    Trial& trial = *group.trial.load(std::memory_order_acquire);
    trial.took(Trial::Implementation::kOriginal, trial.now() - began);
  }

  std::vector<Report> report() const override {
    std::vector<Report> out;
    for (const auto& group : prepared_) {
      Report report{.operators = group->operators,
                    .problem = group->problem,
                    .elements = group->plan.range * group->plan.row_work,
                    .kernel_runs = group->kernel_runs,
                    .node_runs = group->node_runs};
      report.state = state_of(*group);
      if (report.state == State::kFailed && group->kernel != nullptr) report.problem = group->kernel->problem();
      if (const Trial* const trial = group->trial.load(std::memory_order_acquire)) {
        report.kernel_ns = trial->best(Trial::Implementation::kKernel);
        report.nodes_ns = trial->best(Trial::Implementation::kOriginal);
      }
      out.push_back(std::move(report));
    }
    return out;
  }

  std::string summary() const override {
    std::map<State, std::pair<size_t, size_t>> by_state;  // groups, nodes
    for (size_t g = 0; g < groups_.size(); ++g) {
      auto& [groups, nodes] = by_state[state_of(*prepared_[g])];
      ++groups;
      nodes += groups_[g].nodes.size();
    }
    static constexpr const char* kNames[] = {"compiling", "measuring", "kernel", "nodes are faster", "no kernel"};
    std::string out;
    for (const auto& [state, count] : by_state) {
      out += fmt::format("{}: {} groups of {} nodes\n", kNames[static_cast<size_t>(state)], count.first, count.second);
    }
    std::vector<std::pair<int64_t, std::string>> calls;
    for (const auto& [name, count] : calls_) calls.emplace_back(-count, name);
    std::ranges::sort(calls);
    out += "calls:";
    for (const auto& [count, name] : calls) out += fmt::format(" {} {},", -count, name);
    out.back() = '\n';
    return out;
  }

 private:
  bool prepare(const Graph& graph, std::span<const NodeId> nodes, const KernelOptions& options,
               const std::function<bool(ValueId)>& escapes, PreparedGroup& group) {
    auto plan = lower_kernel(graph, nodes, options, escapes, nullptr);
    if (!plan) return false;  // none of its results are needed
    group.plan = std::move(*plan);
    for (const NodeId node : nodes) {
      group.operators.push_back(graph.target(node).name());
      group.original += group.operators.back() + " ";
    }
    const LoweredKernel& made = group.plan;
    for (size_t i = 0; i < made.inputs.size(); ++i) {
      group.inputs.push_back({made.inputs[i], geometry_of(graph, made.inputs[i]), made.program.operands[i].written});
    }
    for (const ValueId output : made.outputs) group.outputs.push_back(geometry_of(graph, output));
    const auto storage = [&](uint32_t i) { return graph.value(made.inputs[i]).storage; };
    for (uint32_t i = 0; i < group.inputs.size(); ++i) {
      for (uint32_t j = 0; j < i; ++j) {
        const bool written = group.inputs[i].written || group.inputs[j].written;
        if (written && storage(i) != storage(j)) group.apart.emplace_back(i, j);
      }
    }
    // Without input tensors to check at run time, the graph's outputs must be in host memory.
    if (made.inputs.empty() && graph.value(made.outputs[0]).device_type != c10::kCPU) return false;
    for (const NodeId node : nodes) {
      graph.for_each_output(node, [&](ValueId v) {
        if (escapes(v)) group.results.push_back({v, operand_of(made, v)});
      });
    }
    group.kernel = cache_->find(made.name, made.program);
    if (group.kernel == nullptr) group.problem = cache_->backend().problem();
    return true;
  }

  static uint32_t operand_of(const LoweredKernel& plan, ValueId v) {
    const auto same = std::ranges::find(plan.same_tensor, v, &LoweredKernel::SameTensor::result);
    if (same != plan.same_tensor.end()) v = same->tensor;
    const auto input = std::ranges::find(plan.inputs, v);
    if (input != plan.inputs.end()) return static_cast<uint32_t>(input - plan.inputs.begin());
    const auto output = std::ranges::find(plan.outputs, v);
    TORCH_INTERNAL_ASSERT(output != plan.outputs.end());
    return static_cast<uint32_t>(plan.inputs.size() + static_cast<size_t>(output - plan.outputs.begin()));
  }

  bool matches_plan(const PreparedGroup& group, std::span<c10::IValue> values) const {
    const c10::DeviceType device = cache_->backend().device();
    for (const GroupInput& input : group.inputs) {
      const c10::IValue& value = values[input.value.index];
      if (!value.isTensor() || !is_plain(value.toTensor(), device) || !fits(value.toTensor(), input.geometry))
        return false;
    }
    const auto begin = [&](uint32_t k) {
      return static_cast<const char*>(values[group.inputs[k].value.index].toTensor().const_data_ptr());
    };
    return std::ranges::none_of(group.apart, [&](const auto& pair) {
      const auto [i, j] = pair;
      return begin(i) < begin(j) + group.inputs[j].geometry.bytes &&
             begin(j) < begin(i) + group.inputs[i].geometry.bytes;
    });
  }

  Trial& trial_of(PreparedGroup& group) {
    Trial* trial = group.trial.load(std::memory_order_acquire);
    if (trial == nullptr) {
      trial = &trials_.of(group.kernel, group.original, group.plan.range * group.plan.row_work);
      group.trial.store(trial, std::memory_order_release);
    }
    return *trial;
  }

  // Returns false if the nodes run instead: they are faster, or to be measured.
  bool run_kernel(PreparedGroup& group, std::span<c10::IValue> values) {
    const KernelFunction function = group.kernel != nullptr ? group.kernel->function() : nullptr;
    if (function == nullptr || !matches_plan(group, values)) return false;
    Trial& trial = trial_of(group);
    Trial::Implementation implementation = trial.verdict();
    const bool measured = implementation == Trial::Implementation::kUnknown;
    if (measured) implementation = trial.next();
    const int64_t begin = measured ? trial.now() : 0;
    if (implementation == Trial::Implementation::kOriginal) {
      if (measured) group.began = begin;
      return false;
    }
    if (!launch_group(group, function, values)) return false;
    if (measured) trial.took(implementation, trial.now() - begin);
    return true;
  }

  // Returns false if an index is out of range: the original nodes then report the error.
  bool launch_group(const PreparedGroup& group, KernelFunction function, std::span<c10::IValue> values) const {
    c10::SmallVector<void*, 16> data;
    for (const GroupInput& input : group.inputs) {
      const at::Tensor& tensor = values[input.value.index].toTensor();
      data.push_back(input.written ? tensor.mutable_data_ptr() : const_cast<void*>(tensor.const_data_ptr()));
    }
    c10::SmallVector<at::Tensor, 4> fresh;
    for (const Geometry& output : group.outputs) {
      fresh.push_back(output.allocate(c10::Device(cache_->backend().device())));
      data.push_back(fresh.back().mutable_data_ptr());
    }
    const std::span<void* const> operands(data.data(), data.size());
    if (!launch(cache_->backend(), function, group.plan, operands, group.plan.scalars)) return false;
    for (const ResultSource& result : group.results) {
      const size_t inputs = group.inputs.size();
      values[result.value.index] =
          result.operand < inputs ? values[group.inputs[result.operand].value.index] : fresh[result.operand - inputs];
    }
    return true;
  }

  static State state_of(const PreparedGroup& group) {
    if (group.kernel == nullptr || group.kernel->state() == Kernel::State::kFailed) return State::kFailed;
    if (group.kernel->state() == Kernel::State::kPending) return State::kCompiling;
    const Trial* const trial = group.trial.load(std::memory_order_acquire);
    if (trial == nullptr || trial->verdict() == Trial::Implementation::kUnknown) return State::kMeasuring;
    return trial->verdict() == Trial::Implementation::kKernel ? State::kKernel : State::kNodes;
  }

  const std::shared_ptr<KernelCache> cache_;
  Trials trials_;
  std::vector<NodeId> order_;
  std::vector<Group> groups_;
  std::vector<std::unique_ptr<PreparedGroup>> prepared_;
  std::map<std::string, int64_t> calls_;  // nodes outside groups, by operator
};

}  // namespace

std::shared_ptr<KernelGroups> group_kernels(const Graph& graph, std::shared_ptr<KernelCache> cache,
                                            const GroupKernelsOptions& options) {
  if (cache == nullptr) cache = KernelCache::shared();
  return std::make_shared<Groups>(graph, std::move(cache), options);
}

}  // namespace shadowgraph
