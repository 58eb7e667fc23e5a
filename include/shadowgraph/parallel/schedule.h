// In which order the ranks of a pipeline work on stages and micro-batches.
//
//     const PipelineSchedule schedule = PipelineSchedule::named("1f1b", {.ranks = 4, .microbatches = 8});
//     schedule.with_transfers().to_csv();             // as torch.distributed.pipelining reads it ("compute_comms")
//     PipelineSchedule::read_csv_file("plan.csv");
//
// Stages are numbered in the order of forward; several may lie on one rank. A rank does its actions in order. The
// orders are those of torch.distributed.pipelining (2.13), and tests compare them action by action. It has no v_half and
// v_min, and runs them from their CSV.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shadowgraph/export.h"

namespace SHADOWGRAPH_API shadowgraph {

enum class PipelineWork : uint8_t {
  kForward,          // F
  kBackward,         // B: gradients of inputs and weights
  kInputGradient,    // I
  kWeightGradient,   // W
  kSendForward,      // SEND_F: the output, to the next stage
  kReceiveForward,   // RECV_F
  kSendBackward,     // SEND_B: the input's gradient, to the stage before
  kReceiveBackward,  // RECV_B
  kUnshard,          // UNSHARD: parameters are gathered; of the stage, not of a micro-batch
  kReshard,          // RESHARD
  kReduceGradients,  // REDUCE_GRAD
  // Until the transfer or the reduction of an earlier action is over. torch has them since 2.15.
  kWaitSendForward,   // WAIT_SEND_F
  kWaitSendBackward,  // WAIT_SEND_B
  kWaitReduce,        // WAIT_REDUCE_GRAD
};
constexpr int kPipelineWorks = 14;

struct PipelineAction {
  PipelineWork work = PipelineWork::kForward;
  bool overlaps_next = false;  // computed together with the action behind it: (..;..)OVERLAP_F_B
  int32_t stage = 0;
  int32_t microbatch = -1;  // below 0: none
  friend bool operator==(const PipelineAction&, const PipelineAction&) = default;
};
// "2F0", "3SEND_B1", "0UNSHARD".
std::string to_string(const PipelineAction& action);
// Whether it computes: F, B, I or W.
bool computes(const PipelineAction& action);
// Whether it sends or receives.
bool transfers(const PipelineAction& action);

struct PipelineSize {
  int32_t ranks = 1;
  int32_t stages_per_rank = 1;
  int32_t microbatches = 1;
};

class PipelineSchedule {
 public:
  using Rows = std::vector<std::vector<PipelineAction>>;  // by rank

  // Throws Error for an order that cannot be run, and names the action. A stage may be on two ranks, a micro-batch be
  // computed twice or not at all, or ranks wait for each other.
  PipelineSchedule(std::string name, Rows rows);

  // One stage a rank:      "gpipe", "1f1b"
  // several, r, r+n, ..:   "interleaved", "looped_bfs", "zero_bubble" (with one stage a rank: ZB1P)
  // two, r and 2n-1-r:     "zbv", "dualpipe_v"; "v_half", "v_min": half, a third of 1F1B's activations
  // Throws Error for sizes that the schedule is not made for.
  static PipelineSchedule named(std::string_view name, const PipelineSize& size);
  static std::vector<std::string> names();
  // How many stages each rank has: the number given, where the schedule leaves it open.
  static int32_t stages_per_rank(std::string_view name, int32_t asked);

  // A row a rank, a cell an action; empty cells are passed over. With transfers or without. Throws ParseError.
  static PipelineSchedule from_csv(std::string_view text, const std::string& name);
  static PipelineSchedule read_csv_file(const std::string& path);  // throws FileError, too
  std::string to_csv() const;

  // Sends and receives between ranks, each as early as torch puts it. What has some already is given back as it is.
  PipelineSchedule with_transfers() const;
  // A wait for each send that has none, where torch puts it: behind the backward of its micro-batch, else at the end.
  // torch from 2.15 on wants them where a CSV has transfers; earlier ones know no such action.
  PipelineSchedule with_send_waits() const;

  const std::string& name() const { return name_; }
  int32_t ranks() const { return static_cast<int32_t>(rows_->size()); }
  int32_t stages() const { return static_cast<int32_t>(rank_of_.size()); }
  int32_t microbatches() const { return microbatches_; }
  bool has_transfers() const { return has_transfers_; }
  int32_t rank_of(int32_t stage) const { return rank_of_[static_cast<size_t>(stage)]; }
  std::span<const PipelineAction> of(int32_t rank) const { return (*rows_)[static_cast<size_t>(rank)]; }

 private:
  std::string name_;
  std::shared_ptr<const Rows> rows_;  // of all copies
  std::vector<int32_t> rank_of_;
  int32_t microbatches_ = 0;
  bool has_transfers_ = false;
};

}  // namespace shadowgraph
