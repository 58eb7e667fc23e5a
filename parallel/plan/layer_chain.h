// Units of a model at which a step can be split into stages (layers, embedding, head), and their costs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shadowgraph/graph/graph.h"
#include "shadowgraph/plan/pipeline.h"

namespace shadowgraph {

struct UnitNames {
  std::vector<std::string> begins;  // in forward order; the first is "" unless it is a layer

  // Layers are numbered modules such as "model.layers.7" or "encoder_layer_7"; the first number in a path counts. A
  // model without layers is a single unit. Throws Error if the graph is not a training step.
  static UnitNames of(const Graph& step);
};

// Throws Error if the model has more than `wanted` layers, i.e. if the source ignored StepSize::layers.
void check_layers(const std::vector<std::string>& units, int64_t wanted, const std::string& model);

// Offset and length of the layer number in a path: {13, 1} for "model.layers.7". {0, 0} if there is none.
std::pair<size_t, size_t> number_in_path(const std::string& path);

// Time of a range of units for one micro-batch. Copies to the host overlap with forward, copies back with backward.
struct ChainSeconds {
  double forward = 0, backward = 0, copies = 0;  // copies: per direction
  double computing() const { return forward + backward; }
  double all() const { return std::max(forward, copies) + std::max(backward, copies); }
  ChainSeconds& operator+=(const ChainSeconds& more) {
    forward += more.forward;
    backward += more.backward;
    copies += more.copies;
    return *this;
  }
};

// Costs of a model's units, stored as prefix sums so that a range of units is evaluated in constant time.
class LayerChain {
 public:
  LayerChain() = default;
  // Splits `step`, of one device or one rank, at each of `begins` except the first. A stage of several units costs less
  // than its units as separate stages, which also hold their inputs and outputs. So pairs are measured too, and the
  // difference is stored per pair.
  LayerChain(const Graph& step, const std::vector<std::string>& begins, const StageOptions& options,
             const TrainingState& state);

  // Returns the costs of the model with `more` additional layers, by repeating the third layer after the `first` ones
  // of the longest list. Empty if that layer differs from the one before it: then the whole model must be captured.
  std::optional<LayerChain> with_more_layers(int64_t more, int64_t first = 0) const;

  int64_t size() const { return static_cast<int64_t>(begins_.size()); }
  const std::string& begins(int64_t unit) const { return begins_[static_cast<size_t>(unit)]; }
  // Costs of units first to last - 1 as a stage.
  StageCosts stage(int64_t first, int64_t last) const;
  // The same, with units before `middle` from `a` and the others from `b`.
  static StageCosts joined(const LayerChain& a, int64_t first, int64_t middle, const LayerChain& b, int64_t last);
  ChainSeconds seconds(int64_t first, int64_t last) const;
  // Bytes kept on the device, and bytes offloaded to CPU, from forward to backward.
  int64_t carried(int64_t first, int64_t last) const { return between(first, last, &StageCosts::carried); }
  int64_t on_host(int64_t first, int64_t last) const { return between(first, last, &StageCosts::on_host); }
  // Bytes kept from input gradient to weight gradient.
  int64_t awaiting(int64_t first, int64_t last) const { return between(first, last, &StageCosts::awaiting); }
  int64_t parameters(int64_t first, int64_t last) const;  // bytes
  int64_t weights(int64_t first, int64_t last) const;     // elements
  int64_t fixed(int64_t first, int64_t last) const { return between(first, last, &StageCosts::other); }
  // Parameters, gradients and optimizer state only: the input of replica_memory().
  StageCosts model_state(int64_t first, int64_t last) const;
  // Peak of transient bytes: beyond resident tensors, gradients and carried activations.
  int64_t transient(int64_t first, int64_t last) const;
  int64_t flops(int64_t first, int64_t last) const;  // of matmuls, forward and backward

 private:
  void compute_prefix_sums();
  bool are_alike(size_t a, size_t b) const;
  StageCosts sum(int64_t first, int64_t last) const;
  // Cost shared by non-adjacent units (tied weights), subtracted so that it is counted once.
  StageCosts counted_twice(int64_t first, int64_t last) const;

  std::vector<std::string> begins_;
  std::vector<StageCosts> units_;
  std::vector<StageCosts> joins_;   // of a unit and the next: cost as one stage minus cost as two
  std::vector<int64_t> transient_;  // by unit
  std::vector<int64_t> flops_;      // by unit
  struct Tied {
    int64_t bytes = 0, weights = 0;
    std::vector<int64_t> units;  // that use the parameter, ascending
  };
  std::vector<Tied> tied_;
  struct Sums {
    ChainSeconds seconds;
    StageCosts costs;
  };
  // Sum over units first to last - 1 and the joins between them.
  template <class Figure>
  auto between(int64_t first, int64_t last, const Figure& figure) const {
    const auto at = [](int64_t i) { return static_cast<size_t>(i); };
    return figure(units_before_[at(last)]) - figure(units_before_[at(first)]) + figure(joins_before_[at(last - 1)]) -
           figure(joins_before_[at(first)]);
  }
  int64_t between(int64_t first, int64_t last, int64_t StageCosts::*figure) const {
    return between(first, last, [figure](const Sums& sums) { return sums.costs.*figure; });
  }
  double between(int64_t first, int64_t last, double ChainSeconds::*figure) const {
    return between(first, last, [figure](const Sums& sums) { return sums.seconds.*figure; });
  }
  std::vector<Sums> units_before_, joins_before_;
};

}  // namespace shadowgraph
