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

#include <algorithm>
#include <compare>

#include "core/capture/random_state.h"
#include "shadowgraph/graph/graph.h"

namespace shadowgraph {

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
// The program may also seed, save or restore a generator. Draws between two such changes form a *segment*, which begins
// with a known state. To detect a change, the generator holds a *ticket* during recording: a state that encodes the
// segment and the number of draws. Restoring a ticket begins a segment with the state that it encodes; any other state
// begins a segment with itself. At the end the generator gets the state that running the program would have produced.
class RandomStreams {
 public:
  // Runs an unknown draw and returns the state after it. It may request earlier draws, but no later ones.
  using RunDraw = std::function<RandomState(NodeId node, const RandomState& before)>;

  struct Place {
    uint32_t stream = 0, draw = 0;
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

  // Must be called before a generator other than the default one is seeded, saved or restored.
  void watch(const at::Generator& generator);

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
    bool pinned = false;  // the first state of a segment, or the state after an unknown draw
  };
  // A state of a stream: after the draws of `segment` that precede draw number `draw`.
  struct Point {
    uint32_t segment = 0, draw = 0;
    friend auto operator<=>(const Point&, const Point&) = default;
  };
  struct Stream {
    at::Generator generator;
    std::vector<Draw> draws;
    std::vector<uint32_t> segments;  // the first draw of each
    std::map<Point, Known> known;
    std::vector<Point> unpinned;  // ring of evictable states
    size_t next_unpinned = 0;
    Point cursor;  // position of at_cursor
    std::optional<RandomState> at_cursor;
    bool has_ticket = false;
    at::mt19937_data_pod noise;

    // Current position in the program.
    Point end() const { return {static_cast<uint32_t>(segments.size()) - 1, static_cast<uint32_t>(draws.size())}; }
    // Before draw number `draw`.
    Point before(uint32_t draw) const {
      return {static_cast<uint32_t>(std::ranges::upper_bound(segments, draw) - segments.begin()) - 1, draw};
    }
  };

  uint32_t stream_of(const std::optional<at::Generator>& generator);
  void observe(uint32_t stream);
  // Returns the state that a ticket of this record refers to, on any stream; nullopt if `state` is not a ticket.
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

// Returns the state for a draw with independent streams: a function of the seed and the place only.
RandomState independent_state(uint64_t seed, RandomStreams::Place place);

}  // namespace shadowgraph
