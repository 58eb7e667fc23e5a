// One collective of n processes.
//
// The payload B is the whole tensor: what all_reduce, broadcast, reduce_scatter and all_to_all are given, and what
// all_gather gives. For gather and scatter it is n tensors.
//
//                                    wire bytes    hops          ring of all processes, unless said otherwise
//     all_gather, reduce_scatter     (n-1)/n B     n-1
//     all_reduce, ring               2 (n-1)/n B   2 (n-1)
//     all_reduce, tree               2 B           up and down a tree: chain in a block, binary above
//     all_to_all, gather, scatter    (n-1)/n B     n-1           direct: each pair by its own link
//     broadcast, reduce              B             n-1           pipelined
//     send, receive                  B             1
//     barrier                        0             as all_reduce
//
//     seconds = base + sum of the hops' latencies + wire bytes / bandwidth;   0 for one process
//
// all_reduce takes the faster of ring and tree, as NCCL's tuning does. Where a group spans blocks, a ring crosses from
// one to the next on as many links as the group has processes in a block. So bandwidth = min(inner, outer x processes).
#pragma once

#include <cstdint>
#include <string_view>

#include "shadowgraph/export.h"
#include "shadowgraph/process_group.h"
#include "shadowgraph/profile/collective_kind.h"
#include "shadowgraph/profile/interconnect.h"

namespace SHADOWGRAPH_API shadowgraph {

enum class CollectiveAlgorithm : uint8_t { kNone, kRing, kTree, kDirect, kTable };
std::string_view to_string(CollectiveAlgorithm algorithm);

struct CollectiveCost {
  int64_t wire = 0;    // bytes that a process sends, or receives, the larger; of the busiest process
  double latency = 0;  // seconds; of a table: all of it
  double transfer = 0;
  CollectiveAlgorithm algorithm = CollectiveAlgorithm::kNone;
  double seconds() const { return latency + transfer; }
};

// `group` without ranks: they are taken for neighbours, 0 to n - 1. `peer` of send and receive, a rank of the group;
// below 0: the next.
CollectiveCost collective_cost(CollectiveKind kind, int64_t payload, const ProcessGroupInfo& group,
                               const Interconnect& links, int64_t peer = -1);
// Without links: the ring's bytes, no seconds.
int64_t wire_bytes(CollectiveKind kind, int64_t payload, int64_t processes);

}  // namespace shadowgraph
