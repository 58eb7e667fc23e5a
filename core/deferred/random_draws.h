// Says what a random operator takes from the CPU generator, where that can be known without running it.
//
//     Consumption c = consumption_of(graph, node);     // aten::uniform_ on f32[4096,4096]: 16,777,216 words
//     if (c.is_known()) skip(state, c);                // microseconds, see core/deferred/mt19937_jump.h
//
// libtorch's CPU kernels draw serially, so the closed forms are those of ATen/native/cpu/DistributionTemplates.h. Each
// is checked against the operator in tests/core/deferred/random_draws_test.cpp.
//
// bernoulli_ and exponential_ take one number as the seed of MKL's generator, or one a value, depending on the build
// and the processor. That is asked once, by running them on a small tensor with a generator of their own. The rest
// (rejection samplers, poisson, multinomial, dropout, ...) is not known.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/MT19937RNGEngine.h>

#include <optional>

#include "shadowgraph/graph.h"

namespace shadowgraph {

// All that a CPU generator consists of; 2.5 KB.
struct RandomState {
  at::mt19937_data_pod engine;
  std::optional<float> next_float;
  std::optional<double> next_double;  // the second half of the last Box-Muller pair

  static RandomState of(const at::Generator& generator);
  void put_into(const at::Generator& generator) const;
  friend bool operator==(const RandomState& a, const RandomState& b);
};

struct Consumption {
  enum class Kind : uint8_t {
    kUnknown,
    kWords,   // `count` 32-bit words
    kNormals  // `count` samples of the Box-Muller method, which come in pairs: the second one waits in the generator
  };
  Kind kind = Kind::kUnknown;
  uint64_t count = 0;

  bool is_known() const { return kind != Kind::kUnknown; }
};

// `node` is a random node. Its device does not matter: the answer is for the CPU.
Consumption consumption_of(const Graph& graph, NodeId node);

// `consumption` must be known.
void skip(RandomState& state, const Consumption& consumption);

// Says how the random fill of a whole tensor spreads over its elements, for code that fills it piece by piece.
enum class FillKind : uint8_t {
  kNone,     // no such fill
  kSerial,   // element i comes from words i * words_each, ...
  kBlocks16  // normal_: 16 elements from 16 times words_each words; a remainder redoes the last 16 from further words
};
struct RandomFill {
  FillKind kind = FillKind::kNone;
  uint64_t words_each = 0;
};
RandomFill random_fill_of(const Graph& graph, NodeId node);

}  // namespace shadowgraph
