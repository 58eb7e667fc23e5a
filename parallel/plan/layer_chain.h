// Says at which modules a step may be cut: layers, and what comes before and behind them.
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
  std::vector<std::string> begins;  // in the order of forward; the first is "" unless it is a layer

  // Layers are modules with a number, such as "model.layers.7" or "encoder_layer_7"; of several numbers in a path the first
  // counts. A model without layers has one unit. Throws Error for graphs that are no training steps.
  static UnitNames of(const Graph& step);
};

// Throws Error if a model has more than so many layers: a source that makes more than it was asked for would be counted
// twice.
void check_layers(const std::vector<std::string>& units, int64_t wanted, const std::string& model);

// The place of the number of a layer in its path: {13, 1} of "model.layers.7", {14, 1} of "encoder.layer_7"; {0, 0}: none.
std::pair<size_t, size_t> number_in_path(const std::string& path);

// What a step's layers cost, one by one and together, so that any stretch of them is a sum.
// What a stretch of units takes for one micro-batch. Copies to the host go beside forward, those back beside backward.
struct ChainSeconds {
  double forward = 0, backward = 0, copies = 0;  // copies: in each direction
  double computing() const { return forward + backward; }
  double all() const { return std::max(forward, copies) + std::max(backward, copies); }
  ChainSeconds& operator+=(const ChainSeconds& more) {
    forward += more.forward;
    backward += more.backward;
    copies += more.copies;
    return *this;
  }
};

// A unit is a stretch of forward that a cut may lie before: a layer, the embedding, the head.
class LayerChain {
 public:
  LayerChain() = default;
  // `step`: of one device or one rank, cut at each of `begins` but the first. A stage of several units is not the sum of
  // what they are as stages: each holds what it was given and sent. So pairs are cut, too, and the difference is kept.
  LayerChain(const Graph& step, const std::vector<std::string>& begins, const StageOptions& options,
             const TrainingState& state);

  // The same model with more layers. The longest list keeps its `first` layers as they are; the third behind them comes
  // `more` times again. Nothing: it is not as the layer before it, so that the model must be looked at whole.
  std::optional<LayerChain> with_more_layers(int64_t more, int64_t first = 0) const;

  int64_t size() const { return static_cast<int64_t>(begins_.size()); }
  const std::string& begins(int64_t unit) const { return begins_[static_cast<size_t>(unit)]; }
  // Units first to last - 1 as a stage.
  StageFigures stage(int64_t first, int64_t last) const;
  // The same, of `a` up to a unit and of `b` from there on.
  static StageFigures joined(const LayerChain& a, int64_t first, int64_t middle, const LayerChain& b, int64_t last);
  ChainSeconds seconds(int64_t first, int64_t last) const;
  int64_t carried(int64_t first, int64_t last) const;     // bytes from forward to backward
  int64_t on_host(int64_t first, int64_t last) const;     // bytes from forward to backward
  int64_t awaiting(int64_t first, int64_t last) const;    // bytes from the input's gradient to the weights'
  int64_t parameters(int64_t first, int64_t last) const;  // bytes
  int64_t weights(int64_t first, int64_t last) const;     // elements
  int64_t fixed(int64_t first, int64_t last) const;       // bytes of buffers, and of inputs a micro-batch
  // What replicas hold of a stage follows from these (replicas.h): no seconds, nothing that lives a micro-batch.
  StageFigures standing(int64_t first, int64_t last) const;
  // The most bytes alive in a stage at once beyond what is there from the beginning, gradients, and what is carried.
  int64_t passing(int64_t first, int64_t last) const;
  int64_t flops(int64_t first, int64_t last) const;  // of matrix products, forward and backward

 private:
  void add_up();
  bool are_alike(size_t a, size_t b) const;
  StageFigures sum(int64_t first, int64_t last) const;
  // What units that are no neighbours have in common: a sum of them has it more than once.
  StageFigures counted_twice(int64_t first, int64_t last) const;

  std::vector<std::string> begins_;
  std::vector<StageFigures> units_;
  std::vector<StageFigures> joins_;  // of a unit and the next: together, less both apart
  std::vector<int64_t> passing_;     // by unit
  std::vector<int64_t> flops_;       // by unit
  struct Tied {
    int64_t bytes = 0, weights = 0;
    std::vector<int64_t> units;  // that have the parameter, rising
  };
  std::vector<Tied> tied_;
  // Sums of all units before, and of joins between them.
  struct Sums {
    double forward = 0, backward = 0, copies = 0;
    int64_t carried = 0, on_host = 0, awaiting = 0, fixed = 0;
    int64_t parameters = 0, expert_parameters = 0, weights = 0, expert_weights = 0, gradients = 0, state = 0;
  };
  std::vector<Sums> units_before_, joins_before_;
};

}  // namespace shadowgraph
