// Graphs replayed with kernels made of their nodes.
//
//     const auto groups = group_kernels(graph);             // finds groups; kernels are compiled in the background
//     ReplayExecutor executor(std::move(graph), {.groups = groups});
//     executor.run(bindings);                                // nodes run one by one until their kernel is there
//     groups->summary();                                     // what became of them
//
// A group is nodes of one phase that plan_kernel makes one program of, and that can run at one point. No way leads out
// of it and back in, by values, writes, draws or what the host reads. What no kernel does stays a call. Within a group
// results that nobody outside reads are never stored, and writes reach the tensors that they reached.
//
// The first calls of a kernel are made both ways in turn, and the faster way is kept. The cache's manifest has it by
// size class and threads, so that the next process knows (KernelMeasureOptions). Nodes run as they would have where a
// run's tensors are not as the graph says, and where somebody watches operators. So they do where tensors that a group
// writes overlap others unknown to the graph.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "shadowgraph/graph.h"
#include "shadowgraph/kernels/kernel.h"
#include "shadowgraph/replay.h"

namespace SHADOWGRAPH_API shadowgraph {

struct GroupKernelsOptions {
  KernelOptions kernels;
  KernelMeasureOptions measure;
  int64_t min_nodes = 1;  // of the smallest group; one node alone may be faster as a kernel, too
  int64_t max_nodes = 64;
};

class KernelGroups : public NodeGroups {
 public:
  enum class State : uint8_t {
    kCompiling,
    kMeasuring,  // ready, and used in turn with its nodes
    kKernel,     // its kernel runs
    kNodes,      // its nodes run: they are faster
    kFailed,     // its nodes run: `problem` says why there is no kernel
  };
  struct Report {
    std::vector<std::string> operators;
    State state = State::kCompiling;
    std::string problem;
    int64_t elements = 0;     // of one call
    int64_t kernel_runs = 0;  // since it was made
    int64_t node_runs = 0;
    int64_t kernel_ns = 0;  // the best that was measured; 0: not known
    int64_t nodes_ns = 0;
  };
  // One for each of groups().
  virtual std::vector<Report> report() const = 0;
  // Groups by state, and nodes that stayed calls by operator.
  virtual std::string summary() const = 0;
  // Until no kernel is under way.
  virtual void wait() const = 0;
  virtual const KernelPlan& plan(uint32_t group) const = 0;
};

// `cache` nullptr: KernelCache::shared(). The graph is looked at here only; its ids must mean the same where it is run.
// About 25 us a node.
std::shared_ptr<KernelGroups> group_kernels(const Graph& graph, std::shared_ptr<KernelCache> cache = nullptr,
                                            const GroupKernelsOptions& options = {});

}  // namespace shadowgraph
