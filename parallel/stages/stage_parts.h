// Has what each stage of a step allocates and frees, piece by piece: what the memory of a rank is played from.
#pragma once

#include <cstdint>
#include <vector>

#include "shadowgraph/graph/ids.h"
#include "shadowgraph/plan/pipeline.h"

namespace shadowgraph {

// What each of `ranks` has of bytes that are cut over them.
inline int64_t share_of(int64_t bytes, int64_t ranks) { return (bytes + ranks - 1) / ranks; }

// A slot is a storage of a stage. Each micro-batch has slots of its own, gradients of weights have one for all.
struct PieceEvent {
  static constexpr uint32_t kScratch = 0xFFFFFFFFU;  // taken and given back at once
  uint32_t slot = 0;
  int64_t bytes = 0;  // 0: freed
};

// What a piece does one after another: computing, or a collective of the processes of its stage.
struct PieceSegment {
  static constexpr int kComputes = -1;
  double seconds = 0;
  int64_t flops = 0;           // of computing, as are the bytes moved
  int64_t bytes = 0;           // of a collective: payload
  int collective = kComputes;  // CollectiveKind
  uint32_t group = 0;          // in StageParts::groups
};

using PieceSegments = ByPiece<std::vector<PieceSegment>>;

struct StagePart {
  PieceSegments segments;
  // Backward as a whole, and in two pieces. What the optimizer takes is in slots of no micro-batch.
  ByPiece<std::vector<PieceEvent>> pieces;
  std::vector<PieceEvent> optimizer;
  std::vector<int64_t> resident;  // bytes of each storage that is there from the beginning
  std::vector<int64_t> experts;   // the same of parameters of experts that are on several ranks
  std::vector<int64_t> state;     // the same of the optimizer's
  // Bytes of a buffer that gradients are added to, which is there from the beginning; 0: the first one stays.
  int64_t gradient_buffer = 0;
  std::vector<int64_t> inputs;                           // of each input, a micro-batch
  std::vector<char> is_gradient;                         // by slot: of a weight
  std::vector<PieceEvent> received, received_gradients;  // what neighbours send, before forward and before backward
  uint32_t slots = 0;
};

// The nodes of a stage in program order, by piece.
using StageNodes = ByPiece<std::vector<NodeId>>;

struct StageParts {
  std::vector<StagePart> stages;
  std::vector<StageNodes> nodes;             // by stage; none where only figures are known
  size_t step_nodes = 0;                     // how many the step has
  std::vector<std::vector<int64_t>> groups;  // of processes, as the captured one has them: ranks of its stage
  bool has_allocator = false;                // the device has a caching one
  int64_t workspace = 0;                     // of cuBLAS, for each thread
};

}  // namespace shadowgraph
