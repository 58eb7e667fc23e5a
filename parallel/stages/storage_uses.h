// Says when each stage of a step looks at a storage first and last, by piece.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "parallel/stages/stage_assignment.h"

namespace shadowgraph {

struct StageUse {
  static constexpr uint32_t kNever = 0xFFFFFFFFU;
  int32_t stage = 0;
  // Place in program order of the last node of each piece that looks at it: forward, I, W.
  std::array<uint32_t, 3> last = {kNever, kNever, kNever};
  bool in_forward() const { return last[0] != kNever; }
  bool in_backward() const { return last[1] != kNever || last[2] != kNever; }
};

class StorageUses {
 public:
  StorageUses(const ProgramCosts& costs, const StageAssignment& assignment);
  // By stage, rising.
  const std::vector<StageUse>& of(StorageId storage) const { return uses_[storage]; }

 private:
  void note(const ProgramCosts& costs, const StageAssignment& assignment, NodeId node, StorageId storage);

  IdMap<StorageId, std::vector<StageUse>> uses_;
};

}  // namespace shadowgraph
