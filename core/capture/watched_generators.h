// Detects where a captured program seeds, saves or restores random generators, and records it in the graph.
//
// A capture draws nothing, so a generator's state does not follow the program. During a capture a watched generator
// therefore holds a *ticket*, a state that names a position in the program: how many draws from it were recorded, and
// which change of the state they follow. Restoring a ticket (fork_rng, the recomputation of a checkpoint), also one of
// another generator, is a change to the state at that position; any other state is a seed or comes from outside.
//
//     torch.manual_seed(9)              sg_random::seed(seed=9, device=cpu)
//     a = torch.rand(3)                 aten::rand
//     state = torch.get_rng_state()     %s = sg_random::get_state(device=cpu)
//     b = torch.rand(3)                 aten::rand
//     torch.set_rng_state(state)        sg_random::set_state(state=%s, device=cpu)
//     c = torch.rand(3)                 aten::rand
//
// At the end the generators have the state that they would have had with nothing drawn. Only one capture of a process
// watches a generator at a time, since threads share it.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <compare>

#include "shadowgraph/graph/graph.h"

namespace shadowgraph {

class WatchedGenerators {
 public:
  // Watches the CPU's default generator.
  WatchedGenerators();
  ~WatchedGenerators();
  C10_DISABLE_COPY_AND_ASSIGN(WatchedGenerators);

  // Watches a generator of the CPU or of a simulated CUDA device from now on, unless another capture does. `argument`:
  // that of nodes which draw from it.
  void watch(const at::Generator& generator, const Argument& argument);
  // Must be called for each recorded draw, in program order.
  void draw(NodeId node, const Argument& argument);
  // Gives the generators to code that is not recorded, and takes them back. A seed set in between counts as the
  // program's.
  void suspend();
  void resume() noexcept;
  // Restores the generators. Later calls have no effect.
  void end();
  // Inserts the changes into the graph of the program, whose draws must still be there. Call after end().
  void record_in(Graph& graph) const;

 private:
  // The state of a generator after the draws before number `draw` that follow change number `change`.
  struct Point {
    uint32_t generator = 0, change = 0, draw = 0;
    friend auto operator<=>(const Point&, const Point&) = default;
  };
  struct Change {
    uint32_t draw = 0;              // the first draw after it
    std::optional<Point> restored;  // the others are unset
    std::optional<uint64_t> seed;
    at::Tensor state;  // of the generator after it
  };
  struct Watched {
    at::Generator generator;
    Argument argument;
    std::vector<NodeId> draws;
    std::vector<Change> changes;  // the first is the state before the capture
    at::Tensor real_state;        // without a ticket
    uint32_t ticket = 0;          // its number
  };
  Watched* find(const Argument& argument);
  Point now(const Watched& watched) const;
  void observe(Watched& watched);
  void change(Watched& watched, Change change);
  void put_ticket(Watched& watched);
  std::optional<Point> point_of(const Watched& watched) const;
  // Returns the change with a state restored from right behind another change replaced by that one's.
  Change resolved(Change change) const;

  std::vector<Watched> watched_;
  std::vector<Point> tickets_;  // by number
  bool suspended_ = false, ended_ = false;
  bool out_of_memory_ = false;  // since resume()
  const uint32_t session_;
};

}  // namespace shadowgraph
