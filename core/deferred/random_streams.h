// Tracks the random numbers of a described program: which draw comes from which state of which generator.
//
// While a program is described nothing is drawn. For every generator it uses, the state before the first draw is kept,
// and every draw is entered with what it takes (core/deferred/random_draws.h). The state before any draw then follows
// from the nearest known one, mostly without running anything. So tensors may be materialised in any order, any number
// of times.
//
//     base ── uniform_ (16,777,216 words) ── normal_ (58,720,256) ── manual_seed: another base ── poisson (unknown) ── ...
//
// A program may also seed, save or restore a generator. To notice that, the generator holds a *ticket* while a program
// is described: a state of ours that names the position in the record. A ticket that comes back is that position; any
// other state is a new base. At the end the generator is left where running the program would have left it.
#pragma once

#include <functional>
#include <map>
#include <vector>

#include "core/deferred/random_draws.h"
#include "shadowgraph/graph.h"

namespace shadowgraph {

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
  // GeneratorMovedError; generators are then where the last known state is.
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
    bool pinned = false;  // a base, or after an unknown draw
  };
  struct Stream {
    at::Generator generator;
    std::vector<Draw> draws;
    std::map<uint32_t, Known> known;  // state before draw number ...
    std::vector<uint32_t> unpinned;   // ring of those that may go
    size_t next_unpinned = 0;
    uint32_t cursor = 0;  // like a known state, replaced freely
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

// Returns the state of draw number `draw` of `stream` in the mode of independent streams: a function of these and the
// seed alone.
RandomState independent_state(uint64_t seed, RandomStreams::Place place);

}  // namespace shadowgraph
