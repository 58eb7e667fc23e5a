#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "parallel/stages/forward_line.h"
#include "parallel/stages/stage_parts.h"
#include "profiler/program_costs.h"
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/plan/pipeline.h"

namespace shadowgraph {

struct StageUse {
  static constexpr uint32_t kNever = 0xFFFFFFFFU;
  int32_t stage = 0;
  // Program order of the last node that uses the storage, for each piece: forward, I, W.
  std::array<uint32_t, 3> last = {kNever, kNever, kNever};
  bool in_backward() const { return last[1] != kNever || last[2] != kNever; }
};

class StorageUses {
 public:
  StorageUses(const ProgramCosts& costs, const StageAssignment& assignment);
  // Sorted by stage.
  const std::vector<StageUse>& of(StorageId storage) const { return uses_[storage]; }

 private:
  void note(const ProgramCosts& costs, const StageAssignment& assignment, NodeId node, StorageId storage);

  IdMap<StorageId, std::vector<StageUse>> uses_;
};

// Maps storages of the optimizer step (state, averages, temporaries) to the parameters they belong to.
class OptimizerShare {
 public:
  explicit OptimizerShare(const ProgramCosts& costs);
  // Storages of parameters; empty for shared data such as the norm of all gradients.
  const std::vector<StorageId>& parameters_of(StorageId storage) const;

 private:
  uint32_t root(uint32_t storage) const;
  void join(StorageId a, StorageId b);
  void join_node(const Graph& graph, NodeId node);

  mutable std::vector<uint32_t> parent_;
  std::vector<std::vector<StorageId>> by_root_;
};

// Records what each stage allocates and frees in each of its pieces.
class StageMemory {
 public:
  StageMemory(const ProgramCosts& costs, const ForwardLine& line, const StageAssignment& assignment);

  // Fills in the bytes in `figures`, which has one element per stage.
  StageParts parts(std::vector<StageCosts>& figures, std::vector<std::string>& notes);
  // Valid after parts().
  const std::vector<TiedParameter>& tied() const { return tied_; }
  // The stages that hold a storage of the optimizer step; all of them if it belongs to no parameter.
  std::vector<int32_t> holders_by_share(StorageId storage) const;

 private:
  struct TimedEvent {
    uint32_t piece;  // forward, I, W
    uint32_t order;
    uint8_t rank;  // order at a node: allocations, scratch, frees
    PieceEvent event;
    uint32_t whole_order;  // order if backward is not split
  };
  static TimedEvent timed(uint32_t piece, uint32_t order, uint8_t rank, const PieceEvent& event) {
    return {piece, order, rank, event, order};
  }
  static TimedEvent free_of(uint32_t slot, uint32_t born, uint32_t order, const StageUse& use);

  void place_resident(StorageId storage);
  void place_existing_gradient(StorageId storage);
  void place_allocated(StorageId storage);
  void place_optimizer(StorageId storage);
  void send(StorageId storage, int32_t from, int32_t to, bool forward);
  void add_lifetime(StorageId storage, int32_t stage, const StageUse& use, bool held);
  void place_scratch();
  std::vector<int32_t> stages_using(StorageId storage) const;
  bool is_gradient_of_tied(StorageId storage) const;
  uint32_t new_slot(int32_t stage, bool is_gradient);
  void write_pieces();

  const ProgramCosts& costs_;
  const Graph& graph_;
  const ForwardLine& line_;
  const StageAssignment& assignment_;
  const StorageUses uses_;
  const OptimizerShare share_;
  std::vector<std::vector<TimedEvent>> events_;            // by stage
  std::vector<std::vector<TimedEvent>> optimizer_events_;  // by stage
  StageParts parts_;
  std::vector<TiedParameter> tied_;
  std::vector<StageCosts>* figures_ = nullptr;
  std::vector<std::string>* notes_ = nullptr;
};

}  // namespace shadowgraph
