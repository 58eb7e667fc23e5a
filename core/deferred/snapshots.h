// Keeps contents of storages at places in the program, so that what is read later need not begin at the beginning.
//
//     for (int i = 0; i < 100'000; ++i) {
//       total.add_(x[i]);
//       if (total.max().item<float>() > 1) break;   // runs what came since the last read
//     }
//
// A storage with a long history gets a snapshot every `spacing` writes, wherever it is computed, and one where it was
// computed last. All snapshots of a record take no more than kMostBytes. Beyond that, those of the storage that has
// most are thinned to every second one. So a read costs `spacing` writes at most, and large storages have few snapshots
// or none.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <unordered_map>

#include "shadowgraph/graph/ids.h"

namespace shadowgraph {

class Snapshots {
 public:
  static constexpr int64_t kMostBytes = int64_t{64} << 20;
  static constexpr uint32_t kSpacing = 64;
  // A storage must have seen so many writes before a run leaves a snapshot at its end.
  static constexpr uint32_t kLongHistory = 16;

  struct Snapshot {
    uint32_t position = 0;  // as the node with this id finds it
    at::Tensor bytes;       // all of the storage; undefined: there is none
  };
  // Returns the latest snapshot that is not later than `before`.
  Snapshot latest(StorageId storage, uint32_t before) const;
  uint32_t spacing(StorageId storage) const;
  // Copies `contents`. A copy that does not stay goes when the next such copy of the storage comes.
  void keep(StorageId storage, uint32_t position, const c10::Storage& contents, bool stays);
  int64_t bytes() const { return bytes_; }

 private:
  struct Entry {
    at::Tensor bytes;
    bool stays = false;
  };
  struct History {
    std::map<uint32_t, Entry> entries;
    uint32_t spacing = kSpacing;
    uint32_t passing = 0;  // the position of the one that does not stay; 0: none
    int64_t bytes = 0;
  };
  void drop(History& history, std::map<uint32_t, Entry>::iterator entry);
  void thin(History& history);

  std::unordered_map<StorageId, History> histories_;
  int64_t bytes_ = 0;
};

}  // namespace shadowgraph
