#include "shadowgraph/shard/simulate.h"

#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/add.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/div.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "core/calls/program_generators.h"
#include "core/fake/process_groups.h"
#include "shadowgraph/capture/replay.h"
#include "shadowgraph/error.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/shard/apply.h"
#include "sharding/apply/local_program.h"
#include "sharding/layout/dimension_cuts.h"
#include "support/text.h"
#include "support/threads.h"

namespace shadowgraph {
namespace {

std::vector<int64_t> sizes_from(std::string_view text) {
  if (text == "scalar") return {};
  if (const auto sizes = parse_numbers<int64_t>(text, ',')) return *sizes;
  throw Error(fmt::format("invalid sizes '{}'; expected a form such as \"2,3\" or \"scalar\"", text));
}

std::vector<std::string_view> parts_of(std::string_view text) {
  std::vector<std::string_view> parts;
  while (true) {
    const size_t end = text.find(';');
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

DimensionCuts cuts_of(std::span<const int64_t> sizes, const Layout& layout, const DeviceMesh& mesh) {
  if (layout.size() != mesh.axes.size()) {
    throw Error(fmt::format("layout {} does not match mesh {}", to_string(layout), mesh.to_string()));
  }
  std::optional<DimensionCuts> cuts = DimensionCuts::of(sizes, layout, mesh);
  if (!cuts) {
    throw Error(fmt::format("a tensor of sizes [{}] cannot have layout {} on mesh {}", fmt::join(sizes, ", "),
                            to_string(layout), mesh.to_string()));
  }
  return std::move(*cuts);
}

// Returns a view of `rank`'s shard in a tensor of the expanded sizes.
at::Tensor part_of(at::Tensor expanded, const DimensionCuts& cuts, const DeviceMesh& mesh, int64_t rank) {
  std::vector<std::pair<int64_t, int64_t>> selected;  // dimension, coordinate
  for (size_t axis = 0; axis < cuts.dimension_of_axis.size(); ++axis) {
    if (cuts.dimension_of_axis[axis] >= 0) {
      selected.emplace_back(cuts.dimension_of_axis[axis], mesh.coordinate(rank, axis));
    }
  }
  std::sort(selected.rbegin(), selected.rend());
  for (const auto& [dimension, coordinate] : selected) expanded = expanded.select(dimension, coordinate);
  return expanded;
}

at::Tensor combined(PartialOp op, const at::Tensor& a, const at::Tensor& b) {
  return op == PartialOp::kMax ? at::maximum(a, b) : op == PartialOp::kMin ? at::minimum(a, b) : at::add(a, b);
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor left = a.contiguous();
  const at::Tensor right = b.contiguous();
  return left.sizes() == right.sizes() && left.dtype() == right.dtype() &&
         (left.numel() == 0 || std::memcmp(left.const_data_ptr(), right.const_data_ptr(), left.nbytes()) == 0);
}

// Thrown by ranks that stop because another one failed.
class OtherRankFailed : public Error {
 public:
  OtherRankFailed() : Error("another rank failed") {}
};

// A collective in progress: tensors by member of the group; then results by member.
struct Collective {
  std::string name;
  std::string reduction;
  std::vector<at::Tensor> tensors;
};

at::Tensor reduced(const std::vector<at::Tensor>& tensors, const std::string& reduction) {
  const std::optional<PartialOp> op = find_named<PartialOp>(reduction);
  at::Tensor sum = tensors[0].clone(at::MemoryFormat::Contiguous);
  for (size_t i = 1; i < tensors.size(); ++i) {
    if (!op || op == PartialOp::kAverage) {
      throw Error("reduction '" + reduction + "' is not supported by the simulator");
    }
    sum = combined(*op, sum, tensors[i]);
  }
  return sum;
}

std::vector<at::Tensor> results_of(const Collective& collective) {
  const std::vector<at::Tensor>& in = collective.tensors;
  const auto members = static_cast<int64_t>(in.size());
  std::vector<at::Tensor> out(in.size());
  if (collective.name == "_c10d_functional::all_reduce") {
    const at::Tensor sum = reduced(in, collective.reduction);
    for (at::Tensor& tensor : out) tensor = sum.clone();
  } else if (collective.name == "_c10d_functional::all_gather_into_tensor") {
    const at::Tensor gathered = at::cat(in, 0);
    for (at::Tensor& tensor : out) tensor = gathered.clone();
  } else if (collective.name == "_c10d_functional::reduce_scatter_tensor") {
    const std::vector<at::Tensor> parts = reduced(in, collective.reduction).chunk(members, 0);
    for (size_t i = 0; i < out.size(); ++i) out[i] = parts[i].clone(at::MemoryFormat::Contiguous);
  } else if (collective.name == "_c10d_functional::all_to_all_single") {
    for (size_t to = 0; to < out.size(); ++to) {
      std::vector<at::Tensor> pieces;
      for (const at::Tensor& tensor : in) pieces.push_back(tensor.chunk(members, 0)[to]);
      out[to] = at::cat(pieces, 0);
    }
  } else {
    throw Error("collective " + collective.name + " is not supported by the simulator");
  }
  return out;
}

// Synchronizes ranks at collectives. An exception in one of them stops the others.
class Rendezvous {
 public:
  // Returns this member's result once all members have arrived.
  at::Tensor meet(const std::vector<int64_t>& ranks, size_t member, const std::string& name,
                  const std::string& reduction, const at::Tensor& tensor) {
    std::unique_lock lock(mutex_);
    if (failed_) throw OtherRankFailed();
    std::shared_ptr<Round>& open = rounds_[ranks];
    if (!open) {
      open = std::make_shared<Round>();
      open->collective = {name, reduction, std::vector<at::Tensor>(ranks.size())};
    }
    const std::shared_ptr<Round> round = open;
    if (round->collective.name != name || round->collective.reduction != reduction ||
        round->collective.tensors[member].defined()) {
      throw Error(fmt::format("ranks call different collectives: {} and {}", round->collective.name, name));
    }
    round->collective.tensors[member] = tensor;
    if (++round->here == ranks.size()) {
      open = nullptr;
      round->results = results_of(round->collective);
      round->collective.tensors.clear();
      round->done = true;
      changed_.notify_all();
    } else {
      wait_until(changed_, lock, [&] { return round->done || failed_; });
      if (!round->done) throw OtherRankFailed();
    }
    return std::move(round->results[member]);
  }
  void fail() {
    const std::lock_guard lock(mutex_);
    failed_ = true;
    changed_.notify_all();
  }

 private:
  struct Round {
    Collective collective;
    size_t here = 0;
    bool done = false;
    std::vector<at::Tensor> results;
  };
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::vector<int64_t>, std::shared_ptr<Round>> rounds_;  // open ones, by the ranks of their group
  bool failed_ = false;
};

// The default generators, used by one rank at a time.
class SharedGenerator {
 public:
  explicit SharedGenerator(size_t ranks) : states_(ranks) {}
  void draw(size_t rank, c10::Device device, const std::function<void()>& call) {
    const std::lock_guard lock(mutex_);
    at::Generator generator = at::globalContext().defaultGenerator(device);
    const auto state_now = [&] {
      const std::lock_guard own(generator.mutex());
      return generator.get_state();
    };
    const auto set = [&](const at::Tensor& state) {
      const std::lock_guard own(generator.mutex());
      generator.set_state(state);
    };
    const at::Tensor before = state_now();
    auto& begun = begin_.try_emplace(device.str(), before).first->second;
    at::Tensor& mine = states_[rank][device.str()];
    set(mine.defined() ? mine : begun);
    call();
    mine = state_now();
    if (rank != 0) set(before);
  }

 private:
  std::mutex mutex_;
  std::map<std::string, at::Tensor> begin_;
  std::vector<std::map<std::string, at::Tensor>> states_;
};

class RankInterpreter final : public Interpreter {
 public:
  RankInterpreter(const ShardedGraph& sharded, const SimulationOptions& options, Rendezvous& meeting,
                  SharedGenerator& generator, std::map<std::string, at::Generator> own_generators)
      : Interpreter(sharded.graph, {.device = options.device, .generators = std::move(own_generators)}),
        rank_(sharded.rank),
        device_(options.device),
        meeting_(meeting),
        generator_(generator) {
    for (ProcessGroupInfo& group : process_groups(sharded.graph))
      groups_.insert_or_assign(group.name, std::move(group));
  }

 protected:
  void call_function(NodeId node, const RegisteredFunction& function, torch::jit::Stack& stack) override {
    if (graph().target(node).name() == process_group_target().name()) {
      stack.clear();
      return;
    }
    Interpreter::call_function(node, function, stack);
  }

  void call_operator(NodeId node, const c10::OperatorHandle& op, torch::jit::Stack& stack) override {
    const OperatorFacts& facts = graph().facts(node);
    if (facts.collective) {
      communicate(node, stack);
    } else if (facts.random) {
      generator_.draw(static_cast<size_t>(rank_), device_of(node),
                      [&] { Interpreter::call_operator(node, op, stack); });
    } else {
      Interpreter::call_operator(node, op, stack);
    }
  }

 private:
  void communicate(NodeId node, torch::jit::Stack& stack) {
    const Target& target = graph().target(node);
    if (target.name() == "_c10d_functional::wait_tensor") return;  // returns its operand
    const std::string group_name = process_group_of(graph(), node);
    const auto group = groups_.find(group_name);
    if (group == groups_.end()) throw Error("the graph does not describe process group '" + group_name + "'");
    const auto reduction = target.signature().position_of("reduce_op");
    const at::Tensor result =
        meeting_.meet(group->second.ranks, static_cast<size_t>(group->second.rank), target.name(),
                      reduction ? stack[*reduction].toStringRef() : std::string(), stack[0].toTensor());
    stack.clear();
    stack.emplace_back(result);
  }

  c10::Device device_of(NodeId node) const {
    if (device_) return *device_;
    c10::Device device = at::kCPU;
    graph().for_each_output(node, [&](ValueId value) {
      if (graph().value(value).kind == ValueKind::kTensor) device = graph().value(value).device();
    });
    return device;
  }

  int64_t rank_;
  std::optional<c10::Device> device_;
  Rendezvous& meeting_;
  SharedGenerator& generator_;
  std::map<std::string, ProcessGroupInfo> groups_;
};

void check(std::span<const ShardedGraph> ranks, std::span<const at::Tensor> inputs) {
  if (ranks.empty() || static_cast<int64_t>(ranks.size()) != ranks[0].mesh.size()) {
    throw Error(fmt::format("got {} ranks to simulate; the mesh has {}", ranks.size(),
                            ranks.empty() ? 0 : ranks[0].mesh.size()));
  }
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (ranks[rank].rank != static_cast<int64_t>(rank) || ranks[rank].inputs.size() != inputs.size()) {
      throw Error(fmt::format("rank {} at position {} takes {} tensors; got {}", ranks[rank].rank, rank,
                              ranks[rank].inputs.size(), inputs.size()));
    }
  }
}

}  // namespace

ShardedGraph ShardedGraph::of(Graph graph) {
  ShardedGraph sharded;
  const auto& meta = graph.metadata.other;
  const auto mesh = meta.find(kMeshKey);
  const auto rank = meta.find(kRankKey);
  if (mesh == meta.end() || rank == meta.end()) {
    throw Error("the graph is not a rank of a sharded program: its metadata has no mesh; create it with apply()");
  }
  sharded.mesh = DeviceMesh::parse(mesh->second);
  const std::string& number = rank->second;
  sharded.rank = parse_number<decltype(sharded.rank)>(number).value_or(-1);
  if (sharded.rank < 0 || sharded.rank >= sharded.mesh.size()) {
    throw Error("the graph is of rank '" + number + "', which is not in mesh " + mesh->second);
  }
  const auto name_of = [&](NodeId node) { return graph.text(graph.arguments(node)[0].string); };
  for (const NodeId node : graph.nodes()) {
    const TargetId target = graph.node(node).target;
    const std::string_view layout = graph.note(node, kLayoutNote);
    const std::string_view sizes = graph.note(node, kSizesNote);
    if (target.index <= target_of(Builtin::kInput).index) {
      sharded.inputs.push_back({name_of(node), Layout::parse(layout), sizes_from(sizes)});
    } else if (target == target_of(Builtin::kGradient)) {
      if (layout.empty()) continue;
      const NodeId parameter = graph.value(graph.arguments(node)[0].ref.value).producer;
      if (graph.node(parameter).target.index > target_of(Builtin::kInput).index) continue;
      sharded.gradients.push_back({name_of(parameter), Layout::parse(layout), sizes_from(sizes)});
    } else if (target == target_of(Builtin::kOutput)) {
      const std::vector<std::string_view> layouts = parts_of(layout);
      const std::vector<std::string_view> all_sizes = parts_of(sizes);
      size_t next = 0;
      for (const Argument& output : graph.list(graph.arguments(node)[0])) {
        const bool tensor =
            output.kind == ArgumentKind::kValue && graph.value(output.ref.value).kind == ValueKind::kTensor;
        if (!tensor) {
          sharded.outputs.push_back({.layout = Layout(sharded.mesh.axes.size()), .defined = false});
          continue;
        }
        if (next >= layouts.size() || next >= all_sizes.size()) throw Error("sg::output has no layouts of its tensors");
        sharded.outputs.push_back({"", Layout::parse(layouts[next]), sizes_from(all_sizes[next])});
        ++next;
      }
    }
  }
  sharded.graph = std::move(graph);
  return sharded;
}

at::Tensor local_shard(const at::Tensor& full, const Layout& layout, const DeviceMesh& mesh, int64_t rank) {
  const DimensionCuts cuts = cuts_of(full.sizes(), layout, mesh);
  for (size_t axis = 0; axis < layout.size(); ++axis) {
    if (layout[axis].is_partial() && layout[axis].op == PartialOp::kSum && mesh.coordinate(rank, axis) != 0) {
      return at::zeros(cuts.local, full.options());
    }
  }
  return part_of(full.reshape(cuts.expanded), cuts, mesh, rank).reshape(cuts.local).clone(at::MemoryFormat::Contiguous);
}

at::Tensor full_tensor(std::span<const at::Tensor> parts, const Layout& layout, const DeviceMesh& mesh,
                       std::span<const int64_t> sizes) {
  const DimensionCuts cuts = cuts_of(sizes, layout, mesh);
  if (parts.size() != static_cast<size_t>(mesh.size())) {
    throw Error(fmt::format("got {} shards of a tensor for mesh {}", parts.size(), mesh.to_string()));
  }
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    if (parts[rank].sizes() != at::IntArrayRef(cuts.local)) {
      throw Error(fmt::format("the shard of rank {} has sizes [{}]; expected [{}]", rank,
                              fmt::join(parts[rank].sizes(), ", "), fmt::join(cuts.local, ", ")));
    }
  }
  // Axes that do not shard are folded into coordinate 0, the last axis first.
  std::vector<at::Tensor> folded(parts.begin(), parts.end());
  const int64_t devices = mesh.size();
  int64_t stride = 1;
  for (size_t axis = layout.size(); axis-- > 0; stride *= mesh.axes[axis].size) {
    const Placement& placement = layout[axis];
    if (placement.is_shard()) continue;
    for (int64_t rank = 0; rank < devices; ++rank) {
      const int64_t coordinate = mesh.coordinate(rank, axis);
      if (coordinate == 0 || !folded[rank].defined()) continue;
      at::Tensor& first = folded[rank - coordinate * stride];
      if (placement.is_partial()) {
        first = combined(placement.op, first, folded[rank]);
      } else if (!same_bits(first, folded[rank])) {
        throw Error(fmt::format("ranks {} and {} differ in a tensor that {} replicates over axis {}",
                                rank - coordinate * stride, rank, to_string(layout), mesh.axes[axis].name));
      }
      folded[rank] = at::Tensor();
    }
    if (placement.is_partial() && placement.op == PartialOp::kAverage) {
      for (at::Tensor& tensor : folded) {
        if (tensor.defined()) tensor = at::div(tensor, mesh.axes[axis].size);
      }
    }
  }
  at::Tensor whole = at::empty(cuts.expanded, folded[0].options());
  for (int64_t rank = 0; rank < devices; ++rank) {
    if (!folded[rank].defined()) continue;
    at::Tensor place = part_of(whole, cuts, mesh, rank);
    place.copy_(folded[rank].reshape(place.sizes()));
  }
  return whole.reshape(sizes);
}

at::Tensor local_input(const ShardedGraph& sharded, size_t input, const at::Tensor& whole) {
  const ShardedTensor& tensor = sharded.inputs.at(input);
  if (!std::ranges::equal(whole.sizes(), tensor.sizes)) {
    throw Error(fmt::format("{} must have sizes [{}], not [{}]", tensor.name, fmt::join(tensor.sizes, ", "),
                            fmt::join(whole.sizes(), ", ")));
  }
  at::Tensor part = local_shard(whole, tensor.layout, sharded.mesh, sharded.rank);
  size_t next = 0;
  for (const NodeId node : sharded.graph.nodes()) {
    if (sharded.graph.node(node).target.index > target_of(Builtin::kInput).index || next++ != input) continue;
    const auto strides = sharded.graph.strides(sharded.graph.results(node)[0].ref.value);
    if (std::ranges::equal(strides, part.strides())) return part;
    const at::Tensor strided =
        at::empty_strided(part.sizes(), c10::IntArrayRef(strides.data(), strides.size()), part.options());
    return strided.copy_(part);
  }
  return part;
}

std::vector<ShardedGraph> apply_to_all(const Graph& graph, const GraphLayouts& plan, const ApplyOptions& options) {
  std::vector<ShardedGraph> ranks;
  for (int64_t rank = 0; rank < plan.mesh.size(); ++rank) ranks.push_back(apply(graph, plan, rank, options));
  return ranks;
}

SimulatedRun simulate(std::span<const ShardedGraph> ranks, std::span<const at::Tensor> inputs,
                      const SimulationOptions& options) {
  check(ranks, inputs);
  Rendezvous meeting;
  SharedGenerator generator(ranks.size());
  std::vector<std::vector<at::Tensor>> held(ranks.size());  // inputs of each rank, which it may write to
  std::vector<ReplayResult> results(ranks.size());
  std::vector<std::exception_ptr> failures(ranks.size());
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    for (size_t i = 0; i < inputs.size(); ++i) held[rank].push_back(local_input(ranks[rank], i, inputs[i]));
  }
  // The program's generators are advanced by rank 0; the other ranks start from the same state.
  std::vector<std::map<std::string, at::Generator>> own_generators(ranks.size());
  for (size_t rank = 1; rank < ranks.size(); ++rank) own_generators[rank] = copy_generators(ranks[rank].graph);
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    threads.emplace_back([&, rank] {
      try {
        RankInterpreter interpreter(ranks[rank], options, meeting, generator, std::move(own_generators[rank]));
        results[rank] = interpreter.run(Bindings().in_order(held[rank]));
      } catch (...) {
        failures[rank] = std::current_exception();
        meeting.fail();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::exception_ptr first;
  for (const std::exception_ptr& failure : failures) {
    if (!failure) continue;
    try {
      std::rethrow_exception(failure);
    } catch (const ReplayError& error) {
      // Ranks that stopped because of another one are reported after it.
      const bool learned = std::string_view(error.what()).find(OtherRankFailed().what()) != std::string_view::npos;
      if (!first || !learned) first = failure;
    } catch (...) {
      first = failure;
    }
  }
  if (first) std::rethrow_exception(first);

  SimulatedRun run;
  const DeviceMesh& mesh = ranks[0].mesh;
  const auto whole = [&](const ShardedTensor& tensor, const std::string& what, const auto& part_of) {
    std::vector<at::Tensor> parts;
    for (size_t rank = 0; rank < ranks.size(); ++rank) parts.push_back(part_of(rank));
    try {
      return full_tensor(parts, tensor.layout, mesh, tensor.sizes);
    } catch (const Error& error) {
      throw Error(fmt::format("{}: {}", what, error.what()));
    }
  };
  for (size_t i = 0; i < inputs.size(); ++i) {
    const ShardedTensor& tensor = ranks[0].inputs[i];
    run.inputs.push_back(whole(tensor, tensor.name, [&](size_t rank) { return held[rank][i]; }));
  }
  for (size_t i = 0; i < ranks[0].outputs.size(); ++i) {
    const ShardedTensor& tensor = ranks[0].outputs[i];
    run.outputs.push_back(tensor.defined ? whole(tensor, fmt::format("output {}", i),
                                                 [&](size_t rank) { return results[rank].outputs[i]; })
                                         : at::Tensor());
  }
  for (const ShardedTensor& tensor : ranks[0].gradients) {
    run.gradients[tensor.name] = whole(tensor, "the gradient of " + tensor.name,
                                       [&](size_t rank) { return results[rank].gradients.at(tensor.name); });
  }
  return run;
}

}  // namespace shadowgraph
