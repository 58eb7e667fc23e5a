// A model to draw, and helpers that read its diagram.
#pragma once

#include <string>
#include <vector>

#include "shadowgraph/draw/draw.h"
#include "tests/profiler/test_graph.h"

namespace shadowgraph {

// encoder.layer.0..n-1, each: fc (Linear: t, addmm), relu, add with the layer's input.
struct Encoder {
  testing::TestGraph t;
  explicit Encoder(int layers, int odd_one = -1) {
    auto x = t.input("tokens", {4, 8});
    std::vector<testing::TestGraph::Call> weights, biases;
    for (int i = 0; i < layers; ++i) {
      const std::string path = "encoder.layer." + std::to_string(i) + ".fc.";
      weights.push_back(t.parameter(path + "weight", {8, 8}));
      biases.push_back(t.parameter(path + "bias", {8}));
    }
    for (int i = 0; i < layers; ++i) {
      const std::string path = "encoder.layer." + std::to_string(i);
      auto layer = t.module(path, "Layer");
      testing::TestGraph::Call y;
      {
        auto fc = t.module(path + ".fc", "Linear");
        const auto& weight = weights[static_cast<size_t>(i)];
        const auto transposed = t.view("aten::t", {weight}, weight.value(), {8, 8});
        y = t.call("aten::addmm", {biases[static_cast<size_t>(i)], x, transposed}, {{4, 8}});
      }
      y = t.call(i == odd_one ? "aten::gelu" : "aten::relu", {y}, {{4, 8}});
      x = t.call("aten::add.Tensor", {y, x, Argument::of_int(1)}, {{4, 8}});
    }
    t.output({x});
  }
};

inline std::vector<std::string> labels(const ViewModel& model) {
  std::vector<std::string> result;
  for (const ViewBox& box : model.boxes) {
    std::string text;
    for (const std::string& line : box.lines) text += (text.empty() ? "" : "|") + line;
    result.push_back(text);
  }
  return result;
}
inline std::vector<std::string> titles(const ViewModel& model) {
  std::vector<std::string> result;
  for (size_t c = 1; c < model.clusters.size(); ++c) result.push_back(model.clusters[c].title);
  return result;
}
// "relu->add f32[4,8]"
inline std::vector<std::string> edges(const ViewModel& model) {
  std::vector<std::string> result;
  for (const ViewEdge& edge : model.edges) {
    const auto name = [&](uint32_t box) { return model.boxes[box].lines.front(); };
    result.push_back(name(edge.from) + (edge.to_next_copy ? "~>" : "->") + name(edge.to) + " " + edge.label);
  }
  return result;
}

}  // namespace shadowgraph
