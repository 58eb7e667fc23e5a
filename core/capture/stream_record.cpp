#include "core/capture/stream_record.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/capture/recorder.h"
#include "core/capture/storage_identity.h"

namespace shadowgraph {
namespace {

// Returns the accelerator that a node computes on, with its index; the CPU: none.
c10::Device accelerator_of(const Graph& graph, NodeId node) {
  c10::Device found(c10::kCPU);
  const auto look = [&](ValueId id) {
    const Value& value = graph.value(id);
    if (!found.is_cpu() || value.kind != ValueKind::kTensor || !value.storage.valid()) return;
    found = graph.storage(value.storage).device();
  };
  graph.for_each_output(node, look);
  if (found.is_cpu()) graph.for_each_input(node, look);
  if (!found.is_cpu() && !found.has_index()) found.set_index(0);
  return found;
}

bool is_default(const c10::Stream& stream) {
  return stream.id() == c10::Stream(c10::Stream::DEFAULT, stream.device()).id();
}

}  // namespace

uint32_t StreamRecord::number_of(const c10::Stream& stream) {
  const auto found = std::ranges::find(streams_, stream);
  const auto number = is_default(stream) ? size_t{0} : static_cast<size_t>(found - streams_.begin()) + 1;
  if (number > streams_.size()) streams_.push_back(stream);
  last_.resize(std::max(last_.size(), number + 1));
  waits_.resize(last_.size());
  return static_cast<uint32_t>(number);
}

void StreamRecord::issued(Graph& graph, NodeId node) {
  const c10::Device device = accelerator_of(graph, node);
  if (device.is_cpu()) return;
  const uint32_t number = number_of(current_stream(device));
  last_[number] = node;
  if (number > 0) graph.set_note(node, "stream", std::to_string(number));
  if (waits_[number].empty()) return;
  graph.set_note(node, "waits", fmt::format("{}", fmt::join(waits_[number], " ")));
  waits_[number].clear();
}

void StreamRecord::put(Graph& graph, NodeId node, const std::vector<c10::Stream>& streams) {
  const c10::Device device = accelerator_of(graph, node);
  for (const c10::Stream& stream : streams) {
    if (stream.device() == device) graph.set_note(node, "stream", std::to_string(number_of(stream)));
  }
}

uint64_t StreamRecord::event(const c10::Stream& stream, NodeId newest) {
  const bool fresh = last_.empty();
  const uint32_t number = number_of(stream);
  if (fresh) last_[0] = newest;
  if (!last_[number].valid()) return 0;
  events_.push_back({last_[number], number});
  return (uint64_t{session_} << 32) | events_.size();
}

void StreamRecord::wait(Graph& graph, const c10::Stream& stream, uint64_t event) {
  if (event >> 32 != session_) return;  // another record's, which has happened
  const auto [after, awaited] = events_[static_cast<uint32_t>(event) - 1];
  const uint32_t waiting = number_of(stream);
  if (waiting == awaited) return;
  NodeId& known = awaited_[{waiting, awaited}];
  if (known.valid() && !graph.is_before(known, after)) return;
  known = after;
  std::string name(graph.note(after, "event"));
  if (name.empty()) {
    name = std::to_string(++events_named_);
    graph.set_note(after, "event", name);
  }
  waits_[waiting].push_back(std::move(name));
}

void StreamRecord::use(Graph& graph, NodeId born, const c10::Stream& stream) {
  const std::string number = std::to_string(number_of(stream));
  std::string used(graph.note(born, "used_on"));
  if ((" " + used + " ").find(" " + number + " ") != std::string::npos) return;
  graph.set_note(born, "used_on", used.empty() ? number : used + " " + number);
}

uint64_t Recorder::event_recorded(const c10::Stream& stream) { return streams_.event(stream, last_); }

void Recorder::stream_waits(const c10::Stream& stream, uint64_t event) { streams_.wait(graph_, stream, event); }

void Recorder::memory_used_on(const StorageContext& storage, const c10::Stream& stream) {
  const StorageId id = find_storage_id(storage, session_);
  if (id.valid() && graph_.storage(id).born.valid()) streams_.use(graph_, graph_.storage(id).born, stream);
}

}  // namespace shadowgraph
