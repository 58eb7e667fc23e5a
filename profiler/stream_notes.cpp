#include "profiler/stream_notes.h"

#include <fmt/format.h>

#include <charconv>
#include <string_view>

#include "shadowgraph/error.h"

namespace shadowgraph {
namespace {

// Streams and events are few: a larger number is a mistake, for which no table should be made.
constexpr uint32_t kMost = 1U << 24;

std::vector<uint32_t> numbers_in(std::string_view key, std::string_view text) {
  std::vector<uint32_t> numbers;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at != end) {
    uint32_t number = 0;
    const auto [stop, error] = std::from_chars(at, end, number);
    if (error != std::errc() || number > kMost || (stop != end && *stop != ' ')) {
      throw Error(fmt::format("the note \"{}\"=\"{}\" is not of numbers up to {}, with a space between them", key, text,
                              kMost));
    }
    numbers.push_back(number);
    at = stop == end ? end : stop + 1;
  }
  return numbers;
}

}  // namespace

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

}  // namespace shadowgraph
