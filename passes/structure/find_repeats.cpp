// find-repeats: finds consecutive equal blocks, such as the layers of a transformer.
//
// The graph is unchanged except for notes on nodes of repeated blocks; the report has a line per run:
//
//     run 0: 32 blocks of 36 nodes, n6..n1157, forward, layers.0 .. layers.31
//     n42: %75 = aten::mm(...) | r12 note("repeat"="run 0, block 2 of 32")
//
// Equality of blocks is defined in ir/analysis/structural_hash.h, also used for pictures and summaries.
//
// Each node has a color, BlockHashes::of_node. Where a block of p nodes repeats, each color equals the one p places
// later, for at least p nodes. So the search is for distances p, in four steps:
//
//   1. Votes. Each window of 1, 2, 4, ... colors votes for the distance to its previous occurrence. Long windows vote
//      at few places, chosen by their hash, so that the same window is chosen wherever it occurs.
//   2. Stretches. Each distance with many votes is checked on the whole sequence.
//   3. Cuts. The stretch that saves most comes first. It is cut into blocks where the modules on both sides of a cut
//      have least in common: between layers, not within one.
//   4. Comparison. Adjacent blocks with equal hashes form a run.
//
// Solvers then consider one layer instead of 96, code generation emits a function and a loop, and pictures fold.
//
// About 0.5 us per node: 4 lookups, and one comparison for each distance checked, at most kMaxDistances.
#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <unordered_map>

#include "ir/analysis/structural_hash.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/passes/structure.h"
#include "support/hash.h"

namespace shadowgraph {
namespace {

constexpr size_t kDistancesPerWindow = 6;  // with the most votes, for each window length
constexpr size_t kMaxDistances = 96;       // in total: each costs a comparison per node

// Nodes that equal those `period` places later, and the last block.
struct Stretch {
  uint32_t begin = 0;   // in the node sequence
  uint32_t length = 0;  // nodes; at least two blocks
  uint32_t period = 0;  // nodes per block
  // Nodes that need not be considered if all blocks but one are folded.
  uint64_t gain() const { return uint64_t{length / period - 1} * period; }
};

// Consecutive equal blocks.
struct RepeatRun {
  uint32_t begin = 0;
  uint32_t period = 0;
  uint32_t blocks = 0;
};

class Repeats {
 public:
  Repeats(const Graph& graph, uint32_t least_nodes, uint32_t least_blocks)
      : graph_(graph),
        min_nodes_(least_nodes),
        min_blocks_(least_blocks),
        blocks_(graph),
        depths_(graph.region_count(), 0) {
    for (uint32_t i = 1; i < graph.region_count(); ++i)
      depths_[i] = depths_[graph.region(RegionId(i)).parent.index] + 1;
    for (NodeId n : graph.nodes()) {
      const TargetId target = graph.node(n).target;
      if (is_placeholder(target) || is_end(target)) continue;
      nodes_.push_back(n);
      colors_.push_back(blocks_.of_node(n));
    }
  }

  std::vector<RepeatRun> run() {
    std::vector<Stretch> stretches;
    for (const uint32_t distance : distances()) collect_stretches(distance, stretches);
    // The largest gain first; among equal ones, the shortest block.
    std::sort(stretches.begin(), stretches.end(), [](const Stretch& a, const Stretch& b) {
      return std::tuple(b.gain(), a.period, a.begin) < std::tuple(a.gain(), b.period, b.begin);
    });
    std::vector<bool> taken(nodes_.size(), false);
    std::vector<RepeatRun> runs;
    for (const Stretch& stretch : stretches) take_free_parts(stretch, taken, runs);
    std::sort(runs.begin(), runs.end(), [](const RepeatRun& a, const RepeatRun& b) { return a.begin < b.begin; });
    return runs;
  }

  NodeId node_at(uint32_t place) const { return nodes_[place]; }

  // Returns the innermost module around all nodes of a block; "" if there is none.
  std::string module_of(const RepeatRun& run, uint32_t block) const {
    const uint32_t begin = run.begin + block * run.period;
    RegionId region = graph_.node(nodes_[begin]).region;
    for (uint32_t i = 1; i < run.period; ++i) region = common(region, graph_.node(nodes_[begin + i]).region);
    while (region.valid() && graph_.region(region).kind != RegionKind::kModule) region = graph_.region(region).parent;
    return region.valid() ? std::string(graph_.text_or_empty(graph_.region(region).name)) : std::string();
  }

 private:
  // Polynomial hashes of all prefixes, so that the hash of any window takes two lookups.
  struct WindowHashes {
    explicit WindowHashes(const std::vector<uint64_t>& colors)
        : prefix(colors.size() + 1, 0), power(colors.size() + 1, 1) {
      for (size_t i = 0; i < colors.size(); ++i) {
        prefix[i + 1] = prefix[i] * kBase + mixed(0, colors[i]);
        power[i + 1] = power[i] * kBase;
      }
    }
    uint64_t of(size_t begin, size_t size) const {
      return mixed(size, prefix[begin + size] - prefix[begin] * power[size]);
    }
    static constexpr uint64_t kBase = 0x9E3779B97F4A7C15U;
    std::vector<uint64_t> prefix;
    std::vector<uint64_t> power;
  };

  // Returns the distances to check, those with the most votes first.
  std::vector<uint32_t> distances() const {
    const WindowHashes hashes(colors_);
    std::vector<std::pair<uint64_t, uint32_t>> best;  // votes and distance
    std::unordered_map<uint32_t, uint64_t> votes;
    for (uint32_t level = 0; (size_t{2} << level) <= nodes_.size(); ++level) {
      const size_t window = size_t{1} << level;
      // Windows of 8 colors vote at every second place, of 16 at every fourth, so all levels together cost 4 lookups
      // per node. A vote is weighted by the places skipped.
      const uint64_t sampling = level <= 2 ? 1 : uint64_t{1} << (level - 2);
      HashIndex last(nodes_.size() / sampling);  // the latest place of each window
      votes.clear();
      for (size_t i = 0; i + window <= nodes_.size(); ++i) {
        const uint64_t hash = hashes.of(i, window);
        if ((hash >> 20) % sampling != 0) continue;
        const auto here = static_cast<uint32_t>(i);
        uint32_t& before = last.find_or_add(hash, here, [](uint32_t) { return true; });
        if (before == here) continue;
        votes[here - before] += sampling;
        before = here;
      }
      std::vector<std::pair<uint64_t, uint32_t>> ranked;
      for (const auto& [distance, count] : votes) ranked.emplace_back(count, distance);
      const size_t kept = std::min(kDistancesPerWindow, ranked.size());
      std::partial_sort(
          ranked.begin(), ranked.begin() + static_cast<std::ptrdiff_t>(kept), ranked.end(),
          [](const auto& a, const auto& b) { return std::tuple(b.first, a.second) < std::tuple(a.first, b.second); });
      best.insert(best.end(), ranked.begin(), ranked.begin() + static_cast<std::ptrdiff_t>(kept));
    }
    std::sort(best.begin(), best.end(), [](const auto& a, const auto& b) {
      return std::tuple(b.first, a.second) < std::tuple(a.first, b.second);
    });
    std::vector<uint32_t> chosen;
    for (const auto& [count, distance] : best) {
      if (distance < min_nodes_ || std::find(chosen.begin(), chosen.end(), distance) != chosen.end()) continue;
      chosen.push_back(distance);
      if (chosen.size() == kMaxDistances) break;
    }
    return chosen;
  }

  // Collects the stretches of at least one whole block whose colors agree at this distance.
  void collect_stretches(uint32_t distance, std::vector<Stretch>& stretches) const {
    const auto size = static_cast<uint32_t>(colors_.size());
    for (uint32_t i = 0; i + distance < size;) {
      const uint32_t begin = i;
      while (i + distance < size && colors_[i] == colors_[i + distance]) ++i;
      if (i - begin >= distance) stretches.push_back({begin, i - begin + distance, distance});
      ++i;
    }
  }

  // Cuts the parts of a stretch that are not taken by earlier ones and have at least two blocks.
  void take_free_parts(const Stretch& stretch, std::vector<bool>& taken, std::vector<RepeatRun>& runs) {
    const uint32_t end = stretch.begin + stretch.length;
    for (uint32_t i = stretch.begin; i < end;) {
      if (taken[i]) {
        ++i;
        continue;
      }
      const uint32_t begin = i;
      while (i < end && !taken[i]) ++i;
      if (i - begin < 2 * stretch.period) continue;
      cut({begin, i - begin, stretch.period}, taken, runs);
    }
  }

  // Cuts a stretch into blocks, and records each run of equal blocks.
  void cut(const Stretch& stretch, std::vector<bool>& taken, std::vector<RepeatRun>& runs) {
    const uint32_t blocks = stretch.length / stretch.period;
    const uint32_t begin = stretch.begin + rotation(stretch);
    uint32_t first = 0;
    uint64_t first_hash = block_hash(begin, stretch.period);
    for (uint32_t b = 1; b <= blocks; ++b) {
      const uint64_t hash = b < blocks ? block_hash(begin + b * stretch.period, stretch.period) : 0;
      if (b < blocks && hash == first_hash) continue;
      if (b - first >= min_blocks_) {
        runs.push_back({begin + first * stretch.period, stretch.period, b - first});
        std::fill_n(taken.begin() + runs.back().begin, size_t{b - first} * stretch.period, true);
      }
      first = b;
      first_hash = hash;
    }
  }

  // Returns the shift of the first cut, without losing a block, where the modules around have least in common.
  uint32_t rotation(const Stretch& stretch) const {
    constexpr uint32_t kMaxCutsChecked = 4;
    const uint32_t blocks = stretch.length / stretch.period;
    const uint32_t slack = stretch.length - blocks * stretch.period;
    uint32_t best = 0;
    uint64_t best_depth = ~uint64_t{0};
    for (uint32_t shift = 0; shift <= slack; ++shift) {
      uint64_t depth = 0;
      for (uint32_t b = 1; b <= std::min(blocks - 1, kMaxCutsChecked); ++b) {
        const uint32_t at = stretch.begin + shift + b * stretch.period;
        depth += depths_[common(graph_.node(nodes_[at - 1]).region, graph_.node(nodes_[at]).region).index];
      }
      if (depth < best_depth) {
        best_depth = depth;
        best = shift;
      }
    }
    return best;
  }

  uint64_t block_hash(uint32_t begin, uint32_t size) { return blocks_.of({nodes_.data() + begin, size}); }

  // Returns the innermost region around both. Linear in the depth of regions, which is small.
  RegionId common(RegionId a, RegionId b) const {
    while (a != b) {
      if (depths_[a.index] >= depths_[b.index]) {
        a = graph_.region(a).parent;
      } else {
        b = graph_.region(b).parent;
      }
    }
    return a;
  }

  const Graph& graph_;
  const uint32_t min_nodes_;
  const uint32_t min_blocks_;
  std::vector<NodeId> nodes_;  // without placeholders, sg::output and sg::gradient
  BlockHashes blocks_;
  std::vector<uint64_t> colors_;  // by place
  std::vector<uint32_t> depths_;  // by region
};

}  // namespace

FindRepeatsResult find_repeats(Graph& graph, const FindRepeatsOptions& options) {
  const auto number = [](int64_t given, int64_t least) {
    return static_cast<uint32_t>(std::clamp<int64_t>(given, least, FindRepeatsOptions::kMost));
  };
  Repeats repeats(graph, number(options.min_nodes, 1), number(options.min_blocks, 2));
  const std::vector<RepeatRun> runs = repeats.run();

  IdMap<NodeId, std::string> notes;
  const Numbering numbering = Numbering::of(graph);
  FindRepeatsResult result;
  for (size_t r = 0; r < runs.size(); ++r) {
    const RepeatRun& run = runs[r];
    for (uint32_t b = 0; b < run.blocks; ++b) {
      for (uint32_t i = 0; i < run.period; ++i) {
        notes[repeats.node_at(run.begin + b * run.period + i)] =
            fmt::format("run {}, block {} of {}", r, b + 1, run.blocks);
      }
    }
    const NodeId first = repeats.node_at(run.begin);
    result.runs.push_back({first, run.blocks, run.period});
    result.report +=
        fmt::format("run {}: {} blocks of {} nodes, n{}..n{}, {}", r, run.blocks, run.period, numbering.of(first),
                    numbering.of(repeats.node_at(run.begin + run.blocks * run.period - 1)),
                    graph.phase_name(graph.node(first).phase));
    const std::string from = repeats.module_of(run, 0);
    const std::string to = repeats.module_of(run, run.blocks - 1);
    if (!from.empty()) result.report += from == to ? ", in " + from : fmt::format(", {} .. {}", from, to);
    result.report += '\n';
  }
  for (NodeId n : graph.nodes()) {
    const std::string& note = std::as_const(notes)[n];
    if (graph.note(n, "repeat") == note) continue;
    graph.set_note(n, "repeat", note);
    result.changed = true;
  }
  return result;
}

PassResult FindRepeatsResult::summary() const {
  int64_t blocks = 0;
  int64_t covered = 0;
  for (const Run& run : runs) {
    blocks += run.blocks;
    covered += run.blocks * run.nodes;
  }
  return {.changed = changed,
          .counters = {{"runs", static_cast<int64_t>(runs.size())}, {"blocks", blocks}, {"nodes in them", covered}},
          .report = report};
}

}  // namespace shadowgraph
