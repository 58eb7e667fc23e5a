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

#include <algorithm>
#include <compare>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "shadowgraph/graph/graph.h"

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

// Tracks the random numbers of a described program: which draw comes from which state of which generator.
//
// While a program is described nothing is drawn. For every generator it uses, the state before the first draw is kept,
// and every draw is entered with what it takes (core/deferred/random_streams.h). The state before any draw then follows
// from the nearest known one, mostly without running anything. So tensors may be materialised in any order, any number
// of times.
//
//     base ── uniform_ (16,777,216 words) ── normal_ (58,720,256) ── manual_seed: another base ── poisson (unknown) ── ...
//
// A program may also seed, save or restore a generator. Draws between two such changes form a *segment*, which begins
// with a known state. To notice a change, the generator holds a *ticket* while a program is described: a state of ours
// that names the segment and the number of draws. A ticket that is restored begins a segment with the state it names,
// any other state begins one with that state. At the end the generator is left where running the program would have
// left it.

class RandomStreams {
 public:
  // Runs an unknown draw and gives the state after it. It may ask for earlier draws meanwhile, but for no later ones.
  using RunDraw = std::function<RandomState(NodeId node, const RandomState& before)>;

  struct Place {
    uint32_t stream = 0;
    uint32_t draw = 0;
  };

  RandomStreams(const Graph& graph, RunDraw run);

  // Begins the program, or goes on after pause(): the default CPU generator gets a ticket.
  void resume();
  // Leaves the generators where the program would have left them. Throws what running an unknown draw throws, and
  // DeferredError; generators are then where the last known state is.
  void pause();

  // Enters a random node that has been recorded and that draws from `generator`, or from the default one of its device.
  // Outside of resume/pause the generator is moved at once.
  void draw(NodeId node, const std::optional<at::Generator>& generator);

  bool is_draw(NodeId node) const { return places_.contains(node); }
  Place place_of(NodeId node) const { return places_.at(node); }
  RandomState state_before(Place place);
  // Notes what running the draw led to, which saves the next one the way.
  void note_state_after(Place place, const RandomState& state);

 private:
  struct Draw {
    NodeId node;
    Consumption consumption;
  };
  struct Known {
    RandomState state;
    bool pinned = false;  // the first of a segment, or after an unknown draw
  };
  // A state of a stream: after the draws of `segment` that come before draw number `draw`.
  struct Point {
    uint32_t segment = 0;
    uint32_t draw = 0;
    friend auto operator<=>(const Point&, const Point&) = default;
  };
  struct Stream {
    at::Generator generator;
    std::vector<Draw> draws;
    std::vector<uint32_t> segments;  // the draw that each begins with
    std::map<Point, Known> known;
    std::vector<Point> unpinned;  // ring of those that may go
    size_t next_unpinned = 0;
    Point cursor;  // like a known state, replaced freely
    std::optional<RandomState> at_cursor;
    bool has_ticket = false;
    at::mt19937_data_pod noise;

    // Where the program is.
    Point end() const { return {static_cast<uint32_t>(segments.size()) - 1, static_cast<uint32_t>(draws.size())}; }
    // Before draw number `draw`.
    Point before(uint32_t draw) const {
      return {static_cast<uint32_t>(std::ranges::upper_bound(segments, draw) - segments.begin()) - 1, draw};
    }
  };

  uint32_t stream_of(const std::optional<at::Generator>& generator);
  void observe(uint32_t stream);
  // Returns the state that a ticket of this record names, of whichever stream; nullopt for other states.
  std::optional<RandomState> state_of_ticket(const RandomState& state);
  RandomState current_state(const at::Generator& generator);
  void put_ticket(uint32_t stream);
  RandomState state_at(uint32_t stream, Point point);
  static void keep(Stream& stream, Point point, const RandomState& state, bool pinned);
  static void begin_segment(Stream& stream, const RandomState& state);
  void make_noise(Stream& stream) const;
  static at::mt19937_data_pod ticket(const Stream& stream);

  const Graph& graph_;
  RunDraw run_;
  std::vector<Stream> streams_;
  std::unordered_map<NodeId, Place> places_;
  const uint64_t nonce_;
  bool active_ = false;
};

// Returns the state of draw number `draw` of `stream` in the mode of independent streams: a function of these and the
// seed alone.
RandomState independent_state(uint64_t seed, RandomStreams::Place place);

}  // namespace shadowgraph
