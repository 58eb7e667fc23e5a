// The kernel classes of a graph's nodes: names are looked up once a target.
#pragma once

#include <memory>
#include <vector>

#include "shadowgraph/profile/time.h"

namespace shadowgraph {

class KernelClasses {
 public:
  explicit KernelClasses(const Graph& graph);
  ~KernelClasses();
  KernelClass of(NodeId node);

 private:
  struct Known;
  const Graph& graph_;
  std::vector<std::unique_ptr<Known>> by_target_;
};

}  // namespace shadowgraph
