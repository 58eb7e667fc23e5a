// Who wrote a part of a storage last, so that a reader of one part does not wait for who writes another.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <unordered_map>
#include <utility>

#include "ir/text/tensor_bytes.h"
#include "profiler/communication/written_parts.h"
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
    const auto [begin, end] = reached(value);
    parts_[tensor.storage.index].note(begin, end, writer);
  }

  // Calls f(writer) for each that wrote something of what the value reaches.
  template <class F>
  void for_each(ValueId value, F&& f) const {
    const Value& tensor = graph_.value(value);
    if (tensor.kind != ValueKind::kTensor || !tensor.storage.valid()) return;
    const auto found = parts_.find(tensor.storage.index);
    if (found == parts_.end()) return;
    const auto [begin, end] = reached(value);
    found->second.for_each(begin, end, std::forward<F>(f));
  }

 private:
  // The first byte and the one behind the last; of a tensor without strides, all.
  std::pair<int64_t, int64_t> reached(ValueId value) const {
    constexpr int64_t kAll = std::numeric_limits<int64_t>::max();
    const Value& tensor = graph_.value(value);
    if (tensor.layout != c10::kStrided) return {0, kAll};
    const std::optional<int64_t> extent = extent_of(graph_.sizes(value), graph_.strides(value));
    if (!extent) return {0, kAll};
    const auto bytes = static_cast<int64_t>(c10::elementSize(tensor.dtype));
    return {tensor.offset * bytes, (tensor.offset + *extent) * bytes};
  }

  const Graph& graph_;
  std::unordered_map<uint32_t, WrittenParts<Writer>> parts_;  // by storage
};

}  // namespace shadowgraph
