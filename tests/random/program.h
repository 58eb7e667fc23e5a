// Makes random eager programs from a printed seed, and checks that a graph, rewritten or not, does what the program
// does.
//
//     const RandomProgram program = RandomProgram::make(seed, 20);
//     expect_same_behavior(program, [](const Graph& graph) { return functionalized(graph); });
//
// A program is a list of instructions over tensor registers: views of views, in-place arithmetic, optimizer steps,
// `out=`, copies, random fills, set_, resize_, `.data =`. Arithmetic that reads stands in between. The program is made
// by running every instruction on real tensors. Those are dropped that eager refuses or whose outcome is not defined:
// writes through a view that overlaps itself, contents that nobody wrote. So the same seed gives the same program, and
// it runs on real and on fake tensors.
//
// Inputs differ in dtype and shape; some are not contiguous, are expanded, have no elements, or are views of one
// storage. Outputs may alias inputs and one another.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "shadowgraph/capture/replay.h"
#include "shadowgraph/graph/graph.h"

namespace shadowgraph::testing {

// What programs are made of. All on, but for narrowing a failure down.
struct RandomProgramOptions {
  bool writes = true;           // in-place arithmetic, copy_, fill_, index_put_, ...
  bool out_variants = true;     // at::add_out and its like
  bool random = true;           // uniform_, normal_, bernoulli_, dropout, rand
  bool metadata_writes = true;  // t_, transpose_, squeeze_, unsqueeze_
  bool set = true;              // set_ and `.data =` (set_data)
  bool resize = true;           // resize_, also of views and inputs
  bool write_inputs = true;     // inputs may be written
  bool shared_inputs = true;    // two inputs may be views of one storage
  bool overlapping_views =
      true;             // expand, unfold and as_strided that visit an element twice (read, or filled as a whole)
  bool complex = true;  // c64 inputs, real, imag, conj
};

struct RandomProgramBody;

class RandomProgram {
 public:
  using Tensors = std::vector<at::Tensor>;

  // The same arguments give the same program. `size` is the number of instructions tried, a few of which are dropped.
  static RandomProgram make(uint64_t seed, int size = 20, const RandomProgramOptions& options = {});

  uint64_t seed() const { return seed_; }
  // Fresh real tensors, the same every time.
  Tensors inputs() const;
  // Runs on real or fake tensors, without gradients; writes to the inputs. Random numbers come from the default
  // generator.
  Tensors run(const Tensors& inputs) const;
  // One instruction a line, inputs and outputs included, with the seed.
  std::string describe() const;

 private:
  explicit RandomProgram(uint64_t seed, std::shared_ptr<const RandomProgramBody> body)
      : seed_(seed), body_(std::move(body)) {}

  uint64_t seed_;
  std::shared_ptr<const RandomProgramBody> body_;
};

// Captured on fake CPU tensors; the inputs are named input0, input1, ..., a few as parameters or buffers. An input that
// shares the storage of an earlier one is an sg::alias of it.
Graph capture(const RandomProgram& program);

// What is left when a program, or a graph of it, has run.
struct Outcome {
  std::vector<at::Tensor> outputs;
  // An alias of each input, taken before the run: later set_ or t_ on the input does not touch it, writes do.
  std::vector<at::Tensor> inputs;
};
// Both with the default CPU generator seeded by the program's seed.
Outcome run_eagerly(const RandomProgram& program);
// `check_results`: every node must give what the graph says (InterpreterOptions).
Outcome replay(const Graph& graph, const RandomProgram& program, bool check_results = false,
               const std::shared_ptr<NodeGroups>& groups = nullptr);

// What two outcomes must share beside the outputs and the contents of the storages of the inputs. Outputs agree in
// number, dtypes, shapes and contents (bit for bit).
struct Comparison {
  bool strides = true;   // strides of the outputs
  bool aliasing = true;  // which outputs and inputs share storages, and at which offset
  bool geometry = true;  // every node of the graph gives the dtype, sizes and strides that the graph says
};
// "" or the first difference.
std::string difference(const Outcome& eager, const Outcome& replayed, const Comparison& comparison = {});

// Captures, verifies, prints and parses, rewrites, verifies again, replays, and compares with eager. A failure shows
// the seed, the program and both graphs.
using Rewrite = std::function<Graph(const Graph&)>;
void expect_same_behavior(const RandomProgram& program, const Rewrite& rewrite = {}, const Comparison& comparison = {});
// Each rewriting of the one capture: making, running and capturing a program takes most of the time. No rewriting at
// all runs the graph as it was captured.
void expect_same_behavior(const RandomProgram& program, const std::vector<Rewrite>& rewrites,
                          const Comparison& comparison = {});

// Programs per suite: `usual`, or SHADOWGRAPH_RANDOM_PROGRAMS if that is set.
int random_program_count(int usual);

// The programs of shard `shard` of `shards`: seeds first_seed + shard, first_seed + shard + shards, ... With
// SHADOWGRAPH_RANDOM_SEED set, that program alone, or SHADOWGRAPH_RANDOM_PROGRAMS of them from there.
void expect_same_behavior_of_shard(int shard, int shards, int programs, uint64_t first_seed,
                                   const std::vector<Rewrite>& rewrites = {}, const RandomProgramOptions& options = {},
                                   const Comparison& comparison = {});

}  // namespace shadowgraph::testing
