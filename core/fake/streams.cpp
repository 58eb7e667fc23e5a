#include "core/fake/streams.h"

#include <atomic>

#include "core/fake/mode_state.h"
#include "core/fake/storage_context.h"
#include "core/fake/thread_state.h"

namespace shadowgraph {
namespace {

std::vector<c10::Stream>& streams_of_thread() {
  thread_local std::vector<c10::Stream> streams;
  return streams;
}

}  // namespace

const std::vector<c10::Stream>& other_streams() { return streams_of_thread(); }

StreamObserver* stream_observer() {
  const ModeState* mode = thread_state.mode;
  return mode == nullptr ? nullptr : dynamic_cast<StreamObserver*>(mode->observer);
}

c10::Stream new_stream(c10::Device device) {
  static std::atomic<c10::StreamId> last{0};
  return c10::Stream(c10::Stream::UNSAFE, device, ++last);
}

c10::Stream current_stream(c10::Device device) {
  for (const c10::Stream& stream : other_streams()) {
    if (stream.device() == device) return stream;
  }
  return c10::Stream(c10::Stream::DEFAULT, device);
}

c10::Stream exchange_current_stream(c10::Stream stream) {
  const c10::Stream before = current_stream(stream.device());
  if (before == stream) return before;
  auto& streams = streams_of_thread();
  std::erase(streams, before);
  if (stream.id() != c10::Stream(c10::Stream::DEFAULT, stream.device()).id()) streams.push_back(stream);
  return before;
}

uint64_t record_event(const c10::Stream& stream) {
  StreamObserver* observer = stream_observer();
  return observer == nullptr ? 0 : observer->event_recorded(stream);
}

void wait_for_event(const c10::Stream& stream, uint64_t event) {
  if (event == 0) return;
  if (StreamObserver* observer = stream_observer()) observer->stream_waits(stream, event);
}

void use_memory_on(const c10::DataPtr& data, const c10::Stream& stream) {
  StreamObserver* observer = stream_observer();
  const StorageContext* storage = find_storage_context(data);
  if (observer != nullptr && storage != nullptr) observer->memory_used_on(*storage, stream);
}

}  // namespace shadowgraph
