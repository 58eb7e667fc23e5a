#include "core/deferred/snapshots.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <iterator>

#include "core/fake/known_contents.h"

namespace shadowgraph {
namespace {

// A tensor and its place in the maps cost about this much beside its bytes.
int64_t cost_of(const at::Tensor& bytes) { return static_cast<int64_t>(bytes.nbytes()) + 512; }

}  // namespace

Snapshots::Snapshot Snapshots::latest(StorageId storage, uint32_t before) const {
  const auto history = histories_.find(storage);
  if (history == histories_.end()) return {};
  const auto& entries = history->second.entries;
  const auto later = entries.upper_bound(before);
  if (later == entries.begin()) return {};
  const auto found = std::prev(later);
  return {found->first, found->second.bytes};
}

uint32_t Snapshots::spacing(StorageId storage) const {
  const auto history = histories_.find(storage);
  return history == histories_.end() ? kSpacing : history->second.spacing;
}

void Snapshots::drop(History& history, std::map<uint32_t, Entry>::iterator entry) {
  const int64_t cost = cost_of(entry->second.bytes);
  history.bytes -= cost;
  bytes_ -= cost;
  if (entry->first == history.passing) history.passing = 0;
  history.entries.erase(entry);
}

void Snapshots::thin(History& history) {
  history.spacing *= 2;
  bool goes = history.entries.size() == 1;
  for (auto entry = history.entries.begin(); entry != history.entries.end(); goes = !goes) {
    const auto next = std::next(entry);
    if (goes) drop(history, entry);
    entry = next;
  }
}

void Snapshots::keep(StorageId storage, uint32_t position, const c10::Storage& contents, bool stays) {
  const auto size = static_cast<int64_t>(contents.nbytes());
  if (size == 0 || size > kMostBytes / 4 || !contents.device().is_cpu()) return;
  History& history = histories_[storage];
  if (!stays && history.passing != 0) drop(history, history.entries.find(history.passing));
  const auto [entry, added] = history.entries.try_emplace(position);
  if (!added) {
    entry->second.stays |= stays;
    if (stays && history.passing == position) history.passing = 0;
    return;
  }
  if (!stays) history.passing = position;
  const RealCalls real;
  entry->second = {at::empty({size}, at::TensorOptions().dtype(at::kByte).device(at::kCPU)), stays};
  std::memcpy(entry->second.bytes.mutable_data_ptr(), contents.data(), static_cast<size_t>(size));
  history.bytes += cost_of(entry->second.bytes);
  bytes_ += cost_of(entry->second.bytes);
  while (bytes_ > kMostBytes) {
    thin(std::ranges::max_element(histories_, {}, [](const auto& one) { return one.second.bytes; })->second);
  }
}

}  // namespace shadowgraph
