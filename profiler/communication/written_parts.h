// Who wrote which bytes of one storage last: intervals by their first byte, each with the writes that reach it. A write
// or read costs no more than the parts that it meets, even where a storage is written in thousands.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <vector>

namespace shadowgraph {

template <class Writer>
class WrittenParts {
 public:
  // A write replaces those within it. What it meets in part stays, as a tensor need not reach all bytes from its first to
  // its last.
  void note(int64_t begin, int64_t end, const Writer& writer) {
    if (begin >= end) return;
    split(begin);
    split(end);
    auto at = intervals_.lower_bound(begin);
    for (int64_t from = begin; from < end;) {
      if (at == intervals_.end() || at->first > from) {
        const int64_t until = at == intervals_.end() ? end : std::min(end, at->first);
        at = intervals_.emplace_hint(at, from, Interval{until, {}});
      }
      std::vector<Write>& writes = at->second.writes;
      std::erase_if(writes, [&](const Write& old) { return begin <= old.begin && old.end <= end; });
      writes.push_back({begin, end, writer});
      from = at->second.end;
      at = std::next(at->first > begin ? join(at) : at);
    }
  }

  // Calls f(writer) once for each write that reaches any of these bytes.
  template <class F>
  void for_each(int64_t begin, int64_t end, F&& f) const {
    auto at = intervals_.upper_bound(begin);
    if (at != intervals_.begin() && std::prev(at)->second.end > begin) --at;
    for (; at != intervals_.end() && at->first < end; ++at) {
      for (const Write& write : at->second.writes) {
        if (at->first <= std::max(write.begin, begin)) f(write.writer);  // the first interval of the write that is read
      }
    }
  }

 private:
  struct Write {
    int64_t begin, end;
    Writer writer;
  };
  struct Interval {
    int64_t end;
    std::vector<Write> writes;  // each reaches all of it
  };
  using Intervals = std::map<int64_t, Interval>;

  void split(int64_t at) {
    auto next = intervals_.upper_bound(at);
    if (next == intervals_.begin()) return;
    auto of = std::prev(next);
    if (of->first >= at || of->second.end <= at) return;
    intervals_.emplace_hint(next, at, of->second);
    of->second.end = at;
  }
  // Takes an interval into the one before where the same writes reach both. No two have the same bytes.
  typename Intervals::iterator join(typename Intervals::iterator of) {
    auto before = std::prev(of);
    const auto same = [](const Write& a, const Write& b) { return a.begin == b.begin && a.end == b.end; };
    if (before->second.end != of->first || !std::ranges::equal(before->second.writes, of->second.writes, same))
      return of;
    before->second.end = of->second.end;
    intervals_.erase(of);
    return before;
  }

  Intervals intervals_;
};

}  // namespace shadowgraph
