// Names, in a graph, the random generators that a program made itself (torch.Generator), so that a run draws from them.
//
//     meta "generator g0" = "cpu seed 3"
//     %1 = aten::rand.generator([4], generator(cpu), ...) note("generator" = "g0")
//
// The note says from which one a node draws; without one it is the default generator of the device. The metadata say in
// which state it was when the program first drew from it. In the process that captured the program a run draws from the
// very object, as eager does, and so moves it. Elsewhere it draws from one of its own in that state.
//
// A state that begins with "always" is put in place by every run: the program made the generator, or seeded it, itself.
#pragma once

#include <ATen/core/Generator.h>

#include <map>
#include <optional>
#include <string>

#include "core/calls/functions.h"
#include "shadowgraph/graph/graph.h"

namespace shadowgraph {

// Returns the argument that stands for `generator`. One of the program's own has a number in it, Argument::i, which
// means something in this process alone.
Argument argument_of(const at::Generator& generator);

// Gives names to the program's own generators in a graph that has been recorded.
void name_generators(Graph& graph);

struct OwnGenerator {
  std::string name;
  c10::Device device = c10::Device(c10::kCPU);
  bool always = false;
  std::optional<std::string>
      state;               // as the metadata say it: "seed 3", or bytes in hexadecimal digits; none: not known
  at::Generator original;  // undefined: it is gone, or of another process
  uint16_t position = 0;   // among the node's arguments
};

// Returns from which generator of the program's own a node draws, if it does.
std::optional<OwnGenerator> own_generator_of(const Graph& graph, NodeId node);

// Returns, by name, a copy of each of the program's own generators that are there, in the state in which it is now.
std::map<std::string, at::Generator> copies_of_generators(const Graph& graph);

// Makes a generator in the state that is known of it. Throws Error if none is, or for a device without generators.
at::Generator made_generator(const OwnGenerator& own);
// Puts `generator` in that state.
void put_state(at::Generator& generator, const OwnGenerator& own);

}  // namespace shadowgraph
