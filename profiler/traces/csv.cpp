#include "support/csv.h"

#include <fmt/ranges.h>

#include <optional>

#include "ir/analysis/module_tree.h"
#include "profiler/program_costs.h"
#include "shadowgraph/profile/communication.h"
#include "shadowgraph/profile/operator_costs.h"
#include "shadowgraph/profile/profilers.h"
#include "shadowgraph/profile/step_time.h"
#include "shadowgraph/profile/traces.h"

namespace shadowgraph {
std::string nodes_csv(const Profile& profile) {
  const Graph& graph = profile.graph();
  const Traffic& traffic = ProgramCosts::of(profile).traffic();
  const auto order = program_order(graph);
  const MemoryTimeline& timeline = profile.timeline();
  const NodeBytes& storages = ProgramCosts::of(profile).node_bytes();
  Csv csv(
      "node,phase,module,op,source,forward,matmul_flops,elementwise_flops,transcendental,read_bytes,"
      "written_bytes,intensity,allocated_bytes,freed_bytes,live_bytes,scratch_bytes,scratch,seconds,"
      "backward_matmul_flops,backward_elementwise_flops,backward_moved_bytes,backward_seconds,wire_bytes,"
      "communication_seconds");
  const NodeTable table = GraphProfiler().add(FlopProfiler()).add(MemoryProfiler()).add(TimeProfiler()).run(profile);
  // Empty for a node whose costs are added to its forward node.
  const auto backward = [&](NodeId id, std::string_view figure, bool known) {
    table.has(id) && known ? csv.real(table.at(id, figure).backward) : csv.text("");
  };
  for (const NodeId id : graph.nodes()) {
    const Node& node = graph.node(id);
    const NodeFlops& flops = profile.of(id);
    const NodeTraffic& bytes = traffic.of(id);
    csv.number(order[id]);
    csv.text(graph.phase_name(node.phase));
    csv.text(module_path(graph, id));
    csv.text(graph.target(id).name());
    csv.text(graph.text_or_empty(node.source));
    const bool has_forward = node.forward.valid() && !graph.is_erased(node.forward);
    csv.node(has_forward ? std::optional(order[node.forward]) : std::nullopt);
    csv.number(flops.matmul);
    csv.number(flops.elementwise);
    csv.number(flops.transcendental);
    csv.number(bytes.read);
    csv.number(bytes.written);
    const auto work = static_cast<double>(flops.matmul) + static_cast<double>(flops.elementwise);
    bytes.total() > 0 ? csv.real(work / static_cast<double>(bytes.total())) : csv.text("");
    csv.number(storages.allocated[id]);
    csv.number(storages.freed[id]);
    csv.number(timeline.total(order[id]));
    csv.number(profile.scratch(id).bytes);
    csv.text(to_string(profile.scratch(id).source));
    profile.time() != nullptr ? csv.real(profile.time()->of(id).seconds) : csv.text("");
    backward(id, "matmul_flops", true);
    backward(id, "elementwise_flops", true);
    backward(id, "moved_bytes", true);
    backward(id, "seconds", profile.time() != nullptr);
    const Communication* communication = profile.communication();
    const Collective* sent = communication != nullptr ? communication->find(id) : nullptr;
    sent != nullptr ? csv.number(sent->cost.wire) : csv.text("");
    sent != nullptr && communication->has_seconds() ? csv.real(sent->cost.seconds()) : csv.text("");
    csv.end();
  }
  return csv.take();
}

std::string storages_csv(const Profile& profile) {
  const Graph& graph = profile.graph();
  const auto order = program_order(graph);
  struct Life {
    std::optional<uint32_t> first, last_forward, first_backward, last, saved;
    ValueId value;
    bool output = false;
  };
  IdMap<StorageId, Life> lives;
  for (const NodeId id : graph.nodes()) {
    const uint32_t place = order[id];
    const Node& node = graph.node(id);
    const bool is_end_node = is_end(node.target);
    const auto see = [&](ValueId value, bool made) {
      const StorageId storage = graph.value(value).storage;
      if (!storage.valid()) return;
      Life& life = lives[storage];
      if (!life.value.valid()) life.value = value;
      if (made) return;
      if (is_end_node) {
        life.output |= node.target == target_of(Builtin::kOutput);
        return;
      }
      if (!life.first) life.first = place;
      life.last = place;
      if (node.phase == Graph::kForward) life.last_forward = place;
      if (node.phase == Graph::kBackward && !life.first_backward) life.first_backward = place;
    };
    graph.for_each_output(id, [&](ValueId value) { see(value, true); });
    graph.for_each_input(id, [&](ValueId value) { see(value, false); });
    for (const SavedTensor& saved : graph.saved(id)) {
      const StorageId storage = graph.value(saved.value).storage;
      if (storage.valid() && !lives[storage].saved) lives[storage].saved = place;
    }
  }
  Csv csv(
      "storage,kind,device,bytes,born,first_use,last_forward_use,first_backward_use,last_use,freed,module,op,"
      "source,dtype,shape,kept_by,at_peak");
  std::vector<bool> at_peak(graph.storage_count());
  if (profile.timeline().steps() > 0) {
    for (const StorageId id : profile.timeline().alive_at(profile.peak.node, graph.storage_count())) {
      at_peak[id.index] = true;
    }
  }
  for (uint32_t i = 0; i < graph.storage_count(); ++i) {
    const StorageId id(i);
    const Storage& storage = graph.storage(id);
    const Life& life = std::as_const(lives)[id];
    const bool has_maker = storage.born.valid() && !graph.is_erased(storage.born);
    const bool freed = storage.freed_after.valid() && !graph.is_erased(storage.freed_after);
    csv.number(i);
    csv.text(to_string(profile.kind(id)));
    csv.text(storage.device().str());
    csv.number(storage.bytes);
    csv.node(has_maker ? std::optional(order[storage.born]) : std::nullopt);
    csv.node(life.first);
    csv.node(life.last_forward);
    csv.node(life.first_backward);
    csv.node(life.last);
    csv.node(freed ? std::optional(order[storage.freed_after]) : std::nullopt);
    csv.text(has_maker ? module_path(graph, storage.born) : "");
    csv.text(has_maker ? graph.target(storage.born).name() : "");
    csv.text(has_maker ? graph.text_or_empty(graph.node(storage.born).source) : "");
    const bool has_value = life.value.valid() && graph.value(life.value).kind == ValueKind::kTensor;
    csv.text(has_value ? dtype_name(graph.value(life.value).dtype) : std::string());
    csv.text(has_value ? fmt::format("{}", fmt::join(graph.sizes(life.value), "x")) : std::string());
    csv.text(existed_before(graph, storage) ? std::string(to_string(profile.kind(id)))
             : life.saved                   ? fmt::format("autograd, saved at {}", *life.saved)
             : life.output                  ? "output"
                                            : "");
    csv.text(at_peak[i] ? "yes" : "");
    csv.end();
  }
  return csv.take();
}

}  // namespace shadowgraph
