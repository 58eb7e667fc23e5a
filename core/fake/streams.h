// The streams of pretended devices: which one is current on this thread, and who is told what programs do with them.
//
// Nothing runs on them. Device guards, c10::Event and what Python's torch.cuda is told end here.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <vector>

namespace shadowgraph {

struct StorageContext;

// Is told what the program does with streams: an observer of calls (core/fake/call_observer.h) that is one of these,
// too.
class StreamObserver {
 public:
  virtual ~StreamObserver() = default;
  // Returns a number for all that `stream` has been given so far; 0: for nothing.
  virtual uint64_t event_recorded(const c10::Stream& stream) = 0;
  // What `stream` is given from here on waits for an event.
  virtual void stream_waits(const c10::Stream& stream, uint64_t event) = 0;
  // The memory is used on another stream than it was taken on: Tensor::record_stream.
  virtual void memory_used_on(const StorageContext& storage, const c10::Stream& stream) = 0;
};

// Returns the observer of the mode that is active on this thread; nullptr: none that asks for streams.
StreamObserver* stream_observer();

c10::Stream new_stream(c10::Device device);
c10::Stream current_stream(c10::Device device);
// Returns the stream that was current on that device.
c10::Stream exchange_current_stream(c10::Stream stream);
// Returns the current streams that are no default ones, one for a device.
const std::vector<c10::Stream>& other_streams();

uint64_t record_event(const c10::Stream& stream);
void wait_for_event(const c10::Stream& stream, uint64_t event);
// `data`: of the storage of a fake tensor; others are nobody's.
void use_memory_on(const c10::DataPtr& data, const c10::Stream& stream);

}  // namespace shadowgraph
