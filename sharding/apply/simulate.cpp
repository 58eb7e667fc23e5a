
#include "shadowgraph/sharding/simulate.h"

#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "core/calls/own_generators.h"
#include "core/fake/process_groups.h"
#include "shadowgraph/replay.h"
#include "shadowgraph/sharding/parts.h"
#include "shadowgraph/text.h"
#include "support/wait.h"

namespace shadowgraph {
namespace {

// What a rank says when it fails because another one did.
class OtherRankFailed : public Error {
 public:
  OtherRankFailed() : Error("another rank failed") {}
};

// A collective as its members bring it: by member of the group, tensors; then, by member, results.
struct Collective {
  std::string name;
  std::string reduction;
  std::vector<at::Tensor> tensors;
};

at::Tensor reduced(const std::vector<at::Tensor>& tensors, const std::string& reduction) {
  at::Tensor sum = tensors[0].clone(at::MemoryFormat::Contiguous);
  for (size_t i = 1; i < tensors.size(); ++i) {
    if (reduction == "sum") {
      sum.add_(tensors[i]);
    } else if (reduction == "max") {
      sum = at::maximum(sum, tensors[i]);
    } else if (reduction == "min") {
      sum = at::minimum(sum, tensors[i]);
    } else {
      throw Error("the simulator has no reduction '" + reduction + "'");
    }
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
    throw Error("the simulator has no collective " + collective.name);
  }
  return out;
}

// Where ranks meet. What one of them throws, the others learn of.
class Meeting {
 public:
  // Returns this member's result when all are here.
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
      throw Error(fmt::format("ranks do not meet: one is at {}, another at {}", round->collective.name, name));
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

// The default generators, one rank at a time.
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
  RankInterpreter(const ShardedGraph& sharded, const SimulationOptions& options, Meeting& meeting,
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
    if (target.name() == "_c10d_functional::wait_tensor") return;  // its operand is its result
    const std::string group_name = process_group_of(graph(), node);
    const auto group = groups_.find(group_name);
    if (group == groups_.end()) throw Error("the graph does not say what the process group '" + group_name + "' is");
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
  Meeting& meeting_;
  SharedGenerator& generator_;
  std::map<std::string, ProcessGroupInfo> groups_;
};

void check(std::span<const ShardedGraph> ranks, std::span<const at::Tensor> inputs) {
  if (ranks.empty() || static_cast<int64_t>(ranks.size()) != ranks[0].mesh.size()) {
    throw Error(fmt::format("{} ranks to simulate, and the mesh has {}", ranks.size(),
                            ranks.empty() ? 0 : ranks[0].mesh.size()));
  }
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (ranks[rank].rank != static_cast<int64_t>(rank) || ranks[rank].inputs.size() != inputs.size()) {
      throw Error(fmt::format("rank {} in place {} takes {} tensors; {} are given", ranks[rank].rank, rank,
                              ranks[rank].inputs.size(), inputs.size()));
    }
  }
}

}  // namespace

std::vector<ShardedGraph> apply_to_all(const Graph& graph, const ShardingPlan& plan, const ApplyOptions& options) {
  std::vector<ShardedGraph> ranks;
  for (int64_t rank = 0; rank < plan.mesh.size(); ++rank) ranks.push_back(apply(graph, plan, rank, options));
  return ranks;
}

SimulatedRun simulate(std::span<const ShardedGraph> ranks, std::span<const at::Tensor> inputs,
                      const SimulationOptions& options) {
  check(ranks, inputs);
  Meeting meeting;
  SharedGenerator generator(ranks.size());
  std::vector<std::vector<at::Tensor>> held(ranks.size());  // what each rank is given, and writes to
  std::vector<ReplayResult> results(ranks.size());
  std::vector<std::exception_ptr> failures(ranks.size());
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    for (size_t i = 0; i < inputs.size(); ++i) held[rank].push_back(local_input(ranks[rank], i, inputs[i]));
  }
  // The program's own generators are rank 0's to move; the others begin where that does.
  std::vector<std::map<std::string, at::Generator>> own_generators(ranks.size());
  for (size_t rank = 1; rank < ranks.size(); ++rank) own_generators[rank] = copies_of_generators(ranks[rank].graph);
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
      // Those who only learned of it say so in their text; the one who failed comes first.
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
      return whole_of(parts, tensor.layout, mesh, tensor.sizes);
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
