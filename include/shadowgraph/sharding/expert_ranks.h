// Puts a step's experts on several ranks: each has some of them, and tokens go to the ranks of their experts and back.
//
//     const Graph rank = with_experts_over(std::move(step), {.ranks = 64});
//
// Experts are the products of rows that lie one after another by their group (aten::_grouped_mm), with a parameter
// [experts, ..]. What is computed between two products of a module is computed where the experts are. Rows that go
// there, forward and backward, are sent by an all_to_all and sorted by expert; rows that come from there go back so:
//
//     rows -> [padded] -> all_to_all -> sorted -> products .. products -> sorted -> all_to_all -> [cut] -> rows
//
// Each rank sends as many rows to every other. So it has as many rows as before, of fewer experts; `capacity` times as
// many where experts have room for more than the mean.
#pragma once

#include <cstdint>

#include "shadowgraph/export.h"
#include "shadowgraph/graph.h"

namespace SHADOWGRAPH_API shadowgraph {

struct ExpertLayers {
  int64_t experts = 0;  // of a layer; 0: the step has none
  int64_t rows = 0;     // of all experts of a layer, a micro-batch
};
// Throws Error if layers differ in them, or if experts' weights are no parameters.
ExpertLayers expert_layers(const Graph& step);

struct ExpertRanks {
  int64_t ranks = 1;
  int64_t apart = 1;    // ranks of tensor parallel are neighbours
  double capacity = 1;  // rows of a rank over the mean
};
// Throws Error if the experts do not divide.
Graph with_experts_over(Graph step, const ExpertRanks& over);

// Whether a placeholder is a parameter that with_experts_over() has cut.
bool is_of_experts(const Graph& graph, NodeId placeholder);

}  // namespace shadowgraph
