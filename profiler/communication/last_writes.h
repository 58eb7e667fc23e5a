// Who wrote a part of a storage last, so that a reader of one part does not wait for who writes another.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <unordered_map>
#include <vector>

#include "ir/text/tensor_bytes.h"
#include "shadowgraph/graph.h"

namespace shadowgraph {

// Writer is what the caller knows a write by. Parts are bytes from the first to the last that a tensor reaches.
template <class Writer>
class LastWrites {
 public:
  LastWrites(const Graph& graph) : graph_(graph) {}

  void note(ValueId value, const Writer& writer) {
    const Value& tensor = graph_.value(value);
    if (tensor.kind != ValueKind::kTensor || !tensor.storage.valid()) return;
    Part part = reached(value);
    part.writer = writer;
    std::vector<Part>& parts = parts_[tensor.storage.index];
    std::erase_if(parts, [&](const Part& old) { return part.begin <= old.begin && old.end <= part.end; });
    parts.push_back(part);
  }

  // Calls f(writer) for each that wrote something of what the value reaches.
  template <class F>
  void for_each(ValueId value, F&& f) const {
    const Value& tensor = graph_.value(value);
    if (tensor.kind != ValueKind::kTensor || !tensor.storage.valid()) return;
    const auto found = parts_.find(tensor.storage.index);
    if (found == parts_.end()) return;
    const Part read = reached(value);
    for (const Part& part : found->second) {
      if (part.begin < read.end && read.begin < part.end) f(part.writer);
    }
  }

 private:
  struct Part {
    int64_t begin = 0;
    int64_t end = std::numeric_limits<int64_t>::max();  // of a tensor without strides, all
    Writer writer{};
  };

  Part reached(ValueId value) const {
    const Value& tensor = graph_.value(value);
    Part part;
    if (tensor.layout != c10::kStrided) return part;
    const std::optional<int64_t> extent = extent_of(graph_.sizes(value), graph_.strides(value));
    if (!extent) return part;
    const auto bytes = static_cast<int64_t>(c10::elementSize(tensor.dtype));
    part.begin = tensor.offset * bytes;
    part.end = part.begin + *extent * bytes;
    return part;
  }

  const Graph& graph_;
  std::unordered_map<uint32_t, std::vector<Part>> parts_;  // by storage
};

}  // namespace shadowgraph
