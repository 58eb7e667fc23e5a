// Compares two graphs by canonical numbers. Both are numbered in program order, so the numbers agree up to the first
// difference, whatever the ids, pools and interning orders.
// This is the equality that the text form preserves: parse(to_text(g)) has no difference from g.
#include <fmt/format.h>

#include <algorithm>

#include "ir/analysis/structural_hash.h"
#include "ir/text/tensor_bytes.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/graph/verify.h"
#include "support/hash.h"

namespace shadowgraph {

namespace {

std::vector<ValueId> outputs_of(const Graph& graph, NodeId node) {
  std::vector<ValueId> values;
  graph.for_each_output(node, [&](ValueId v) { values.push_back(v); });
  return values;
}

std::vector<std::pair<std::string_view, std::string_view>> notes_of(const Graph& graph, NodeId node) {
  std::vector<std::pair<std::string_view, std::string_view>> notes;
  graph.for_each_note(node, [&](std::string_view key, std::string_view value) { notes.emplace_back(key, value); });
  return notes;
}

class Comparison {
 public:
  Comparison(const Graph& a, const Graph& b)
      : a_(a), b_(b), na_(Numbering::of(a)), nb_(Numbering::of(b)), targets_(a.target_count()) {}
  // Walks both graphs in parallel and prints both lines of the first pair that differs.
  std::optional<std::string> run() {
    const size_t count = std::min(na_.nodes().size(), nb_.nodes().size());
    for (size_t i = 0; i < count; ++i) {
      const NodeId a = na_.nodes()[i];
      const NodeId b = nb_.nodes()[i];
      const char* what = difference_of(a, b);
      // Results have the same structure at this point, so values can be walked in parallel.
      if (what == nullptr) {
        const std::vector<ValueId> values = outputs_of(b_, b);
        size_t next = 0;
        a_.for_each_output(a, [&](ValueId v) {
          if (!same_value(v, values[next++])) what = "a result";
        });
      }
      if (what != nullptr) {
        return fmt::format("n{} differs in {}:\n  {}\n  {}", i, what, to_text(a_, a, na_), to_text(b_, b, nb_));
      }
    }
    if (na_.nodes().size() != nb_.nodes().size()) {
      const bool more = na_.nodes().size() > count;
      return fmt::format("{} nodes versus {}; the first one without a counterpart:\n  {}", na_.nodes().size(),
                         nb_.nodes().size(),
                         more ? to_text(a_, na_.nodes()[count], na_) : to_text(b_, nb_.nodes()[count], nb_));
    }
    return heads();
  }

 private:
  template <class I>
  bool same_number(I a, I b) const {
    return na_.of(a) == nb_.of(b);
  }
  bool same_text(StringId a, StringId b) const { return a_.text_or_empty(a) == b_.text_or_empty(b); }
  // Targets are equal if their schema texts are. Equal pairs are cached, so that texts are compared once per target,
  // not once per node.
  bool same_target(TargetId a, TargetId b) {
    const bool a_valid = a.index < a_.target_count();
    if (!a_valid || b.index >= b_.target_count()) return a_valid == (b.index < b_.target_count());
    if (targets_[a.index] == b) return true;
    if (a_.target(a).kind() != b_.target(b).kind() || a_.target(a).schema_text() != b_.target(b).schema_text()) {
      return false;
    }
    targets_[a.index] = b;
    return true;
  }

  // Compares values and constants by number (constants' contents are compared once, in heads()) and floats by bits.
  bool same_arguments(std::span<const Argument> a, std::span<const Argument> b) const {
    const auto same = [this](auto x, auto y) { return same_number(x, y); };
    return std::ranges::equal(
        a, b, [&](const Argument& x, const Argument& y) { return same_argument(a_, x, b_, y, same, same); });
  }

  // Geometry and flags must agree, and the storage by its number in order of first appearance.
  bool same_value(ValueId a, ValueId b) const {
    const Value& x = a_.value(a);
    const Value& y = b_.value(b);
    if (x.kind != y.kind) return false;
    if (x.kind != ValueKind::kTensor) return true;
    return x.dtype == y.dtype && x.layout == y.layout && x.device() == y.device() &&
           x.requires_grad == y.requires_grad && std::ranges::equal(a_.sizes(a), b_.sizes(b)) &&
           std::ranges::equal(a_.strides(a), b_.strides(b)) && same_number(x.storage, y.storage) &&
           x.storage.valid() == y.storage.valid() && x.offset == y.offset;
  }

  // Constants without readable contents count as equal.
  bool same_constant(ConstantId a, ConstantId b) const {
    const auto x = tensor_bytes(a_.constant(a));
    const auto y = tensor_bytes(b_.constant(b));
    if (!x || !y) return !x && !y;
    return x->dtype == y->dtype && x->sizes == y->sizes && x->strides == y->strides && x->bytes == y->bytes;
  }

  // Compares everything outside nodes. Called last, although printed first: a differing node is more informative.
  std::optional<std::string> heads() {
    if (a_.metadata != b_.metadata) return "the metadata differs";
    if (na_.storages().size() != nb_.storages().size()) {
      return fmt::format("{} storages versus {}", na_.storages().size(), nb_.storages().size());
    }
    for (size_t i = 0; i < na_.storages().size(); ++i) {
      const Storage& x = a_.storage(na_.storages()[i]);
      const Storage& y = b_.storage(nb_.storages()[i]);
      if (x.bytes != y.bytes || x.device() != y.device() || x.kind != y.kind) {
        return fmt::format("s{} differs: {} bytes, {} versus {} bytes, {} (or by device)", i, x.bytes,
                           to_string(x.kind), y.bytes, to_string(y.kind));
      }
      if (!same_number(x.born, y.born)) return fmt::format("s{} is allocated at another node", i);
      if (!same_number(x.freed_after, y.freed_after)) return fmt::format("s{} is freed at another node", i);
    }
    if (a_.region_count() != b_.region_count()) {
      return fmt::format("{} regions versus {}", a_.region_count(), b_.region_count());
    }
    for (uint32_t i = 0; i < a_.region_count(); ++i) {
      const Region& x = a_.region(RegionId(i));
      const Region& y = b_.region(RegionId(i));
      if (x.kind != y.kind || x.inferred != y.inferred || x.parent != y.parent || x.call != y.call ||
          !same_text(x.name, y.name) || !same_text(x.class_name, y.class_name) || !same_target(x.target, y.target) ||
          !same_arguments(a_.region_arguments(RegionId(i)), b_.region_arguments(RegionId(i)))) {
        return fmt::format("r{} differs: {} '{}' versus {} '{}'", i, to_string(x.kind), a_.text_or_empty(x.name),
                           to_string(y.kind), b_.text_or_empty(y.name));
      }
    }
    if (na_.constants().size() != nb_.constants().size()) {
      return fmt::format("{} constants versus {}", na_.constants().size(), nb_.constants().size());
    }
    for (size_t i = 0; i < na_.constants().size(); ++i) {
      if (!same_constant(na_.constants()[i], nb_.constants()[i])) return fmt::format("constant c{} differs", i);
    }
    const auto same_dependency = [&](const Guard& x, const Guard& y) {
      return x.kind == y.kind && same_number(x.value, y.value) && x.dimension == y.dimension &&
             x.observed == y.observed;
    };
    if (!std::ranges::equal(a_.guards, b_.guards, same_dependency)) return "the guards differ";
    return std::nullopt;
  }

  // Returns what differs between two nodes, for a message, or nullptr; the most important property first.
  const char* difference_of(NodeId a, NodeId b) {
    const Node& x = a_.node(a);
    const Node& y = b_.node(b);
    if (!same_target(x.target, y.target)) return "its target";
    if (!same_arguments(a_.arguments(a), b_.arguments(b))) return "its arguments";
    if (!same_arguments(a_.results(a), b_.results(b))) return "the structure of its results";
    if (x.region != y.region) return "its region";
    const auto phase = [](const Graph& graph, PhaseId id) {
      return id.index < graph.phase_count() ? std::string_view(graph.phase_name(id)) : std::string_view("?");
    };
    if (phase(a_, x.phase) != phase(b_, y.phase)) return "its phase";
    if (x.flags != y.flags) return "its modes";
    if (!same_number(x.forward, y.forward)) return "its forward node";
    if (!same_text(x.source, y.source)) return "its source line";
    const auto same_saved = [&](const SavedTensor& p, const SavedTensor& q) {
      return p.role == q.role && p.index == q.index && same_number(p.value, q.value);
    };
    if (!std::ranges::equal(a_.saved(a), b_.saved(b), same_saved)) return "its saved tensors";
    if (notes_of(a_, a) != notes_of(b_, b)) return "its notes";
    const auto same_storage = [&](StorageId p, StorageId q) { return same_number(p, q); };
    if (!std::ranges::equal(a_.frees(a), b_.frees(b), same_storage)) return "the storages freed after it";
    return nullptr;
  }

  const Graph& a_;
  const Graph& b_;
  const Numbering na_;
  const Numbering nb_;
  std::vector<TargetId> targets_;  // by target of a: the equal target of b
};

}  // namespace

std::optional<std::string> first_difference(const Graph& a, const Graph& b) { return Comparison(a, b).run(); }

namespace {

uint64_t mixed_text(uint64_t hash, std::string_view text) { return mixed(hash, std::hash<std::string_view>()(text)); }

// Hashes of a graph's nodes without their context. A collision only aligns two nodes that are then found to differ.
class Fingerprints {
 public:
  explicit Fingerprints(const Graph& graph) : graph_(graph), targets_(graph.target_count()) {
    for (uint32_t i = 0; i < graph.target_count(); ++i) {
      targets_[i] =
          mixed_text(static_cast<uint64_t>(graph.target(TargetId(i)).kind()), graph.target(TargetId(i)).schema_text());
    }
  }
  // Ignores ids, operands, regions and sources: a node that moved or was renumbered must keep its hash.
  uint64_t of(NodeId n) const {
    uint64_t hash = targets_[graph_.node(n).target.index];
    hash = mixed_text(hash, graph_.phase_name(graph_.node(n).phase));
    hash = arguments(hash, graph_.arguments(n));
    return arguments(hash, graph_.results(n));
  }

 private:
  // Ignores the storage, whose number changes with every storage inserted earlier.
  uint64_t type(uint64_t hash, ValueId v) const {
    const Value& value = graph_.value(v);
    hash = mixed(hash, static_cast<uint64_t>(value.kind) << 8 | static_cast<uint64_t>(value.dtype));
    if (value.kind != ValueKind::kTensor) return hash;
    hash = mixed(hash, static_cast<uint64_t>(value.device_type) << 8 | static_cast<uint8_t>(value.device_index));
    for (const int64_t size : graph_.sizes(v)) hash = mixed(hash, static_cast<uint64_t>(size));
    for (const int64_t stride : graph_.strides(v)) hash = mixed(hash, static_cast<uint64_t>(stride));
    return hash;
  }
  // Constants are numbered in order of appearance, so all count as equal.
  uint64_t arguments(uint64_t hash, std::span<const Argument> arguments) const {
    return hash_of(
        graph_, arguments, hash, [this](ValueId v) { return type(0, v); },
        [this](StringId s) { return std::hash<std::string_view>()(graph_.text_or_empty(s)); },
        [](ConstantId) { return 0; });
  }

  const Graph& graph_;
  std::vector<uint64_t> targets_;
};

// Furthest position along `a` reached with d edits on each diagonal k = x - y: row[k + d]; -1 if unreachable.
using Reach = std::vector<int64_t>;

// Start on diagonal k with d edits, before following equal elements, given the reach with d - 1 edits.
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

// Returns pairs (i, j) of equal elements, increasing in both: a longest common subsequence if that takes at most
// kMaxEdits edits, else a long one. Equal prefixes and suffixes are matched first, so that a small edit of a large
// graph is cheap.
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
    // Myers: extend the reach for d = 0, 1, 2, ... edits. The first d that reaches the end is minimal.
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
        // At kMaxEdits, take the furthest-reaching path and restart the search from its end.
        if (d == kMax && x + y > best) {
          best = x + y;
          end_k = k;
        }
      }
    }
    const bool done = end_d >= 0;
    if (!done) end_d = kMax;
    // Backtracks along the path, which gives the pairs from last to first.
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

// Compares the context of two nodes that are equal in isolation.
class Wiring {
 public:
  Wiring(const Graph& before, const Graph& after)
      : before_(before), after_(after), partner_(before.value_capacity()), node_partner_(before.node_capacity()) {}

  // Pairs map values of one graph to values of the other; operands are equal if they are mapped.
  void pair(NodeId a, NodeId b) {
    node_partner_[a.index] = b;
    const std::vector<ValueId> values = outputs_of(after_, b);
    size_t i = 0;
    before_.for_each_output(a, [&](ValueId v) {
      if (i < values.size()) partner_[v.index] = values[i];
      ++i;
    });
  }

  // Compares everything that is printed for a node, and returns the first difference.
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
    if (x.flags != y.flags) return "its modes";
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
      return "its saved tensors";
    }
    if (before_.frees(a).size() != after_.frees(b).size()) return "the storages freed after it";
    return notes_of(before_, a) != notes_of(after_, b) ? "its notes" : "";
  }

 private:
  const Graph& before_;
  const Graph& after_;
  std::vector<ValueId> partner_;  // by value of `before`
  std::vector<NodeId> node_partner_;
};

}  // namespace

// A node that only moved counts as removed and added, if the alignment cannot keep both orders.
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

  // Between aligned nodes, nodes that call the same operator count as changed, in order.
  Wiring wiring(before, after);
  for (const auto& [i, j] : pairs) wiring.pair(a[i], b[j]);
  std::vector<std::pair<NodeId, NodeId>> rows;  // all nodes, with their partners, in order
  uint32_t next_a = 0;
  uint32_t next_b = 0;
  // Pairs unaligned nodes between two aligned ones: two that call the same operator count as changed, others as removed
  // and added.
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
  // Graphs with equal nodes may still differ in storages or metadata.
  if (diff.changes.empty()) diff.elsewhere = first_difference(before, after);
  return diff;
}

// Prints like diff(1): removed lines with -, added lines with +, and a heading for each group of changes.
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
    // Adjacent changes share a heading.
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
