#include "profiler/program_costs.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <string_view>

#include "shadowgraph/error.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/profile/operator_costs.h"
#include "support/text.h"

namespace shadowgraph {

static std::vector<NodeId> in_order(const Graph& graph) {
  std::vector<NodeId> nodes;
  nodes.reserve(graph.node_count());
  for (const NodeId node : graph.nodes()) nodes.push_back(node);
  return nodes;
}

// Streams and events are few; a larger number is an error and must not size a table.
constexpr uint32_t kMax = 1U << 24;

static std::vector<uint32_t> numbers_in(std::string_view key, std::string_view text) {
  const auto numbers = parse_numbers<uint32_t>(text, ' ');
  if (numbers && std::ranges::all_of(*numbers, [](uint32_t number) { return number <= kMax; })) return *numbers;
  throw Error(
      fmt::format("invalid note \"{}\"=\"{}\": expected numbers up to {}, separated by spaces", key, text, kMax));
}

ProgramCosts::ProgramCosts(const Graph& program, const MeasuredCalls* measured)
    : nodes(in_order(program)),
      order(program_order(program)),
      kinds(storage_kinds(program, order)),
      custom(CustomOperators::of(program)),
      scratch(Scratch::of(program, measured)),
      graph_(program) {}

const NodeModules& ProgramCosts::modules() const {
  std::call_once(modules_once_, [&] {
    const Graph& graph = this->graph();
    modules_.tree = ModuleTree::of(graph);
    modules_.of_node = IdMap<NodeId, uint32_t>(kNoGroup);
    modules_.of_node.reserve(graph.node_capacity());
    for (const NodeId node : nodes) modules_.of_node[node] = modules_.tree.of_node(graph, node);
  });
  return modules_;
}

const Flops& ProgramCosts::flops() const {
  std::call_once(flops_once_, [&] { flops_ = Flops::of(graph()); });
  return *flops_;
}

const Traffic& ProgramCosts::traffic() const {
  std::call_once(traffic_once_, [&] { traffic_ = Traffic::of(graph()); });
  return traffic_;
}

const NodeBytes& ProgramCosts::node_bytes() const {
  std::call_once(node_bytes_once_, [&] {
    const Graph& graph = this->graph();
    const auto is_there = [&](NodeId node) { return node.valid() && !graph.is_erased(node); };
    for (IdMap<NodeId, int64_t>* map : {&node_bytes_.allocated, &node_bytes_.freed, &node_bytes_.saved}) {
      map->reserve(graph.node_capacity());
    }
    for (uint32_t i = 0; i < graph.storage_count(); ++i) {
      const Storage& storage = graph.storage(StorageId(i));
      if (is_there(storage.born)) node_bytes_.allocated[storage.born] += storage.bytes;
      if (is_there(storage.freed_after)) node_bytes_.freed[storage.freed_after] += storage.bytes;
    }
    std::vector<bool> seen(graph.storage_count());
    for (const NodeId node : nodes) {
      for (const SavedTensor& saved : graph.saved(node)) {
        const StorageId id = graph.value(saved.value).storage;
        if (!id.valid() || seen[id.index] || existed_before(graph, graph.storage(id))) continue;
        seen[id.index] = true;
        node_bytes_.saved[node] += graph.storage(id).bytes;
      }
    }
  });
  return node_bytes_;
}

nlohmann::json kinds_json(const BytesByKind& bytes) {
  nlohmann::json object;
  for (const auto& [kind, name] : enum_names(StorageKind{})) object[name] = bytes[static_cast<size_t>(kind)];
  return object;
}

std::vector<std::pair<c10::Device, int64_t>> bytes_by_device(const Graph& graph) {
  std::vector<std::pair<c10::Device, int64_t>> devices;
  for (uint32_t i = 0; i < graph.storage_count(); ++i) {
    const Storage& storage = graph.storage(StorageId(i));
    auto found =
        std::find_if(devices.begin(), devices.end(), [&](const auto& d) { return d.first == storage.device(); });
    if (found == devices.end()) found = devices.insert(devices.end(), {storage.device(), 0});
    found->second += storage.bytes;
  }
  return devices;
}

bool is_on(c10::Device device, const std::optional<c10::Device>& wanted) {
  return !wanted || (device.type() == wanted->type() && (!wanted->has_index() || device.index() == wanted->index()));
}

c10::Device main_device(const Graph& graph, std::optional<c10::Device> asked) {
  if (!asked) asked = graph.metadata.device;
  std::optional<std::pair<c10::Device, int64_t>> best;
  for (const auto& entry : bytes_by_device(graph)) {
    if (is_on(entry.first, asked) && (!best || entry.second > best->second)) best = entry;
  }
  return best ? best->first : asked.value_or(c10::Device(c10::DeviceType::CPU));
}

StreamNotes stream_notes(const Graph& graph, NodeId node) {
  StreamNotes notes;
  if (!graph.has_notes(node)) return notes;
  const auto numbers = [&](std::string_view key) { return numbers_in(key, graph.note(node, key)); };
  if (const auto stream = numbers("stream"); !stream.empty()) notes.stream = stream.front();
  if (const auto event = numbers("event"); !event.empty()) notes.event = event.front();
  notes.waits = numbers("waits");
  notes.used_on = numbers("used_on");
  return notes;
}

std::vector<std::string> assumptions_of(const Graph& graph) {
  std::vector<std::string> found;
  const auto noted = graph.metadata.other.find("assumed");
  if (noted != graph.metadata.other.end()) found.push_back(noted->second);
  for (const Guard& guard : graph.guards) {
    if (guard.kind != Guard::Kind::kHostValue || guard.observed.find("assumed") == std::string::npos) continue;
    if (std::find(found.begin(), found.end(), guard.observed) == found.end()) found.push_back(guard.observed);
  }
  return found;
}

}  // namespace shadowgraph
