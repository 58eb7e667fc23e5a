// Names the random generators that a program created (torch.Generator) in a graph, so that replay draws from them.
//
//     meta "generator g0" = "cpu seed 3"
//     %1 = aten::rand.generator([4], generator(cpu), ...) note("generator" = "g0")
//
// The note names the generator that a node draws from; without one it is the device's default generator. The metadata
// hold its state before the program's first draw. In the process that captured the program, replay draws from the same
// object and advances it, as in eager. Elsewhere it creates one in that state.
//
// A state that begins with "always" is set by every run: the program itself created or seeded the generator.
#pragma once

#include <ATen/core/Generator.h>

#include "core/calls/functions.h"
#include "shadowgraph/graph/graph.h"

namespace shadowgraph {

// Returns the argument for `generator`. For one created by the program, Argument::i is a number that is valid only in
// this process.
Argument argument_of(const at::Generator& generator);

// Reserves a generator for a capture, which changes its state: meanwhile it keeps its argument. Returns false if another
// capture has it.
bool reserve_generator(const at::Generator& generator);
void release_generator(const at::Generator& generator);
// Lets every run of the program being captured begin with this state of its generator.
void begin_runs_with(const Argument& generator, const at::Tensor& state);

// Names the program's generators in a recorded graph.
void name_generators(Graph& graph);

struct ProgramGenerator {
  std::string name;
  c10::Device device = c10::Device(c10::kCPU);
  bool always = false;
  std::optional<std::string> state;  // as in the metadata: "seed 3", or hexadecimal bytes; nullopt: unknown
  at::Generator original;            // undefined: destroyed, or of another process
  uint16_t position = 0;             // among the node's arguments
};

// Returns the program's generator that a node draws from, if any.
std::optional<ProgramGenerator> program_generator_of(const Graph& graph, NodeId node);

// Returns copies, in their current state, of the program's generators that still exist, by name.
std::map<std::string, at::Generator> copy_generators(const Graph& graph);

// Creates a generator in the recorded state. Throws Error if the state is unknown or the device has no generators.
at::Generator create_generator(const ProgramGenerator& own);
// Sets `generator` to the recorded state.
void put_state(at::Generator& generator, const ProgramGenerator& own);

}  // namespace shadowgraph
