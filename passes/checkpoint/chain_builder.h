// Builds the chain of a training step: where forward is cut (chain_cuts.cpp), what each stage holds
// (checkpoint_chain.cpp), and the ways to keep it (chain_options.cpp). Internal to checkpoint_chain.cpp.
#pragma once

#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "shadowgraph/analysis/effects.h"
#include "shadowgraph/passes/checkpoint_curve.h"

namespace shadowgraph {

// What forward does with a storage.
struct ForwardLife {
  int32_t born = -1;  // places among the forward nodes
  int32_t last = -1;
  bool gradient = false;  // autograd goes through it
  bool saved = false;     // backward reads it
  bool set_aside = false;
};

class ChainBuilder {
 public:
  static constexpr int32_t kNowhere = -1;

  ChainBuilder(const Graph& graph, const CheckpointChainOptions& options);
  CheckpointChain run(std::span<const RegionId> regions);

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
  // What forward is: its nodes in order, what they cost, and how long storages live in it.
  void list_forward();
  // Throws Error where the costs of all nodes asked for add up to more than kMostCountable.
  int64_t cost_of_node(NodeId n);
  bool is_forward(NodeId n) const { return std::as_const(place_)[n] != kNowhere; }
  void find_lives();
  bool is_made(const ForwardLife& life) const { return life.born != kNowhere && !life.set_aside; }

  // ---- Where to cut
  void cut();
  std::vector<int32_t> places_between_writes() const;
  bool set_aside_in_longest_stage();
  std::string path_of(NodeId n) const;
  void merge();
  void cut_at(std::span<const RegionId> regions);
  void set_aside_what_passes_over();
  void add_up_backward();

  // ---- One stage
  std::string name_of(size_t stage) const;
  int64_t cost_of(size_t stage, const Storages& wanted, const Storages& kept) const;
  int64_t bytes_of(const Storages& storages) const;
  int64_t peak_with(size_t stage, const Storages& stay) const;
  void describe(size_t stage);

  // ---- Ways to keep a stage
  std::vector<Storages> groups_of(size_t stage, const Storages& saved, const Storages& handed_on) const;
  void walk_greedily(bool down, size_t stage, const Storages& saved, const Storages& handed_on,
                     std::span<const Storages> groups, std::vector<Way>& ways) const;
  void send_to_host(size_t stage, int64_t backward, std::span<const Storages> groups, std::vector<Way>& ways) const;
  std::vector<Way> best_of(std::vector<Way> ways, int64_t all) const;
  void find_options(size_t stage, const Storages& saved, const Storages& handed_on, ChainStage& result,
                    CheckpointStage& part) const;

  // ---- What backward holds, from the graph's own lives
  void measure();

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

}  // namespace shadowgraph
