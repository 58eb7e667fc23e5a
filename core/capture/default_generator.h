// Detects where a captured program seeds, saves or restores the CPU's default generator, and records it in the graph.
//
// A capture draws nothing, so the generator's state does not follow the program. During a capture the generator
// therefore holds a *ticket*, a state that names a position in the program: how many draws were recorded, and which
// change of the state they follow. Restoring a ticket (fork_rng, the recomputation of a checkpoint) is a change to the
// state at that position; any other state is a seed or comes from outside.
//
//     torch.manual_seed(9)              sg_random::seed(seed=9, device=cpu)
//     a = torch.rand(3)                 aten::rand
//     state = torch.get_rng_state()     %s = sg_random::get_state(device=cpu)
//     b = torch.rand(3)                 aten::rand
//     torch.set_rng_state(state)        sg_random::set_state(state=%s, device=cpu)
//     c = torch.rand(3)                 aten::rand
//
// At the end the generator has the state that it would have had with nothing drawn. Only one capture of a process does
// this at a time; the generator is shared by all threads.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/MT19937RNGEngine.h>
#include <ATen/core/Tensor.h>

#include <compare>
#include <cstdint>
#include <optional>
#include <vector>

#include "shadowgraph/graph/graph.h"

namespace shadowgraph {

class DefaultGenerator {
 public:
  DefaultGenerator();
  ~DefaultGenerator();
  C10_DISABLE_COPY_AND_ASSIGN(DefaultGenerator);

  // Must be called for each recorded draw from the generator, in program order.
  void draw(NodeId node);
  // Gives the generator to code that is not recorded, and takes it back. A seed set in between counts as the program's.
  void suspend();
  void resume() noexcept;
  // Restores the generator. Later calls have no effect.
  void end();
  // Inserts the changes into the graph of the program, whose draws must still be there.
  void record_in(Graph& graph) const;

 private:
  // The state after the draws before number `draw` that follow change number `change`.
  struct Point {
    uint32_t change = 0;
    uint32_t draw = 0;
    friend auto operator<=>(const Point&, const Point&) = default;
  };
  struct Change {
    uint32_t draw = 0;              // the first draw after it
    std::optional<Point> restored;  // the others are unset
    std::optional<uint64_t> seed;
    at::Tensor state;  // of the generator after it
  };
  void observe();
  void change(const Change& change);
  void put_ticket();
  at::mt19937_data_pod ticket() const;
  std::optional<Point> point_of(const at::mt19937_data_pod& engine) const;

  at::Generator generator_;
  bool active_ = false;
  bool suspended_ = false;
  bool out_of_memory_ = false;  // since resume()
  std::vector<NodeId> draws_;
  std::vector<Change> changes_;  // the first is the state before the capture
  std::vector<Point> tickets_;   // by number
  at::Tensor real_state_;        // without a ticket
  const uint32_t session_;
};

}  // namespace shadowgraph
