// Computes how many random numbers an operator draws from the CPU generator, where that is possible without running it.
//
//     Consumption c = consumption_of(graph, node);     // aten::uniform_ on f32[4096,4096]: 16,777,216 words
//     if (c.is_known()) skip(state, c);                // microseconds, see core/deferred/mt19937_jump.h
//
// libtorch's CPU kernels draw serially, so the closed forms follow ATen/native/cpu/DistributionTemplates.h. Each is
// checked against the operator in tests/core/deferred/random_draws_test.cpp.
//
// bernoulli_ and exponential_ draw either one seed for MKL's generator or one number per value, depending on the build
// and the processor. This is measured once, on a small tensor with a separate generator. The rest (rejection samplers,
// poisson, multinomial, dropout, ...) is unknown.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/MT19937RNGEngine.h>

#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "shadowgraph/graph/graph.h"

namespace shadowgraph {

// The complete state of a CPU generator; 2.5 KB.
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
    kNormals  // `count` Box-Muller samples, which come in pairs: the second is cached in the generator
  };
  Kind kind = Kind::kUnknown;
  uint64_t count = 0;

  bool is_known() const { return kind != Kind::kUnknown; }
};

// `node` must be random. The result applies to the CPU, whatever the node's device.
Consumption consumption_of(const Graph& graph, NodeId node);

// `consumption` must be known.
void skip(RandomState& state, const Consumption& consumption);

// Describes how the random fill of a tensor maps to its elements, for filling it window by window.
enum class FillKind : uint8_t {
  kNone,     // not such a fill
  kSerial,   // element i uses words_each words from word i * words_each on
  kBlocks16  // normal_: blocks of 16 elements from 16 * words_each words; a remainder redraws the last 16 elements
};
struct RandomFill {
  FillKind kind = FillKind::kNone;
  uint64_t words_each = 0;
};
RandomFill random_fill_of(const Graph& graph, NodeId node);

// Tracks the random numbers of a recorded program: the generator and its state for each draw.
//
// Nothing is drawn while a program is recorded. For each generator, the state before the first draw is kept, and every
// draw is recorded with its Consumption. The state before any draw then follows from the nearest known one, mostly
// without running anything, so tensors can be materialized in any order, any number of times.
//
//     base ── uniform_ (16,777,216 words) ── normal_ (58,720,256) ── manual_seed: new base ── poisson (unknown) ── ...
//
// The program may also seed, save or restore a generator. To detect that, the generator holds a *ticket* during
// recording: a state that encodes the position in the record. A ticket found later identifies that position; any other
// state is a new base. At the end the generator gets the state that running the program would have produced.

class RandomStreams {
 public:
  // Runs an unknown draw and returns the state after it. It may request earlier draws, but no later ones.
  using RunDraw = std::function<RandomState(NodeId node, const RandomState& before)>;

  struct Place {
    uint32_t stream = 0;
    uint32_t draw = 0;
  };

  RandomStreams(const Graph& graph, RunDraw run);

  // Begins recording, or continues after pause(): the default CPU generator gets a ticket.
  void resume();
  // Sets the generators to the states that the program would have produced. Rethrows errors from unknown draws, and
  // throws DeferredError; generators are then in their last known state.
  void pause();

  // Records a random node that draws from `generator`, or from the default generator of its device. Outside of
  // resume/pause the generator is advanced immediately.
  void draw(NodeId node, const std::optional<at::Generator>& generator);

  bool is_draw(NodeId node) const { return places_.contains(node); }
  Place place_of(NodeId node) const { return places_.at(node); }
  RandomState state_before(Place place);
  // Records the state after a draw that was run, which avoids computing it.
  void note_state_after(Place place, const RandomState& state);

 private:
  struct Draw {
    NodeId node;
    Consumption consumption;
  };
  struct Known {
    RandomState state;
    bool pinned = false;  // a base, or the state after an unknown draw
  };
  struct Stream {
    at::Generator generator;
    std::vector<Draw> draws;
    std::map<uint32_t, Known> known;  // state before the draw with that number
    std::vector<uint32_t> unpinned;   // ring of evictable states
    size_t next_unpinned = 0;
    uint32_t cursor = 0;  // position of at_cursor
    std::optional<RandomState> at_cursor;
    bool has_ticket = false;
    at::mt19937_data_pod noise;
  };

  uint32_t stream_of(const std::optional<at::Generator>& generator);
  void observe(uint32_t stream);
  void put_ticket(uint32_t stream);
  RandomState state_at(uint32_t stream, uint32_t draw);
  static void keep(Stream& stream, uint32_t draw, const RandomState& state, bool pinned);
  void make_noise(Stream& stream) const;
  static at::mt19937_data_pod ticket(const Stream& stream);

  const Graph& graph_;
  RunDraw run_;
  std::vector<Stream> streams_;
  std::unordered_map<NodeId, Place> places_;
  const uint64_t nonce_;
  bool active_ = false;
};

// Returns the state for a draw with independent streams: a function of the seed and the place only.
RandomState independent_state(uint64_t seed, RandomStreams::Place place);

}  // namespace shadowgraph
