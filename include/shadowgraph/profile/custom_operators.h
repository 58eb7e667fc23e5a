// What calls of operators that a user registered (shadowgraph/operators.h) cost: by node, and by operator.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <vector>

#include "shadowgraph/export.h"
#include "shadowgraph/graph.h"

namespace SHADOWGRAPH_API shadowgraph {

struct CustomOperatorFigures {
  std::string op;  // with overload
  int64_t calls = 0;
  int64_t flops = 0;    // of all calls
  int64_t bytes = 0;    // of all calls
  int64_t scratch = 0;  // of the call that takes most
  int64_t unknown = 0;  // calls for which a rule that was given had no answer
  friend bool operator==(const CustomOperatorFigures&, const CustomOperatorFigures&) = default;
};

class CustomOperators {
 public:
  static CustomOperators of(const Graph& graph);

  const std::vector<CustomOperatorFigures>& by_operator() const { return by_operator_; }  // by name
  // Bytes that a node takes and gives back, in program order; nodes without scratch are left out.
  struct Scratch {
    NodeId node;
    int64_t bytes = 0;
    c10::Device device;
  };
  const std::vector<Scratch>& scratch() const { return scratch_; }

 private:
  std::vector<CustomOperatorFigures> by_operator_;
  std::vector<Scratch> scratch_;
};

}  // namespace shadowgraph
