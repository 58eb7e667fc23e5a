// Computes effects in one walk in program order, with the current version of every storage in a table.
#include <algorithm>

#include "ir/operators/operator_facts.h"
#include "shadowgraph/graph/analysis.h"

namespace shadowgraph {
namespace {

// Calls f(const Value&) for the valid tensors among `arguments`, lists included.
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

// An opaque object may contain anything, including tensors.
bool has_opaque(const Graph& graph, std::span<const Argument> arguments, int depth = 0) {
  return std::any_of(arguments.begin(), arguments.end(), [&](const Argument& argument) {
    return argument.kind == ArgumentKind::kOpaque || (argument.kind == ArgumentKind::kList && depth < kMaxListDepth &&
                                                      has_opaque(graph, graph.list(argument), depth + 1));
  });
}

// Returns the device whose generator a random node draws from: given by its generator argument, else by a factory's
// device argument, else by its first tensor. libtorch chooses the default generator in the same way.
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

}  // namespace

StorageId Effects::generator_for(c10::Device device) {
  // "cpu" and "cpu:0" share one generator.
  if (device.type() == c10::DeviceType::CPU) device = c10::Device(c10::DeviceType::CPU);
  for (const Generator& generator : generators_) {
    if (generator.device == device) return generator.storage;
  }
  // Pseudo storages are numbered after the graph's, so that one table holds the versions of both.
  const StorageId id(static_cast<uint32_t>(versions_.size()));
  generators_.push_back({id, device});
  versions_.push_back(0);
  return id;
}

// Walks over the nodes in program order.
class Effects::Walk {
 public:
  Walk(const Graph& graph, Effects& result)
      : graph_(graph), result_(result), last_read_(graph.storage_count(), 0), last_write_(graph.storage_count(), 0) {}

  void visit(NodeId n) {
    ++ordinal_;
    const TargetId target = graph_.node(n).target;
    Entry& entry = result_.entries_[n.index];
    entry.reads = static_cast<uint32_t>(result_.reads_.size());
    entry.writes = static_cast<uint32_t>(result_.writes_.size());
    // Invalid graphs are analyzed, too: the verifier computes effects before it has checked everything.
    if (target.index >= graph_.target_count()) return;
    const OperatorFacts& facts = graph_.facts(target);
    const bool unknown = facts.unknown || has_opaque(graph_, graph_.arguments(n));
    touch_operands(n, facts, unknown);
    // A random operator reads and writes its generator, so draws stay in order like writes to one buffer.
    if (facts.random) use(result_.generator_for(generator_device(graph_, n, facts)));
    // Collectives stay in order, whatever they communicate: every process must run them in the same order, or they
    // deadlock.
    if (facts.collective) use(collectives());
    entry.read_count = static_cast<uint32_t>(result_.reads_.size()) - entry.reads;
    entry.write_count = static_cast<uint32_t>(result_.writes_.size()) - entry.writes;
    entry.random = facts.random;
    // Unknown operators may read contents, whatever their facts say.
    entry.geometry_only = facts.geometry_only && !unknown;
    entry.collective = facts.collective;
    entry.host_read = facts.host_read;
    entry.unknown = unknown;
    entry.pure = entry.write_count == 0 && !facts.host_read && !unknown && !is_end(target);
  }

 private:
  // Operands are read before anything is written: add_(x, x) reads the version that it overwrites.
  void touch_operands(NodeId n, const OperatorFacts& facts, bool unknown) {
    const auto arguments = graph_.arguments(n);
    const auto write_all = [this](const Value& value) { write(value); };
    for_each_tensor(graph_, arguments, [this](const Value& value) { read(value); });
    if (unknown) {
      for_each_tensor(graph_, arguments, write_all);
    } else if (!facts.written.empty() && writes_now(graph_, n, facts)) {
      for (const uint16_t position : facts.written) {
        if (position >= arguments.size() || !writes_argument(graph_, n, position)) continue;
        for_each_tensor(graph_, arguments.subspan(position, 1), write_all);
      }
    }
  }

  void read(const Value& value) {
    const StorageId s = value.storage;
    if (s.index >= last_read_.size() || last_read_[s.index] == ordinal_) return;
    last_read_[s.index] = ordinal_;
    result_.reads_.push_back({s, result_.versions_[s.index]});
  }
  void write(const Value& value) {
    const StorageId s = value.storage;
    if (s.index >= last_write_.size() || last_write_[s.index] == ordinal_) return;
    last_write_[s.index] = ordinal_;
    uint32_t& version = result_.versions_[s.index];
    result_.writes_.push_back({s, version, version + 1});
    ++version;
  }
  // Reads and writes a pseudo storage.
  void use(StorageId pseudo) {
    uint32_t& version = result_.versions_[pseudo.index];
    result_.reads_.push_back({pseudo, version});
    result_.writes_.push_back({pseudo, version, version + 1});
    ++version;
  }
  StorageId collectives() {
    if (!result_.collectives_.valid()) {
      result_.collectives_ = StorageId(static_cast<uint32_t>(result_.versions_.size()));
      result_.versions_.push_back(0);
    }
    return result_.collectives_;
  }

  const Graph& graph_;
  Effects& result_;
  // For each storage, the last node (as 1 + its ordinal) that was recorded as reading or writing it, so that a node
  // with several operands in one storage reads it once.
  std::vector<uint32_t> last_read_;
  std::vector<uint32_t> last_write_;
  uint32_t ordinal_ = 0;
};

Effects Effects::of(const Graph& graph) {
  Effects result;
  result.storage_count_ = graph.storage_count();
  result.entries_.resize(graph.node_capacity());
  result.versions_.assign(graph.storage_count(), 0);
  result.reads_.reserve(size_t{graph.node_count()} * 2);
  Walk walk(graph, result);
  uint32_t ordinal = 0;
  for (NodeId n : graph.nodes()) {
    if (++ordinal > graph.node_capacity()) break;  // a cycle in an invalid list
    walk.visit(n);
  }
  return result;
}

}  // namespace shadowgraph
