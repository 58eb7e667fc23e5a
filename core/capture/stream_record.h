// Notes on which stream each node was issued and for what it waited there.
//
//     n7: ... | note("event"="1")                  something waits for the stream up to this node
//     n8: ... | note("stream"="2", "waits"="1")    issued on stream 2, which waits for event 1 first
//
// Stream 0, the default one, is not noted; others are numbered as they are first used. A stream does in order what it is
// given. So an event is the last node that its stream had been given, and one that nobody waits for is no note.
#pragma once

#include <c10/core/Stream.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/fake/streams.h"
#include "shadowgraph/graph.h"

namespace shadowgraph {

class StreamRecord {
 public:
  explicit StreamRecord(uint32_t session) : session_(session) {}

  // Says whether the program has had to do with streams, or has now: else nothing need be told.
  bool in_use() const { return !last_.empty() || !other_streams().empty(); }
  // A node was recorded, on the streams that are current.
  void issued(Graph& graph, NodeId node);
  // A node was put among earlier ones. `streams` were current there.
  void put(Graph& graph, NodeId node, const std::vector<c10::Stream>& streams);
  // `newest`: the node recorded last.
  uint64_t event(const c10::Stream& stream, NodeId newest);
  void wait(Graph& graph, const c10::Stream& stream, uint64_t event);
  // `born`: the node that made the memory.
  void use(Graph& graph, NodeId born, const c10::Stream& stream);

 private:
  struct Event {
    NodeId after;
    uint32_t stream;
  };
  uint32_t number_of(const c10::Stream& stream);

  const uint32_t session_;
  std::vector<c10::Stream> streams_;  // by number - 1
  std::vector<NodeId> last_;          // by number; empty until the program has to do with streams
  std::vector<std::vector<std::string>> waits_;
  std::vector<Event> events_;
  std::map<std::pair<uint32_t, uint32_t>, NodeId> awaited_;  // by waiting and awaited stream: up to where
  int events_named_ = 0;
};

}  // namespace shadowgraph
