// Compares two graphs in three steps. Nodes are hashed by what they are by themselves, the sequences of hashes are
// aligned, and aligned nodes are compared in what surrounds them.
//
//     before  mm  add  relu          mm and relu are aligned, add went, mul came; relu is then "changed", since its
//     after   mm  mul  relu          operand is another node
//
// Hashes leave out ids and operands, for a node that moved must keep its hash. Alignment is Myers' O(ND) algorithm over
// the hashes: N nodes and D edits. Above kMaxEdits it takes the best way so far and begins anew. So two graphs
// without anything in common still take linear time and memory.
#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "shadowgraph/text.h"
#include "shadowgraph/verify.h"

namespace shadowgraph {
namespace {

uint64_t mix(uint64_t hash, uint64_t value) {
  hash ^= value + 0x9e3779b97f4a7c15 + (hash << 6) + (hash >> 2);
  hash *= 0xff51afd7ed558ccd;
  return hash ^ (hash >> 32);
}
uint64_t mix(uint64_t hash, std::string_view text) { return mix(hash, std::hash<std::string_view>()(text)); }

// What the nodes of one graph are by themselves, as hashes. A collision aligns two nodes that the comparison then finds
// to be different.
class Fingerprints {
 public:
  explicit Fingerprints(const Graph& graph) : graph_(graph), targets_(graph.target_count()) {
    for (uint32_t i = 0; i < graph.target_count(); ++i) {
      targets_[i] =
          mix(static_cast<uint64_t>(graph.target(TargetId(i)).kind()), graph.target(TargetId(i)).schema_text());
    }
  }
  // Leaves out ids, operands, regions and sources: a node that moved or was renumbered must keep its hash.
  uint64_t of(NodeId n) const {
    uint64_t hash = targets_[graph_.node(n).target.index];
    hash = mix(hash, graph_.phase_name(graph_.node(n).phase));
    hash = arguments(hash, graph_.arguments(n), 0);
    return arguments(hash, graph_.results(n), 0);
  }

 private:
  // The storage is left out: its number changes with every storage inserted before.
  uint64_t type(uint64_t hash, ValueId v) const {
    const Value& value = graph_.value(v);
    hash = mix(hash, static_cast<uint64_t>(value.kind) << 8 | static_cast<uint64_t>(value.dtype));
    if (value.kind != ValueKind::kTensor) return hash;
    hash = mix(hash, static_cast<uint64_t>(value.device_type) << 8 | static_cast<uint8_t>(value.device_index));
    for (const int64_t size : graph_.sizes(v)) hash = mix(hash, static_cast<uint64_t>(size));
    for (const int64_t stride : graph_.strides(v)) hash = mix(hash, static_cast<uint64_t>(stride));
    return hash;
  }
  uint64_t arguments(uint64_t hash, std::span<const Argument> arguments, int depth) const {
    for (const Argument& a : arguments) {
      hash = mix(hash, static_cast<uint64_t>(a.kind));
      switch (a.kind) {
        case ArgumentKind::kValue:
          hash = type(hash, a.ref.value);
          break;
        case ArgumentKind::kInt:
          hash = mix(hash, static_cast<uint64_t>(a.i));
          break;
        case ArgumentKind::kFloat:
          hash = mix(hash, std::bit_cast<uint64_t>(a.d));
          break;
        case ArgumentKind::kBool:
          hash = mix(hash, static_cast<uint64_t>(a.b));
          break;
        case ArgumentKind::kString:
        case ArgumentKind::kOpaque:
          hash = mix(hash, graph_.text_or_empty(a.string));
          break;
        case ArgumentKind::kDevice:
        case ArgumentKind::kGenerator:
          hash = mix(hash, static_cast<uint64_t>(a.device_type) << 8 | static_cast<uint8_t>(a.device_index));
          break;
        case ArgumentKind::kIntList:
          for (const int64_t i : graph_.ints(a)) hash = mix(hash, static_cast<uint64_t>(i));
          break;
        case ArgumentKind::kComplex:
          for (const double d : graph_.complex_parts(a)) hash = mix(hash, std::bit_cast<uint64_t>(d));
          break;
        case ArgumentKind::kList:
          if (depth < kMaxListDepth) hash = this->arguments(hash, graph_.list(a), depth + 1);
          break;
        default:
          break;
      }
    }
    return hash;
  }

  const Graph& graph_;
  std::vector<uint64_t> targets_;
};

// How far d edits reach along `a` on each diagonal k = x - y: row[k + d]; -1 where they do not.
using Reach = std::vector<int64_t>;

// How far d edits come on diagonal k before equal elements are followed, given how far d - 1 come.
struct Start {
  int64_t down = -1;   // by an element of `b` from diagonal k + 1
  int64_t right = -1;  // by an element of `a` from diagonal k - 1
  int64_t x() const { return std::max(down, right); }
};
Start start_of(const Reach& previous, int d, int64_t k) {
  const auto at = [&](int64_t diagonal) {
    const int64_t i = diagonal + (d - 1);
    return i < 0 || i > 2 * (d - 1) ? int64_t{-1} : previous[static_cast<size_t>(i)];
  };
  return {.down = at(k + 1), .right = at(k - 1) < 0 ? -1 : at(k - 1) + 1};
}

// Pairs (i, j) of equal elements, both growing: a long common subsequence, the longest if it takes at most kMaxEdits
// edits.
// Equal beginnings and ends go first, so that a small edit of a large graph costs what the edit costs.
std::vector<std::pair<uint32_t, uint32_t>> align(const std::vector<uint64_t>& a, const std::vector<uint64_t>& b) {
  std::vector<std::pair<uint32_t, uint32_t>> pairs;
  auto x0 = uint32_t{0};
  auto y0 = uint32_t{0};
  auto x1 = static_cast<uint32_t>(a.size());
  auto y1 = static_cast<uint32_t>(b.size());
  while (x0 < x1 && y0 < y1 && a[x0] == b[y0]) pairs.emplace_back(x0++, y0++);
  std::vector<std::pair<uint32_t, uint32_t>> tail;
  while (x1 > x0 && y1 > y0 && a[x1 - 1] == b[y1 - 1]) tail.emplace_back(--x1, --y1);

  constexpr int kMax = GraphDiff::kMaxEdits;
  std::vector<Reach> furthest(kMax + 1);  // by d, from (x0, y0)
  while (x0 < x1 && y0 < y1) {
    const int64_t n = x1 - x0;
    const int64_t m = y1 - y0;
    int64_t end_k = 0;
    int end_d = -1;
    int64_t best = -1;
    // Myers: for d = 0, 1, 2, ... edits, how far along each diagonal do they reach? The first d that reaches the end is
    // the least.
    for (int d = 0; d <= kMax && end_d < 0; ++d) {
      auto& row = furthest[static_cast<size_t>(d)];
      row.assign(static_cast<size_t>(2 * d + 1), -1);
      for (int64_t k = -d; k <= d; k += 2) {
        int64_t x = d == 0 ? 0 : start_of(furthest[static_cast<size_t>(d - 1)], d, k).x();
        int64_t y = x - k;
        if (x < 0 || y < 0 || x > n || y > m) continue;
        while (x < n && y < m && a[static_cast<size_t>(x0 + x)] == b[static_cast<size_t>(y0 + y)]) ++x, ++y;
        row[static_cast<size_t>(k + d)] = x;
        if (x == n && y == m) {
          end_d = d;
          end_k = k;
          break;
        }
        // Beyond kMaxEdits the way that reaches farthest is taken as far as it goes, and the search begins anew there.
        if (d == kMax && x + y > best) {
          best = x + y;
          end_k = k;
        }
      }
    }
    const bool done = end_d >= 0;
    if (!done) end_d = kMax;
    // Back along the way, which gives the pairs from the last to the first.
    const size_t begin = pairs.size();
    int64_t x = furthest[static_cast<size_t>(end_d)][static_cast<size_t>(end_k + end_d)];
    int64_t k = end_k;
    const int64_t reached_x = x;
    const int64_t reached_y = x - k;
    for (int d = end_d; d > 0; --d) {
      const Start start = start_of(furthest[static_cast<size_t>(d - 1)], d, k);
      for (; x > start.x(); --x) pairs.emplace_back(x0 + x - 1, y0 + (x - k) - 1);
      if (start.down >= start.right) {
        x = start.down;
        ++k;
      } else {
        x = start.right - 1;
        --k;
      }
    }
    for (; x > 0; --x) pairs.emplace_back(x0 + x - 1, y0 + (x - k) - 1);
    std::reverse(pairs.begin() + static_cast<std::ptrdiff_t>(begin), pairs.end());
    if (done) break;
    x0 += static_cast<uint32_t>(reached_x);
    y0 += static_cast<uint32_t>(reached_y);
  }
  pairs.insert(pairs.end(), tail.rbegin(), tail.rend());
  return pairs;
}

// Two nodes that are the same by themselves: whether they also are in the graph around them.
class Wiring {
 public:
  Wiring(const Graph& before, const Graph& after)
      : before_(before), after_(after), partner_(before.value_capacity()), node_partner_(before.node_capacity()) {}

  // Pairs say which value of the one graph is which of the other; operands are then equal if they are pairs.
  void pair(NodeId a, NodeId b) {
    node_partner_[a.index] = b;
    std::vector<ValueId> values;
    after_.for_each_output(b, [&](ValueId v) { values.push_back(v); });
    size_t i = 0;
    before_.for_each_output(a, [&](ValueId v) {
      if (i < values.size()) partner_[v.index] = values[i];
      ++i;
    });
  }

  // Compares everything that is printed of a node, and names the first thing that differs.
  std::string difference(NodeId a, NodeId b) const {
    std::vector<ValueId> values;
    after_.for_each_input(b, [&](ValueId v) { values.push_back(v); });
    std::string what;
    size_t i = 0;
    before_.for_each_input(a, [&](ValueId v) {
      if (what.empty() && (i >= values.size() || partner_[v.index] != values[i])) what = fmt::format("operand {}", i);
      ++i;
    });
    if (!what.empty()) return what;
    const Node& x = before_.node(a);
    const Node& y = after_.node(b);
    if (x.flags.grad_mode != y.flags.grad_mode || x.flags.inference_mode != y.flags.inference_mode ||
        x.flags.autocast_cpu != y.flags.autocast_cpu || x.flags.autocast_cuda != y.flags.autocast_cuda) {
      return "its modes";
    }
    if (before_.text_or_empty(before_.region(x.region).name) != after_.text_or_empty(after_.region(y.region).name)) {
      return "its region";
    }
    if (before_.text_or_empty(x.source) != after_.text_or_empty(y.source)) return "its source line";
    const bool has_forward = x.forward.valid() && !before_.is_erased(x.forward);
    const bool other_has_forward = y.forward.valid() && !after_.is_erased(y.forward);
    if (has_forward != other_has_forward || (has_forward && node_partner_[x.forward.index] != y.forward)) {
      return "its forward node";
    }
    const auto p = before_.saved(a);
    const auto q = after_.saved(b);
    if (!std::equal(p.begin(), p.end(), q.begin(), q.end(), [&](const SavedTensor& s, const SavedTensor& t) {
          return s.role == t.role && s.index == t.index && partner_[s.value.index] == t.value;
        })) {
      return "what is saved for backward";
    }
    if (before_.frees(a).size() != after_.frees(b).size()) return "what is freed after it";
    std::vector<std::pair<std::string_view, std::string_view>> notes, other_notes;
    before_.for_each_note(a, [&](std::string_view key, std::string_view value) { notes.emplace_back(key, value); });
    after_.for_each_note(b,
                         [&](std::string_view key, std::string_view value) { other_notes.emplace_back(key, value); });
    if (notes != other_notes) return "its notes";
    return {};
  }

 private:
  const Graph& before_;
  const Graph& after_;
  std::vector<ValueId> partner_;  // by value of `before`
  std::vector<NodeId> node_partner_;
};

}  // namespace

// A node that only moved counts as gone and come, if the alignment cannot keep both orders.
GraphDiff GraphDiff::of(const Graph& before, const Graph& after) {
  GraphDiff diff;
  std::vector<NodeId> a(before.nodes().begin(), before.nodes().end());
  std::vector<NodeId> b(after.nodes().begin(), after.nodes().end());
  std::vector<uint64_t> hashes_a, hashes_b;
  const Fingerprints of_before(before);
  const Fingerprints of_after(after);
  for (NodeId n : a) hashes_a.push_back(of_before.of(n));
  for (NodeId n : b) hashes_b.push_back(of_after.of(n));
  const auto pairs = align(hashes_a, hashes_b);

  // Between aligned nodes, those that call the same operator are one that changed, in order.
  Wiring wiring(before, after);
  for (const auto& [i, j] : pairs) wiring.pair(a[i], b[j]);
  std::vector<std::pair<NodeId, NodeId>> rows;  // all nodes, with their partners, in order
  uint32_t next_a = 0;
  uint32_t next_b = 0;
  // Between aligned nodes there are some on both sides. A node that calls the same operator as its partner is one that
  // changed, otherwise one went and one came.
  const auto gap = [&](uint32_t end_a, uint32_t end_b) {
    while (next_a < end_a || next_b < end_b) {
      const bool same_operator =
          next_a < end_a && next_b < end_b && before.target(a[next_a]).name() == after.target(b[next_b]).name();
      if (same_operator) wiring.pair(a[next_a], b[next_b]);
      const bool take_a = next_a < end_a;
      const bool take_b = next_b < end_b && (same_operator || !take_a);
      rows.emplace_back(take_a ? a[next_a] : NodeId(), take_b ? b[next_b] : NodeId());
      next_a += take_a;
      next_b += take_b;
    }
  };
  std::vector<size_t> aligned;  // rows of `pairs`
  for (const auto& [i, j] : pairs) {
    gap(i, j);
    aligned.push_back(rows.size());
    rows.emplace_back(a[i], b[j]);
    next_a = i + 1;
    next_b = j + 1;
  }
  gap(static_cast<uint32_t>(a.size()), static_cast<uint32_t>(b.size()));

  size_t next_aligned = 0;
  for (size_t r = 0; r < rows.size(); ++r) {
    const auto [x, y] = rows[r];
    const bool is_aligned = next_aligned < aligned.size() && aligned[next_aligned] == r;
    next_aligned += is_aligned;
    std::string what = is_aligned ? wiring.difference(x, y) : "";
    if (is_aligned && what.empty()) {
      ++diff.same;
      continue;
    }
    diff.removed += !y.valid();
    diff.added += !x.valid();
    diff.changed += x.valid() && y.valid();
    diff.changes.push_back({x, y, std::move(what)});
  }
  // Equal nodes do not mean equal graphs: storages and metadata may differ.
  if (diff.changes.empty()) diff.elsewhere = first_difference(before, after);
  return diff;
}

// In the manner of diff(1): lines that went with -, lines that came with +, and headings where a stretch begins.
std::string to_text(const GraphDiff& diff, const Graph& before, const Graph& after, size_t limit) {
  if (diff.empty()) return "";
  const Numbering numbers_before = Numbering::of(before);
  const Numbering numbers_after = Numbering::of(after);
  std::string text;
  size_t shown = 0;
  NodeId last_before, last_after;
  for (const GraphDiff::Change& change : diff.changes) {
    if (limit != 0 && shown++ == limit) {
      text += fmt::format("... and {} more\n", diff.changes.size() - limit);
      break;
    }
    // Changes that follow one another share a heading.
    const bool goes_on = (change.before.valid() ? before.node(change.before).previous == last_before : shown > 1) &&
                         (change.after.valid() ? after.node(change.after).previous == last_after : shown > 1);
    if (!goes_on || shown == 1) {
      const auto place = [](const Graph& graph, const Numbering& numbers, NodeId n) {
        return n.valid() ? fmt::format("n{}", numbers.of(n)) : "-";
      };
      text += fmt::format("@@ {}, {} @@\n", place(before, numbers_before, change.before),
                          place(after, numbers_after, change.after));
    }
    if (change.before.valid()) {
      text += fmt::format("- {}\n", to_text(before, change.before, numbers_before));
      last_before = change.before;
    }
    if (change.after.valid()) {
      text += fmt::format("+ {}\n", to_text(after, change.after, numbers_after));
      last_after = change.after;
    }
    if (!change.what.empty()) text += fmt::format("  differs in {}\n", change.what);
  }
  if (diff.elsewhere) text += *diff.elsewhere + "\n";
  text +=
      fmt::format("{} removed, {} added, {} changed, {} the same\n", diff.removed, diff.added, diff.changed, diff.same);
  return text;
}

}  // namespace shadowgraph
