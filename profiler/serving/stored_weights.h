// Which parameters of a program an engine keeps in a format of quantised weights, and what all of them take.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shadowgraph/graph.h"
#include "shadowgraph/profile/weight_format.h"

namespace shadowgraph {

class StoredWeights {
 public:
  // Those that matrix products alone read, in floating point, with two dimensions, or with three for experts. A name
  // that contains one of `kept` stays.
  StoredWeights(const Graph& graph, const std::optional<WeightFormat>& format, const std::vector<std::string>& kept);

  int64_t bytes() const { return bytes_; }  // of parameters and buffers, as stored
  int64_t bytes_made() const { return bytes_made_; }
  int64_t quantised() const { return quantised_; }  // parameters
  // What is stored of a value, as a share of what it was made with; 1 for what is no such weight.
  double share(ValueId value) const;
  // Experts that the value holds; 0 for anything else.
  int64_t experts(ValueId value) const;

 private:
  struct Weight {
    double share = 1;
    int64_t experts = 0;
  };
  Weight weight_of(ValueId value) const;

  const Graph& graph_;
  IdMap<StorageId, Weight> by_storage_;
  int64_t bytes_ = 0, bytes_made_ = 0, quantised_ = 0;
};

}  // namespace shadowgraph
