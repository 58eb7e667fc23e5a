// A training step as a chain: where forward is cut, what each stage holds, and the ways to keep it.
//
// A cut is a place where all that comes later depends on the past by one tensor: the residual stream between two
// layers. Networks with long skips (U-Net) have few such places. There the tensor that lives longest is kept whatever
// the plan, and the search for cuts begins anew without it. Each try is linear in storages and nodes.
//
// A stage of a transformer saves some ten to twenty tensors. The solver's time grows with the ways of a stage, so at
// most options.most_options are kept: those near the lower hull of cost over bytes. The greedy walks cost the square of
// the groups, times a walk over the stage. No figure need be exact: whatever the solver makes of them is tried on the
// graph (checkpoint_curve.cpp).
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "passes/recompute/checkpoint_plan.h"
#include "passes/recompute/forward_checkpoints.h"
#include "shadowgraph/graph/analysis.h"
#include "shadowgraph/passes/recompute.h"
#include "shadowgraph/units.h"

namespace shadowgraph {

// What forward does with a storage.
struct ForwardLife {
  int32_t born = -1;  // places among the forward nodes
  int32_t last = -1;
  bool gradient = false;  // autograd goes through it
  bool saved = false;     // backward reads it
  bool set_aside = false;
};

namespace {

// A stage of more nodes than this and than this part of forward is looked into: what is set aside to cut it?
constexpr int32_t kLongStage = 24;
constexpr int32_t kLongPart = 8;
constexpr int kMostSetAside = 64;

}  // namespace

class ChainBuilder {
 public:
  static constexpr int32_t kNowhere = -1;

  // Without a cost of the caller's, FLOPs and bytes stand for time.
  ChainBuilder(const Graph& graph, const CheckpointChainOptions& options)
      : graph_(graph), options_(options), effects_(Effects::of(graph)), lives_(graph.storage_count()) {
    check_countable(graph_);
    if (!options_.cost) options_.cost = flops_and_bytes();
    if (options_.whole_stages) options_.most_options = 1;
    list_forward();
    find_lives();
  }

  // The order matters: stages must be known before what passes over them, and that before what each stage holds.
  CheckpointChain run(std::span<const RegionId> regions) {
    if (forward_.empty() || !has_backward_) return {};
    if (regions.empty()) {
      cut();
    } else {
      cut_at(regions);
    }
    set_aside_what_passes_over();
    add_up_backward();
    for (size_t i = 0; i < ends_.size(); ++i) describe(i);
    measure();
    // What is there before the first stage but given by the caller counts as the chain's input.
    std::unordered_set<StorageId> given;
    for (int32_t at = 0; at < ends_[0]; ++at) {
      graph_.for_each_input(forward_[size_t(at)], [&](ValueId v) {
        const Value& value = graph_.value(v);
        if (!value.storage.valid() || graph_.node(value.producer).target != target_of(Builtin::kInput)) return;
        if (given.insert(value.storage).second) chain_.input += graph_.storage(value.storage).bytes;
      });
    }
    return std::move(chain_);
  }

 private:
  using Storages = std::unordered_set<StorageId>;
  // One way to keep a stage.
  struct Way {
    // `bytes` stay on the device. `cost` is of what is computed again, and of the link's time that nothing hides.
    int64_t bytes = 0, cost = 0;
    Storages kept;
    Storages offloaded = {};
    int64_t exposed = 0;
  };

  int32_t begin_of(size_t stage) const { return stage == 0 ? 0 : ends_[stage - 1]; }

  void list_forward() {
    const IdMap<RegionId, RegionId> again = recompute_regions(graph_);
    for (const NodeId n : graph_.nodes()) {
      has_backward_ = has_backward_ || graph_.node(n).phase == Graph::kBackward;
      if (graph_.node(n).phase != Graph::kForward || graph_.is_placeholder(n) || is_end(graph_.node(n).target) ||
          std::as_const(again)[graph_.node(n).region].valid()) {
        continue;
      }
      place_[n] = static_cast<int32_t>(forward_.size());
      forward_.push_back(n);
      costs_.push_back(cost_of_node(n));
    }
  }

  // Throws Error where the costs of all nodes asked for add up to more than kMostCountable.
  int64_t cost_of_node(NodeId n) {
    const int64_t cost = options_.cost(graph_, n);
    total_cost_ = saturating_add(total_cost_, std::max<int64_t>(0, cost));
    if (cost < 0 || total_cost_ > kMostCountable) {
      throw Error(
          "the operators of this graph cost more than 2^58 together, which no plan of recomputing can be weighed by: "
          "is the file damaged?");
    }
    return cost;
  }

  // Lives are counted by storage, not by value: a view keeps its base.
  void find_lives() {
    for (size_t at = 0; at < forward_.size(); ++at) {
      const auto touch = [&](ValueId v) {
        const StorageId s = graph_.value(v).storage;
        if (!s.valid()) return;
        ForwardLife& life = lives_[s.index];
        if (graph_.storage(s).born == forward_[at]) life.born = static_cast<int32_t>(at);
        life.last = static_cast<int32_t>(at);
        life.gradient = life.gradient || graph_.value(v).requires_grad;
      };
      graph_.for_each_input(forward_[at], touch);
      graph_.for_each_output(forward_[at], touch);
    }
    // Everything after forward that reads a storage counts as backward: the optimizer does so for gradients alone.
    for (const NodeId n : graph_.nodes()) {
      if (is_forward(n) || graph_.is_placeholder(n)) continue;
      graph_.for_each_input(n, [&](ValueId v) {
        if (const StorageId s = graph_.value(v).storage; s.valid()) lives_[s.index].saved = true;
      });
    }
  }

  bool is_forward(NodeId n) const { return std::as_const(place_)[n] != kNowhere; }
  bool is_made(const ForwardLife& life) const { return life.born != kNowhere && !life.set_aside; }

  // Cuts forward where one tensor with a gradient is alive: all that comes later depends on the past by it alone.
  // Tensors without gradients (masks, tables of positions) do not count, since nothing is computed again through them.
  void cut() {
    const auto length = static_cast<int32_t>(forward_.size());
    const std::vector<int32_t> between = places_between_writes();
    // A skip connection over half of the network leaves a stage without a cut. Setting its tensor aside opens cuts
    // below it, so cutting begins anew.
    for (int set_aside = 0;; ++set_aside) {
      ends_.clear();
      // By place: tensors with gradients that are made there or before and read after it.
      std::vector<int32_t> over(size_t(length) + 1, 0);
      // One walk over lives gives the number that is alive at each place, by adding up births and deaths.
      for (const ForwardLife& life : lives_) {
        if (!is_made(life) || !life.gradient || life.last <= life.born) continue;
        ++over[size_t(life.born)];
        --over[size_t(life.last)];
      }
      int32_t open = 0, unfinished = 0;
      for (int32_t at = 0; at + 1 < length; ++at) {
        open += over[size_t(at)];
        unfinished += between[size_t(at)];
        if (open == 1 && unfinished == 0) ends_.push_back(at + 1);
      }
      ends_.push_back(length);
      if (set_aside == kMostSetAside || !set_aside_in_longest_stage()) break;
    }
    merge();
    fixed_.assign(ends_.size(), false);
  }

  // By place, how many tensors begin (or end) to be between their making and the last write to them. A stage that runs
  // again as a whole must not begin there: a mask is made empty, and drawn by the next node.
  std::vector<int32_t> places_between_writes() const {
    std::vector<int32_t> between(forward_.size() + 1, 0);
    if (!options_.whole_stages) return between;
    std::vector<int32_t> last_write(lives_.size(), kNowhere);
    for (size_t at = 0; at < forward_.size(); ++at) {
      for (const StorageWrite& write : effects_.writes(forward_[at])) {
        if (write.storage.index < lives_.size()) last_write[write.storage.index] = static_cast<int32_t>(at);
      }
    }
    for (size_t i = 0; i < lives_.size(); ++i) {
      if (lives_[i].born == kNowhere || last_write[i] <= lives_[i].born) continue;
      ++between[size_t(lives_[i].born)];
      --between[size_t(last_write[i])];
    }
    return between;
  }

  // Sets the tensor that lives longest inside the longest stage aside, if that stage is long. Returns whether it did.
  bool set_aside_in_longest_stage() {
    const auto length = static_cast<int32_t>(forward_.size());
    size_t longest = 0;
    for (size_t i = 0; i < ends_.size(); ++i) {
      if (ends_[i] - begin_of(i) > ends_[longest] - begin_of(longest)) longest = i;
    }
    const int32_t begin = begin_of(longest);
    const int32_t end = ends_[longest];
    if (end - begin <= std::max(kLongStage, length / kLongPart)) return false;
    StorageId found;
    int32_t most = (end - begin) / 4;  // less would not cut much
    for (uint32_t i = 0; i < lives_.size(); ++i) {
      const ForwardLife& life = lives_[i];
      if (!is_made(life) || !life.gradient || life.born < begin || life.last > end) continue;
      if (life.last - life.born > most) {
        most = life.last - life.born;
        found = StorageId(i);
      }
    }
    if (!found.valid()) return false;
    lives_[found.index].set_aside = true;
    const NodeId maker = graph_.storage(found).born;
    chain_.not_a_chain.push_back(fmt::format("{} bytes of {}{} are read {} nodes later: kept",
                                             graph_.storage(found).bytes, graph_.target(maker).name(), path_of(maker),
                                             most));
    return true;
  }

  // For messages: " in layers.3.mlp", "" outside all modules.
  std::string path_of(NodeId n) const {
    for (RegionId r = graph_.node(n).region; r.valid() && r != Graph::kRootRegion; r = graph_.region(r).parent) {
      if (graph_.region(r).kind != RegionKind::kModule) continue;
      const std::string_view path = graph_.text_or_empty(graph_.region(r).name);
      if (!path.empty()) return fmt::format(" in {}", path);
    }
    return {};
  }

  // Joins neighbours that keep least together, until there are as many stages as wanted: the solver's time grows with
  // their cube.
  void merge() {
    std::vector<int64_t> saved(ends_.size(), 1);
    const auto add_up = [&](size_t stage) {
      int64_t bytes = 0;
      for (int32_t at = begin_of(stage); at < ends_[stage]; ++at) bytes += born_saved_[size_t(at)];
      return bytes;
    };
    born_saved_.assign(forward_.size(), 0);
    for (uint32_t i = 0; i < lives_.size(); ++i) {
      const ForwardLife& life = lives_[i];
      if (is_made(life) && life.saved) born_saved_[size_t(life.born)] += graph_.storage(StorageId(i)).bytes;
    }
    for (size_t i = 0; i < ends_.size(); ++i) saved[i] = add_up(i);
    const auto join = [&](size_t stage) {  // with the next one
      saved[stage] += saved[stage + 1];
      saved.erase(saved.begin() + static_cast<std::ptrdiff_t>(stage) + 1);
      ends_.erase(ends_.begin() + static_cast<std::ptrdiff_t>(stage));
    };
    // A stage that saves nothing has nothing to compute again.
    for (size_t i = 0; i + 1 < ends_.size();) saved[i] == 0 ? join(i) : void(++i);
    if (ends_.size() > 1 && saved.back() == 0) join(ends_.size() - 2);
    while (static_cast<int64_t>(ends_.size()) > std::max<int64_t>(1, options_.most_stages)) {
      size_t least = 0;
      for (size_t i = 0; i + 1 < ends_.size(); ++i) {
        if (saved[i] + saved[i + 1] < saved[least] + saved[least + 1]) least = i;
      }
      join(least);
    }
  }

  // Takes regions as stages; what is between them cannot be dropped.
  void cut_at(std::span<const RegionId> regions) {
    IdMap<RegionId, int32_t> stage_at(kNowhere);
    for (size_t i = 0; i < regions.size(); ++i) stage_at[regions[i]] = static_cast<int32_t>(i);
    IdMap<RegionId, int32_t> inside(kNowhere);
    for (uint32_t i = 1; i < graph_.region_count(); ++i) {
      const RegionId id(i);
      const int32_t own = std::as_const(stage_at)[id];
      inside[id] = own >= 0 ? own : std::as_const(inside)[graph_.region(id).parent];
    }
    struct Extent {
      int32_t first = kNowhere, last = kNowhere;
      size_t region = 0;
    };
    std::vector<Extent> extents(regions.size());
    for (size_t at = 0; at < forward_.size(); ++at) {
      const int32_t region = std::as_const(inside)[graph_.node(forward_[at]).region];
      if (region < 0) continue;
      Extent& extent = extents[size_t(region)];
      if (extent.first == kNowhere) extent.first = static_cast<int32_t>(at);
      extent.last = static_cast<int32_t>(at);
      extent.region = static_cast<size_t>(region);
    }
    std::erase_if(extents, [](const Extent& extent) { return extent.first == kNowhere; });
    std::sort(extents.begin(), extents.end(), [](const Extent& a, const Extent& b) { return a.first < b.first; });
    int32_t end = 0;
    for (const Extent& extent : extents) {
      const std::string_view name = graph_.text_or_empty(graph_.region(regions[extent.region]).name);
      // Regions may be nested or interleaved; a chain needs them one after the other.
      if (extent.first < end) {
        chain_.not_a_chain.push_back(fmt::format("{} begins before the region before it ends: not a stage", name));
        continue;
      }
      if (extent.first > end) {
        ends_.push_back(extent.first);
        fixed_.push_back(true);
        names_.emplace_back();
      }
      end = extent.last + 1;
      ends_.push_back(end);
      fixed_.push_back(false);
      names_.emplace_back(name);
    }
    if (end < static_cast<int32_t>(forward_.size())) {
      ends_.push_back(static_cast<int32_t>(forward_.size()));
      fixed_.push_back(true);
      names_.emplace_back();
    }
  }

  // Sets aside tensors that are read beyond the stage after theirs. Dropping a stage would drop them, and a later stage
  // needs them, so they stay whatever the plan.
  void set_aside_what_passes_over() {
    stage_of_.resize(forward_.size());
    for (size_t i = 0; i < ends_.size(); ++i) {
      for (int32_t at = begin_of(i); at < ends_[i]; ++at) stage_of_[size_t(at)] = static_cast<int32_t>(i);
    }
    for (uint32_t i = 0; i < lives_.size(); ++i) {
      ForwardLife& life = lives_[i];
      if (!is_made(life)) continue;
      const int32_t stages = stage_of_[size_t(life.last)] - stage_of_[size_t(life.born)];
      if (stages == 0 || (stages == 1 && life.gradient)) continue;
      life.set_aside = true;
      if (life.gradient) {  // masks and tables of positions make no chain less of one
        const NodeId maker = graph_.storage(StorageId(i)).born;
        chain_.not_a_chain.push_back(fmt::format("{} bytes of {}{} are read {} stages later: kept",
                                                 graph_.storage(StorageId(i)).bytes, graph_.target(maker).name(),
                                                 path_of(maker), stages));
      }
    }
  }

  // A stage's backward is what differentiates its nodes.
  void add_up_backward() {
    backward_costs_.assign(ends_.size(), 0);
    for (const NodeId n : graph_.nodes()) {
      const NodeId of = graph_.node(n).forward;
      if (graph_.node(n).phase != Graph::kBackward || !of.valid() || graph_.is_erased(of)) continue;
      const int32_t place = std::as_const(place_)[of];
      if (place != kNowhere) backward_costs_[size_t(stage_of_[size_t(place)])] += cost_of_node(n);
    }
  }
  // A stage is called after what costs most in it, as people know it.
  std::string name_of(size_t stage) const {
    if (stage < names_.size() && !names_[stage].empty()) return names_[stage];
    int32_t most = begin_of(stage);
    for (int32_t at = begin_of(stage); at < ends_[stage]; ++at) {
      if (costs_[size_t(at)] > costs_[size_t(most)]) most = at;
    }
    const std::string path = path_of(forward_[size_t(most)]);
    return path.empty() ? fmt::format("stage {}", stage) : path.substr(4);
  }

  // Returns the cost of making these storages of a stage again, where `kept` are there: a walk backwards over the
  // stage, as checkpoint_plan.cpp selects nodes.
  int64_t cost_of(size_t stage, const Storages& wanted, const Storages& kept) const {
    Storages needed;
    for (const StorageId s : wanted) {
      if (!kept.contains(s)) needed.insert(s);
    }
    if (needed.empty()) return 0;
    int64_t cost = 0;
    for (int32_t at = ends_[stage]; at-- > begin_of(stage);) {
      const NodeId n = forward_[size_t(at)];
      bool runs = false;
      graph_.for_each_output(n, [&](ValueId v) { runs = runs || needed.contains(graph_.value(v).storage); });
      for (const StorageWrite& write : effects_.writes(n)) runs = runs || needed.contains(write.storage);
      if (!runs) continue;
      cost += costs_[size_t(at)];
      graph_.for_each_input(n, [&](ValueId v) {
        const StorageId s = graph_.value(v).storage;
        if (!s.valid() || kept.contains(s)) return;
        const ForwardLife& life = lives_[s.index];
        if (is_made(life) && life.born >= begin_of(stage)) needed.insert(s);
      });
    }
    return cost;
  }

  int64_t bytes_of(const Storages& storages) const {
    int64_t bytes = 0;
    for (const StorageId s : storages) bytes += graph_.storage(s).bytes;
    return bytes;
  }

  // Returns the most bytes of the stage's own tensors in its forward, if those in `stay` live to its end.
  int64_t peak_with(size_t stage, const Storages& stay) const {
    const int32_t begin = begin_of(stage);
    std::vector<int64_t> change(size_t(ends_[stage] - begin) + 1, 0);
    for (const auto& [s, life] : own_) {
      change[size_t(life.born - begin)] += graph_.storage(s).bytes;
      if (!stay.contains(s) && life.last < ends_[stage])
        change[size_t(life.last - begin) + 1] -= graph_.storage(s).bytes;
    }
    int64_t live = 0, most = 0;
    for (const int64_t by : change) most = std::max(most, live += by);
    return most;
  }

  // What it makes, what it hands on, what backward saves of it. All figures are of whole storages.
  void describe(size_t stage) {
    const int32_t begin = begin_of(stage), end = ends_[stage];
    own_.clear();
    Storages handed_on, saved;
    for (int32_t at = begin; at < end; ++at) {
      graph_.for_each_output(forward_[size_t(at)], [&](ValueId v) {
        const StorageId s = graph_.value(v).storage;
        if (!s.valid()) return;
        const ForwardLife& life = lives_[s.index];
        if (life.born != at || !is_made(life)) return;
        own_.emplace(s, life);
        if (life.last >= end) handed_on.insert(s);
        if (life.saved) saved.insert(s);
      });
    }
    Storages all = saved;
    all.insert(handed_on.begin(), handed_on.end());
    ChainStage result{.name = name_of(stage)};
    CheckpointStage part{.first = forward_[size_t(begin)],
                         .last = forward_[size_t(end) - 1],
                         .keep = {{}},
                         .offload = {{}},
                         .exposed = {0}};
    result.backward = backward_costs_[stage];
    // The last nodes of a stage may serve only the next stage; running again leaves them out.
    result.again = cost_of(stage, saved, {});
    result.forward = std::max(result.again, cost_of(stage, all, {}));
    result.output = bytes_of(handed_on);
    result.forward_peak = peak_with(stage, handed_on);
    result.keeping_peak = peak_with(stage, all);
    result.options = {{.saved = bytes_of(all)}};
    result.droppable = !fixed_[stage];
    if (result.droppable) find_options(stage, saved, handed_on, result, part);
    chain_.stages.push_back(std::move(result));
    chain_.parts.push_back(std::move(part));
  }

  // What one node makes is kept together: computing one of its results gives the others, too.
  std::vector<Storages> groups_of(size_t stage, const Storages& saved, const Storages& handed_on) const {
    std::vector<Storages> groups;
    std::unordered_map<int32_t, size_t> by_maker;
    for (int32_t at = begin_of(stage); at < ends_[stage]; ++at) {
      graph_.for_each_output(forward_[size_t(at)], [&](ValueId v) {
        const StorageId s = graph_.value(v).storage;
        if (!saved.contains(s) || handed_on.contains(s) || lives_[s.index].born != at) return;
        const auto [entry, added] = by_maker.try_emplace(at, groups.size());
        if (added) groups.emplace_back();
        groups[entry->second].insert(s);
      });
    }
    return groups;
  }

  // Walks down from all groups, or up from none, one group a step, and notes each way that it comes by.
  void walk_greedily(bool down, size_t stage, const Storages& saved, const Storages& handed_on,
                     std::span<const Storages> groups, std::vector<Way>& ways) const {
    // Every set on the way is a candidate, not only the last.
    const auto note = [&](const Storages& kept) {
      ways.push_back({bytes_of(kept), cost_of(stage, saved, kept), kept});
      return ways.back().cost;
    };
    const auto changed = [&](Storages kept, const Storages& group) {
      if (!down) kept.insert(group.begin(), group.end());
      for (const StorageId s : group) {
        if (down) kept.erase(s);
      }
      return kept;
    };
    Storages kept = handed_on;
    if (down) {
      for (const Storages& group : groups) kept.insert(group.begin(), group.end());
    }
    int64_t cost = note(kept);
    std::vector<const Storages*> left;
    for (const Storages& group : groups) left.push_back(&group);
    while (!left.empty()) {
      size_t best = 0;
      double best_ratio = 0;
      for (size_t i = 0; i < left.size(); ++i) {
        const Storages next = changed(kept, *left[i]);
        const auto difference = static_cast<double>(std::abs(cost_of(stage, saved, next) - cost));
        const auto bytes = static_cast<double>(std::max<int64_t>(1, bytes_of(*left[i])));
        // Least cost for its bytes goes first; most cost for its bytes comes first.
        const double ratio = down ? bytes / (difference + 1) : (difference + 1) / bytes;
        if (i == 0 || ratio > best_ratio) best = i, best_ratio = ratio;
      }
      kept = changed(kept, *left[best]);
      cost = note(kept);
      left.erase(left.begin() + static_cast<std::ptrdiff_t>(best));
    }
  }

  // Gives each way two more: one that sends to the host as much as computing hides, and one that sends all. A tensor
  // that waits there costs no memory here and no computing, only what the link takes beyond the time of computing.
  void send_to_host(size_t stage, int64_t backward, std::span<const Storages> groups, std::vector<Way>& ways) const {
    int64_t running = 0;  // forward once, whatever is run again
    for (int32_t at = begin_of(stage); at < ends_[stage]; ++at) running += costs_[size_t(at)];
    std::vector<const Storages*> may_leave;
    for (const Storages& group : groups) {
      if (std::all_of(group.begin(), group.end(),
                      [&](StorageId s) { return host_trip(graph_, effects_, s).last_forward.valid(); })) {
        may_leave.push_back(&group);
      }
    }
    // Large tensors first: fewer copies for the same bytes.
    std::stable_sort(may_leave.begin(), may_leave.end(),
                     [&](const Storages* a, const Storages* b) { return bytes_of(*a) > bytes_of(*b); });
    const size_t here = ways.size();
    for (size_t i = 0; i < here; ++i) {
      for (const bool hidden : {true, false}) {
        Way sent = ways[i];
        int64_t bytes = 0;
        for (const Storages* group : may_leave) {
          if (!std::all_of(group->begin(), group->end(), [&](StorageId s) { return sent.kept.contains(s); })) continue;
          const int64_t more = bytes + bytes_of(*group);
          if (hidden && exposed_transfer(more, options_.link, running, backward) != 0) continue;
          bytes = more;
          sent.offloaded.insert(group->begin(), group->end());
        }
        if (bytes == 0) continue;
        sent.exposed = exposed_transfer(bytes, options_.link, running, backward);
        sent.bytes -= bytes;
        sent.cost += sent.exposed;
        ways.push_back(std::move(sent));
      }
    }
  }

  // Leaves the ways that no other beats in both cost and bytes, the cheapest first. `all` are the bytes of keeping all.
  std::vector<Way> best_of(std::vector<Way> ways, int64_t all) const {
    std::stable_sort(ways.begin(), ways.end(),
                     [](const Way& a, const Way& b) { return a.cost != b.cost ? a.cost < b.cost : a.bytes < b.bytes; });
    std::vector<Way> front;
    for (Way& way : ways) {
      if ((way.cost > 0 || !way.offloaded.empty()) && way.bytes < (front.empty() ? all : front.back().bytes)) {
        front.push_back(std::move(way));
      }
    }
    // The one between two others that is least below the line through them goes, while there are too many.
    while (static_cast<int64_t>(front.size()) > std::max<int64_t>(1, options_.most_options - 1)) {
      size_t least = 0;
      double least_loss = 0;
      for (size_t i = 0; i + 1 < front.size(); ++i) {  // the last keeps nothing, and stays
        const double from_bytes = static_cast<double>(i == 0 ? all : front[i - 1].bytes);
        const double from_cost = static_cast<double>(i == 0 ? 0 : front[i - 1].cost);
        const double loss =
            (from_bytes - static_cast<double>(front[i].bytes)) * (static_cast<double>(front[i + 1].cost) - from_cost);
        if (i == 0 || loss < least_loss) least = i, least_loss = loss;
      }
      front.erase(front.begin() + static_cast<std::ptrdiff_t>(least));
    }
    return front;
  }

  // Finds ways to keep a part of what backward reads. There are 2^n sets; two greedy walks find those that matter, one
  // dropping from all, one adding to none.
  void find_options(size_t stage, const Storages& saved, const Storages& handed_on, ChainStage& result,
                    CheckpointStage& part) const {
    const std::vector<Storages> groups = groups_of(stage, saved, handed_on);
    std::vector<Way> ways;
    for (const bool down : {true, false}) walk_greedily(down, stage, saved, handed_on, groups, ways);
    if (options_.link > 0) send_to_host(stage, result.backward, groups, ways);
    const auto listed = [](const Storages& storages) {
      std::vector<StorageId> list(storages.begin(), storages.end());
      std::sort(list.begin(), list.end());
      return list;
    };
    for (const Way& way : best_of(std::move(ways), result.options[0].saved)) {
      result.options.push_back({.saved = way.bytes, .cost = way.cost, .offloaded = bytes_of(way.offloaded)});
      part.keep.push_back(listed(way.kept));
      part.offload.push_back(listed(way.offloaded));
      part.exposed.push_back(way.exposed);
    }
  }

  // What is resident when a stage's backward begins, and its peak, from the graph's own lives. Backward meets stages
  // from the last to the first.
  void measure() {
    const size_t count = chain_.stages.size();
    std::vector<int64_t> live(count, 0);
    int64_t others = 0;
    const auto stage_of = [&](StorageId s) {
      const ForwardLife& life = lives_[s.index];
      return is_made(life) ? stage_of_[size_t(life.born)] : kNowhere;
    };
    std::unordered_map<NodeId, std::vector<StorageId>> births;
    for (uint32_t i = 0; i < graph_.storage_count(); ++i) {
      const Storage& storage = graph_.storage(StorageId(i));
      const bool there = !storage.born.valid() || graph_.is_erased(storage.born) || graph_.is_placeholder(storage.born);
      if (there) {
        others += storage.bytes;
      } else {
        births[storage.born].push_back(StorageId(i));
      }
      if (lives_[i].set_aside) chain_.elsewhere += storage.bytes;
    }
    chain_.elsewhere += others;
    int32_t stage = kNowhere;
    std::vector<bool> begun(count, false);
    for (const NodeId n : graph_.nodes()) {
      const bool backward = graph_.node(n).phase == Graph::kBackward;
      if (backward) {
        const NodeId of = graph_.node(n).forward;
        const int32_t place = of.valid() && !graph_.is_erased(of) ? std::as_const(place_)[of] : kNowhere;
        if (place != kNowhere && (stage == kNowhere || stage_of_[size_t(place)] < stage)) {
          stage = stage_of_[size_t(place)];
        }
        if (stage == kNowhere) stage = static_cast<int32_t>(count) - 1;
        if (!begun[size_t(stage)]) {
          // What is there, but for what earlier stages and this one keep, and what is not of the chain.
          int64_t resident = others - chain_.elsewhere;
          for (size_t later = size_t(stage) + 1; later < count; ++later) resident += live[later];
          chain_.stages[size_t(stage)].resident = std::max<int64_t>(0, resident);
          begun[size_t(stage)] = true;
        }
      }
      if (const auto found = births.find(n); found != births.end()) {
        for (const StorageId s : found->second) {
          const int32_t of = stage_of(s);
          (of == kNowhere ? others : live[size_t(of)]) += graph_.storage(s).bytes;
        }
      }
      if (backward) {
        int64_t bytes = others - chain_.elsewhere;
        for (size_t own = size_t(stage); own < count; ++own) bytes += live[own];
        ChainStage& at = chain_.stages[size_t(stage)];
        at.backward_peak = std::max(at.backward_peak, bytes);
      }
      // Deaths after the node: it was still alive while the node ran.
      for (const StorageId s : graph_.frees(n)) {
        const int32_t of = stage_of(s);
        (of == kNowhere ? others : live[size_t(of)]) -= graph_.storage(s).bytes;
      }
    }
    // A stage whose backward is nowhere needs at least what it kept.
    for (ChainStage& at : chain_.stages) at.backward_peak = std::max(at.backward_peak, at.options[0].saved);
  }

  const Graph& graph_;
  CheckpointChainOptions options_;
  const Effects effects_;
  std::vector<ForwardLife> lives_;  // by storage
  std::vector<NodeId> forward_;
  std::vector<int64_t> costs_;  // of these
  int64_t total_cost_ = 0;
  IdMap<NodeId, int32_t> place_{kNowhere};
  bool has_backward_ = false;
  std::vector<int32_t> ends_;  // of stages, the first place after each
  std::vector<bool> fixed_;
  std::vector<std::string> names_;
  std::vector<int32_t> stage_of_;        // by place
  std::vector<int64_t> born_saved_;      // by place
  std::vector<int64_t> backward_costs_;  // by stage
  // What the stage that is being described makes itself.
  std::unordered_map<StorageId, ForwardLife> own_;
  CheckpointChain chain_;
};

CheckpointChain CheckpointChain::of(const Graph& graph, std::span<const RegionId> regions,
                                    const CheckpointChainOptions& options) {
  if (is_forward_alone(graph) && has_gradients(graph)) {
    CheckpointChainOptions whole = options;
    whole.whole_stages = true;
    return of(assumed_step(graph), regions, whole);
  }
  return ChainBuilder(graph, options).run(regions);
}

namespace {

// By stage: whether it is among those that are run again.
// A stage that is dropped and also keeps a part keeps it within the second run: nothing of it goes to the host.
std::vector<bool> dropped_by(const ChainPlan& plan) {
  std::vector<bool> dropped(plan.option.size(), false);
  for (const ChainSegment& segment : plan.segments) {
    for (size_t i = segment.first; i <= segment.last; ++i) dropped[i] = true;
  }
  return dropped;
}

}  // namespace

// Turns a plan into segments of nodes. A dropped range is one segment, and a stage that keeps a part is one within or
// beside it.
std::vector<CheckpointSegment> CheckpointChain::segments(const ChainPlan& plan) const {
  std::vector<CheckpointSegment> segments;
  for (const ChainSegment& dropped : plan.segments) {
    std::string name = stages[dropped.first].name;
    if (dropped.last != dropped.first) name += " .. " + stages[dropped.last].name;
    segments.push_back({.name = std::move(name),
                        .regions = {},
                        .first = parts[dropped.first].first,
                        .last = parts[dropped.last].last});
  }
  const std::vector<bool> dropped = dropped_by(plan);
  for (size_t i = 0; i < stages.size(); ++i) {
    const size_t option = plan.option[i];
    if (option == 0) continue;
    segments.push_back({.name = stages[i].name,
                        .regions = {},
                        .first = parts[i].first,
                        .last = parts[i].last,
                        .keep = parts[i].keep[option]});
    if (!dropped[i]) segments.back().offload = parts[i].offload[option];
  }
  return segments;
}

int64_t CheckpointChain::exposed(const ChainPlan& plan) const {
  const std::vector<bool> dropped = dropped_by(plan);
  int64_t cost = 0;
  for (size_t i = 0; i < stages.size(); ++i) {
    if (!dropped[i]) cost += parts[i].exposed[plan.option[i]];
  }
  return cost;
}

}  // namespace shadowgraph
