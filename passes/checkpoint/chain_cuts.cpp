// Finds where forward is cut into stages, and sets aside the tensors that would leave a stage without a cut.
//
// A cut is a place where all that comes later depends on the past by one tensor: the residual stream between two
// layers. Networks with long skips (U-Net) have few such places. There the tensor that lives longest is kept whatever
// the plan, and the search for cuts begins anew without it. Each try is linear in storages and nodes.
#include <fmt/format.h>

#include <algorithm>

#include "passes/checkpoint/chain_builder.h"

namespace shadowgraph {
namespace {

// A stage of more nodes than this and than this part of forward is looked into: what is set aside to cut it?
constexpr int32_t kLongStage = 24;
constexpr int32_t kLongPart = 8;
constexpr int kMostSetAside = 64;

}  // namespace

// Cuts forward where one tensor with a gradient is alive: all that comes later depends on the past by it alone.
// Tensors without gradients (masks, tables of positions) do not count, since nothing is computed again through them.
void ChainBuilder::cut() {
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

// By place, how many tensors begin (or end) to be between their making and the last write to them. A stage that runs again
// as a whole must not begin there: a mask is made empty, and drawn by the next node.
std::vector<int32_t> ChainBuilder::places_between_writes() const {
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

// Sets the tensor that lives longest inside the longest stage aside, if that stage is long. Returns whether there was
// one.
bool ChainBuilder::set_aside_in_longest_stage() {
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
std::string ChainBuilder::path_of(NodeId n) const {
  for (RegionId r = graph_.node(n).region; r.valid() && r != Graph::kRootRegion; r = graph_.region(r).parent) {
    if (graph_.region(r).kind != RegionKind::kModule) continue;
    const std::string_view path = graph_.text_or_empty(graph_.region(r).name);
    if (!path.empty()) return fmt::format(" in {}", path);
  }
  return {};
}

// Joins neighbours that keep least together, until there are as many stages as wanted: the solver's time grows with
// their cube.
void ChainBuilder::merge() {
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
void ChainBuilder::cut_at(std::span<const RegionId> regions) {
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
void ChainBuilder::set_aside_what_passes_over() {
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

}  // namespace shadowgraph
