// Effects are worked out in one walk in program order, with the current version of every storage in a table. A version
// is the number of writes so far.
//
//     %1 = aten::add_(%0, %0) @s0       reads s0@0, writes s0: 0 -> 1
//     %2 = aten::mul(%0, %0)  @s2       reads s0@1: the older name %0 reads what was written through %1
#include <algorithm>
#include <string_view>

#include "ir/analysis/written_arguments.h"
#include "ir/operators/operator_facts.h"
#include "ir/operators/operator_name.h"
#include "shadowgraph/analysis/effects.h"

namespace shadowgraph {
namespace {

// Calls f(const Value&) for the tensors among `arguments` that exist, lists included.
template <class F>
void for_each_tensor(const Graph& graph, std::span<const Argument> arguments, F&& f, int depth = 0) {
  for (const Argument& argument : arguments) {
    if (argument.kind == ArgumentKind::kValue) {
      if (argument.ref.value.index >= graph.value_capacity()) continue;
      const Value& value = graph.value(argument.ref.value);
      if (value.kind == ValueKind::kTensor) f(value);
    } else if (argument.kind == ArgumentKind::kList && depth < kMaxListDepth) {
      for_each_tensor(graph, graph.list(argument), f, depth + 1);
    }
  }
}

// An opaque object may be anything, a tensor included.
bool has_opaque(const Graph& graph, std::span<const Argument> arguments, int depth = 0) {
  return std::any_of(arguments.begin(), arguments.end(), [&](const Argument& argument) {
    return argument.kind == ArgumentKind::kOpaque || (argument.kind == ArgumentKind::kList && depth < kMaxListDepth &&
                                                      has_opaque(graph, graph.list(argument), depth + 1));
  });
}

// Returns the device whose generator a random node draws from: by its generator argument, else by a function's device
// argument, else by its first tensor. libtorch chooses the default generator in the same way.
c10::Device generator_device(const Graph& graph, NodeId node, const OperatorFacts& facts) {
  const auto arguments = graph.arguments(node);
  for (const uint16_t position : facts.generators) {
    if (position < arguments.size() && arguments[position].kind == ArgumentKind::kGenerator) {
      return arguments[position].device();
    }
  }
  if (graph.target(node).kind() == TargetKind::kFunction) {
    for (const Argument& argument : arguments) {
      if (argument.kind == ArgumentKind::kDevice) return argument.device();
    }
  }
  std::optional<c10::Device> device;
  const auto take = [&](const Value& value) {
    if (!device) device = value.device();
  };
  for_each_tensor(graph, graph.results(node), take);
  for_each_tensor(graph, arguments, take);
  return device.value_or(c10::Device(c10::DeviceType::CPU));
}

// An argument that is annotated as written, but is written only where another one is given. The kernels of fused
// optimizer steps (FusedAdamKernel.cpp and .cu, and their like) divide gradients by the scaler's factor and keep that.
// Without a scaler they read them.
struct WrittenIfGiven {
  std::string_view name, argument, given;
};
constexpr WrittenIfGiven kWrittenIfGiven[] = {
    {"aten::_fused_adam_", "grads", "grad_scale"},
    {"aten::_fused_adamw_", "grads", "grad_scale"},
    {"aten::_fused_sgd_", "grads", "grad_scale"},
    {"aten::_fused_adagrad_", "grads", "grad_scale"},
};

}  // namespace

// The schema is believed except for the rows of the table above. A node without the deciding argument reads what it is
// annotated to write.
bool writes_argument(const Graph& graph, NodeId node, size_t position) {
  const Target& target = graph.target(node);
  if (target.kind() != TargetKind::kOperator) return true;
  for (const WrittenIfGiven& row : kWrittenIfGiven) {
    if (!stands_for(row.name, target.name())) continue;
    const Signature& signature = target.signature();
    if (position >= signature.arguments.size() || signature.arguments[position].name != row.argument) continue;
    const std::optional<size_t> given = signature.position_of(row.given);
    const std::span<const Argument> here = graph.arguments(node);
    if (given && *given < here.size()) {
      return here[*given].kind != ArgumentKind::kNone;
    }
  }
  return true;
}

StorageId Effects::generator_for(c10::Device device) {
  // "cpu" and "cpu:0" are one generator.
  if (device.type() == c10::DeviceType::CPU) device = c10::Device(c10::DeviceType::CPU);
  for (const Generator& generator : generators_) {
    if (generator.device == device) return generator.storage;
  }
  // Pseudo storages are numbered behind the graph's own, so that one table has the versions of both.
  const StorageId id(static_cast<uint32_t>(versions_.size()));
  generators_.push_back({id, device});
  versions_.push_back(0);
  return id;
}

Effects Effects::of(const Graph& graph) {
  Effects result;
  result.storage_count_ = graph.storage_count();
  result.entries_.resize(graph.node_capacity());
  result.versions_.assign(graph.storage_count(), 0);
  result.reads_.reserve(size_t{graph.node_count()} * 2);
  // For each storage, the last node (as 1 + its ordinal) that was seen to read or write it. A node that names a storage
  // twice reads it once.
  std::vector<uint32_t> last_read(graph.storage_count(), 0);
  std::vector<uint32_t> last_write(graph.storage_count(), 0);
  std::vector<bool> unknown_seen(graph.target_count());
  uint32_t ordinal = 0;

  for (NodeId n : graph.nodes()) {
    if (++ordinal > graph.node_capacity()) break;  // a cycle in a broken list
    const TargetId target = graph.node(n).target;
    Entry& entry = result.entries_[n.index];
    entry.reads = static_cast<uint32_t>(result.reads_.size());
    entry.writes = static_cast<uint32_t>(result.writes_.size());
    // Broken graphs are analysed, too: the verifier asks for effects before it knows that all is well.
    if (target.index >= graph.target_count()) continue;
    const OperatorFacts& facts = graph.facts(target);
    const auto arguments = graph.arguments(n);

    const auto read = [&](const Value& value) {
      const StorageId s = value.storage;
      if (s.index >= last_read.size() || last_read[s.index] == ordinal) return;
      last_read[s.index] = ordinal;
      result.reads_.push_back({s, result.versions_[s.index]});
    };
    const auto write = [&](const Value& value) {
      const StorageId s = value.storage;
      if (s.index >= last_write.size() || last_write[s.index] == ordinal) return;
      last_write[s.index] = ordinal;
      uint32_t& version = result.versions_[s.index];
      result.writes_.push_back({s, version, version + 1});
      ++version;
    };
    // Operands are read before anything is written: add_(x, x) reads the version that it overwrites.
    for_each_tensor(graph, arguments, read);
    const bool unknown = facts.unknown || has_opaque(graph, arguments);
    if (unknown) {
      for_each_tensor(graph, arguments, write);
      if (!unknown_seen[target.index]) {
        unknown_seen[target.index] = true;
        result.unknown_targets_.push_back(target);
      }
    } else if (!facts.written.empty() && writes_now(graph, n, facts)) {
      for (const uint16_t position : facts.written) {
        if (position >= arguments.size() || !writes_argument(graph, n, position)) continue;
        for_each_tensor(graph, arguments.subspan(position, 1), write);
      }
    }
    // A draw reads and writes the generator, so draws stay in order like writes to one buffer.
    if (facts.random) {
      const StorageId generator = result.generator_for(generator_device(graph, n, facts));
      uint32_t& version = result.versions_[generator.index];
      result.reads_.push_back({generator, version});
      result.writes_.push_back({generator, version, version + 1});
      ++version;
    }
    // Collectives stay in order with one another, whatever they communicate: every process must run them alike, or they
    // wait for each other for ever.
    if (facts.collective) {
      if (!result.collectives_.valid()) {
        result.collectives_ = StorageId(static_cast<uint32_t>(result.versions_.size()));
        result.versions_.push_back(0);
      }
      uint32_t& version = result.versions_[result.collectives_.index];
      result.reads_.push_back({result.collectives_, version});
      result.writes_.push_back({result.collectives_, version, version + 1});
      ++version;
    }
    entry.read_count = static_cast<uint32_t>(result.reads_.size()) - entry.reads;
    entry.write_count = static_cast<uint32_t>(result.writes_.size()) - entry.writes;
    entry.random = facts.random;
    // What is unknown may look at contents, whatever the facts say.
    entry.geometry_only = facts.geometry_only && !unknown;
    entry.collective = facts.collective;
    entry.host_read = facts.host_read;
    entry.unknown = unknown;
    entry.pure = entry.write_count == 0 && !facts.host_read && !unknown && target != target_of(Builtin::kOutput) &&
                 target != target_of(Builtin::kGradient);
  }
  return result;
}

}  // namespace shadowgraph
