// Checks that a graph behaves like the program it was captured from.
#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>

#include "shadowgraph/capture/capture.h"
#include "shadowgraph/capture/replay.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/graph/verify.h"
#include "tests/random/program.h"

namespace shadowgraph::testing {
namespace {

std::vector<at::Tensor> aliases_of(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> aliases;
  for (const at::Tensor& tensor : tensors) aliases.push_back(tensor.detach());
  return aliases;
}

std::string geometry(const at::Tensor& tensor) {
  return c10::str(tensor.scalar_type(), tensor.sizes(), tensor.strides(), "+") +
         std::to_string(tensor.storage_offset());
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.resolve_conj().resolve_neg().contiguous();
  const at::Tensor y = b.resolve_conj().resolve_neg().contiguous();
  return x.nbytes() == y.nbytes() &&
         (x.nbytes() == 0 || std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0);
}

// For each tensor, the index of the first tensor with the same storage, and the byte offset within it.
std::vector<std::pair<size_t, int64_t>> storage_relations(const Outcome& outcome) {
  std::vector<at::Tensor> all = outcome.inputs;
  all.insert(all.end(), outcome.outputs.begin(), outcome.outputs.end());
  std::vector<std::pair<size_t, int64_t>> relations;
  for (size_t i = 0; i < all.size(); ++i) {
    size_t first = 0;
    while (!all[first].is_alias_of(all[i])) ++first;
    relations.emplace_back(first, all[i].storage_offset() * static_cast<int64_t>(all[i].itemsize()));
  }
  return relations;
}

std::vector<std::string> input_names(const Graph& graph) {
  std::vector<std::string> names;
  for (const NodeId node : graph.nodes()) {
    if (graph.node(node).target.index <= target_of(Builtin::kInput).index)
      names.push_back(graph.text(graph.arguments(node)[0].string));
  }
  return names;
}

}  // namespace

Graph capture(const RandomProgram& program) {
  const c10::NoGradGuard no_grad;
  const auto inputs = program.inputs();
  Capture session({.saved_tensors = false, .guards = program.seed() % 2 == 0});
  std::vector<at::Tensor> fakes;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const std::string name = "input" + std::to_string(i);
    // Some inputs are parameters or buffers; replay binds all of them in the same way.
    const uint64_t kind = (program.seed() + i) % 5;
    if (kind == 0) {
      session.name_parameter(inputs[i], name);
    } else if (kind == 1) {
      session.name_buffer(inputs[i], name);
    } else {
      session.name_input(inputs[i], name);
    }
    fakes.push_back(session.mode().from_real(inputs[i]));
  }
  return session.finish(program.run(fakes));
}

Outcome run_eagerly(const RandomProgram& program) {
  const auto inputs = program.inputs();
  Outcome outcome;
  outcome.inputs = aliases_of(inputs);
  at::manual_seed(program.seed());
  outcome.outputs = program.run(inputs);
  return outcome;
}

Outcome replay(const Graph& graph, const RandomProgram& program, bool check_results,
               const std::shared_ptr<NodeGroups>& groups) {
  const auto inputs = program.inputs();
  Outcome outcome;
  outcome.inputs = aliases_of(inputs);
  Bindings bindings;
  for (const std::string& name : input_names(graph)) {
    bindings.bind(name, inputs.at(std::stoul(name.substr(std::string("input").size()))));
  }
  Interpreter interpreter(graph, {.check_results = check_results, .groups = groups});
  at::manual_seed(program.seed());
  outcome.outputs = interpreter.run(bindings).outputs;
  return outcome;
}

std::string difference(const Outcome& eager, const Outcome& replayed, const Comparison& comparison) {
  if (eager.outputs.size() != replayed.outputs.size()) {
    return "eager returns " + std::to_string(eager.outputs.size()) + " tensors, the graph " +
           std::to_string(replayed.outputs.size());
  }
  for (size_t i = 0; i < eager.outputs.size(); ++i) {
    const at::Tensor& a = eager.outputs[i];
    const at::Tensor& b = replayed.outputs[i];
    const std::string which = "output " + std::to_string(i) + ": ";
    if (!b.defined()) return which + "undefined";
    if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes() ||
        (comparison.strides && a.strides() != b.strides())) {
      return which + "eager gives " + geometry(a) + ", the graph " + geometry(b);
    }
    if (!same_bits(a, b)) return which + c10::str("eager gives\n", a, "\nthe graph\n", b);
  }
  for (size_t i = 0; i < eager.inputs.size(); ++i) {
    const c10::Storage& a = eager.inputs[i].storage();
    const c10::Storage& b = replayed.inputs[i].storage();
    if (a.nbytes() != b.nbytes()) {
      return "input " + std::to_string(i) + ": its storage has " + std::to_string(a.nbytes()) +
             " bytes in eager, but with the graph " + std::to_string(b.nbytes());
    }
    if (a.nbytes() != 0 && std::memcmp(a.data(), b.data(), a.nbytes()) != 0) {
      return "input " + std::to_string(i) +
             c10::str(" is left as\n", eager.inputs[i], "\nin eager, by the graph as\n", replayed.inputs[i]);
    }
  }
  if (comparison.aliasing && storage_relations(eager) != storage_relations(replayed)) {
    std::string text = "aliasing: tensor (inputs, then outputs) -> first that shares its storage, byte; eager / graph";
    const auto a = storage_relations(eager);
    const auto b = storage_relations(replayed);
    for (size_t i = 0; i < a.size(); ++i) {
      text += "\n  " + std::to_string(i) + " -> " + std::to_string(a[i].first) + ", " + std::to_string(a[i].second) +
              " / " + std::to_string(b[i].first) + ", " + std::to_string(b[i].second);
    }
    return text;
  }
  return "";
}

void expect_same_behavior(const RandomProgram& program, const Rewrite& rewrite, const Comparison& comparison) {
  expect_same_behavior(program, rewrite ? std::vector{rewrite} : std::vector<Rewrite>(), comparison);
}

void expect_same_behavior(const RandomProgram& program, const std::vector<Rewrite>& rewrites,
                          const Comparison& comparison) {
  std::string graphs;
  std::string rewritten_graph;
  try {
    const Outcome eager = run_eagerly(program);
    const Graph graph = capture(program);
    graphs = to_text(graph, PrintPreset::kCanonical);
    verify(graph);
    const Graph parsed = parse(graphs);
    std::string found;
    if (const auto lost = first_difference(graph, parsed)) found = "print and parse: " + *lost;
    if (found.empty() && rewrites.empty())
      found = difference(eager, replay(parsed, program, comparison.geometry), comparison);
    for (size_t i = 0; i < rewrites.size() && found.empty(); ++i) {
      rewritten_graph = "\nrewriting " + std::to_string(i) + " throws\n";
      const Graph rewritten = rewrites[i](parsed);
      rewritten_graph = "\nrewriting " + std::to_string(i) + " gives\n" + to_text(rewritten, PrintPreset::kCanonical);
      verify(rewritten);
      found = difference(eager, replay(rewritten, program, comparison.geometry), comparison);
    }
    if (!found.empty()) ADD_FAILURE() << found << "\n" << program.describe() << graphs << rewritten_graph;
  } catch (const std::exception& error) {
    const auto* libtorch = dynamic_cast<const c10::Error*>(&error);
    ADD_FAILURE() << (libtorch != nullptr ? libtorch->what_without_backtrace() : error.what()) << "\n"
                  << program.describe() << graphs << rewritten_graph;
  }
}

int random_program_count(int usual) {
  const char* wanted = std::getenv("SHADOWGRAPH_RANDOM_PROGRAMS");
  return wanted == nullptr ? usual : std::atoi(wanted);
}

void expect_same_behavior_of_shard(int shard, int shards, int programs, uint64_t first_seed,
                                   const std::vector<Rewrite>& rewrites, const RandomProgramOptions& options,
                                   const Comparison& comparison) {
  const char* wanted = std::getenv("SHADOWGRAPH_RANDOM_SEED");
  if (wanted != nullptr) {
    first_seed = std::strtoull(wanted, nullptr, 10);
    programs = random_program_count(1);
  }
  for (int i = shard; i < programs; i += shards) {
    const uint64_t seed = first_seed + static_cast<uint64_t>(i);
    expect_same_behavior(RandomProgram::make(seed, 8 + static_cast<int>(seed % 25), options), rewrites, comparison);
    if (::testing::Test::HasFailure()) return;  // report only the first failing program, with its graphs
  }
}

}  // namespace shadowgraph::testing
