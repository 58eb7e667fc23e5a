// Allocations and compute segments of each stage, by piece: the input of the memory and time simulation of a rank.
#pragma once

#include <cstdint>
#include <vector>

#include "shadowgraph/graph/ids.h"
#include "shadowgraph/plan/pipeline.h"

namespace shadowgraph {

// Bytes per rank of data sharded over `ranks`.
inline int64_t share_of(int64_t bytes, int64_t ranks) { return (bytes + ranks - 1) / ranks; }

// A slot is a storage of a stage. Each micro-batch has its own slots, except for weight gradients.
struct PieceEvent {
  static constexpr uint32_t kScratch = 0xFFFFFFFFU;  // allocated and freed immediately
  uint32_t slot = 0;
  int64_t bytes = 0;  // 0: freed
};

// Consecutive work of a piece: compute, or a collective within its stage.
struct PieceSegment {
  static constexpr int kComputes = -1;
  double seconds = 0;
  int64_t flops = 0;           // of compute segments
  int64_t bytes = 0;           // payload of a collective; memory traffic of compute
  int collective = kComputes;  // CollectiveKind
  uint32_t group = 0;          // index into StageParts::groups
};

using PieceSegments = ByPiece<std::vector<PieceSegment>>;

struct StagePart {
  PieceSegments segments;
  // `backward` is the unsplit alternative to the two gradient pieces. Optimizer slots belong to no micro-batch.
  ByPiece<std::vector<PieceEvent>> pieces;
  std::vector<PieceEvent> optimizer;
  std::vector<int64_t> resident;  // bytes of each storage that exists before the step
  std::vector<int64_t> experts;   // the same for expert-parallel parameters
  std::vector<int64_t> state;     // the same for optimizer state
  // Bytes of a resident buffer that gradients are accumulated into; 0: the first gradient becomes the buffer.
  int64_t gradient_buffer = 0;
  std::vector<int64_t> inputs;                           // of each input, per micro-batch
  std::vector<char> is_gradient;                         // by slot: whether it is a weight gradient
  std::vector<PieceEvent> received, received_gradients;  // received before forward, and before backward
  uint32_t slots = 0;
};

// The nodes of a stage in program order, by piece.
using StageNodes = ByPiece<std::vector<NodeId>>;

struct StageParts {
  std::vector<StagePart> stages;
  std::vector<StageNodes> nodes;             // by stage; empty for stages made from costs only
  size_t step_nodes = 0;                     // number of nodes of the step
  std::vector<std::vector<int64_t>> groups;  // process groups of the captured process, as ranks of its stage
  bool has_allocator = false;                // whether the device has a caching allocator
  int64_t workspace = 0;                     // bytes of cuBLAS, per thread
};

}  // namespace shadowgraph
