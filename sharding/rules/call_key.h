// Calls as keys: everything that the factors of a call depend on. Internal to sharding/rules.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "shadowgraph/graph.h"

namespace shadowgraph {

class CallKey {
 public:
  explicit CallKey(const Graph& graph) : graph_(graph) {}
  // Returns bytes that two calls share only if they have the same factors; good until the next call.
  const std::string& of(NodeId node);

 private:
  void add(int64_t number);
  void add(std::span<const Argument> arguments);
  void add(const Argument& argument);

  const Graph& graph_;
  std::string key_;
};

}  // namespace shadowgraph
