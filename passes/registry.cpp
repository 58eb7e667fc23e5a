// The registry of passes. A new pass needs a source file, a declaration and a row in this table.
#include <algorithm>
#include <map>
#include <memory>
#include <mutex>

#include "passes/precision/float8.h"
#include "shadowgraph/passes/functional.h"
#include "shadowgraph/passes/pass.h"
#include "shadowgraph/passes/recompute.h"
#include "shadowgraph/passes/shapes.h"
#include "shadowgraph/passes/simplify.h"
#include "shadowgraph/passes/structure.h"

namespace shadowgraph {
namespace {

// Other characters have a meaning in pipeline text.
bool is_name(std::string_view name) {
  const auto fits = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-'; };
  return !name.empty() && name.front() >= 'a' && name.front() <= 'z' && std::all_of(name.begin(), name.end(), fits);
}

struct Registry {
  std::mutex mutex;
  std::map<std::string, std::unique_ptr<const Pass>, std::less<>> passes;

  void add(Pass pass) {
    if (!is_name(pass.name))
      throw Error("'" + pass.name +
                  "' is not a valid pass name; use lower case letters, digits and '-', starting with a letter");
    if (!pass.run) throw Error("pass '" + pass.name + "' has no function to run");
    auto [entry, added] = passes.try_emplace(pass.name);
    if (!added) throw Error("a pass named '" + pass.name + "' is already registered");
    // Allocated separately, since find_pass returns addresses that must stay valid when passes are added.
    entry->second = std::make_unique<const Pass>(std::move(pass));
  }
};

// Each row has the name, the summary printed by `list passes`, and the function with its options.
std::vector<Pass> built_in_passes() {
  return {
      pass_row("canonicalize", "Canonicalizes views, copies and arguments: removes no-ops, merges chains of views",
               canonicalize),
      pass_row("checkpoint", "Activation checkpointing: recomputes activations in backward instead of keeping them",
               checkpoint_modules),
      pass_row("collapse", "Collapses each call of a module or composite operator to one node, as in torch.fx",
               collapse),
      pass_row("const-fold", "Constant folding: evaluates operators with constant operands on the CPU", const_fold),
      pass_row("cse", "Common subexpression elimination", cse),
      pass_row("dce", "Dead code elimination: removes side-effect-free nodes with unused results", dce),
      pass_row("dead-storage", "Dead store elimination; folds empty()+fill into the fill", dead_storage),
      pass_row("decompose", "Decomposes operators into a set of more basic ones; reports those without a decomposition",
               decompose),
      pass_row("find-repeats",
               "Finds repeated blocks, such as layers; annotates nodes: repeat=\"run 0, block 3 of 32\"", find_repeats),
      pass_row("float8", "Runs matrix products of linear layers in float8 with per-tensor scaling, as in torchao",
               float8_products),
      pass_row("free-at-last-use", "Frees storages after their last use instead of where the program released them",
               free_at_last_use),
      pass_row("functionalize", "Functionalization: removes aliasing and mutation; mutated inputs are copied back last",
               functionalize),
      pass_row("fuse-groups", "Finds elementwise operators that one kernel can fuse; annotates nodes: fuse=\"g0\"",
               fuse_groups),
      pass_row("merge-constants", "Merges constants with equal contents", merge_constants),
      pass_row("offload", "Offloads activations saved for backward to CPU memory", offload_modules),
      pass_row("partition", "Partitions supported operators into subgraphs; annotates nodes: part=\"0\"", partition),
      pass_row("reinplace", "Runs operators in place where an operand's memory is free; the reverse of functionalize",
               reinplace),
      pass_row("rewrite", "Replaces matches of patterns, written as graph text", rewrite),
      pass_row("shape-prop", "Shape propagation: runs operators on fake tensors for new inputs; reports baked-in sizes",
               shape_prop),
      pass_row("split-bias", "Splits products and convolutions with a bias into a product and an addition", split_bias),
  };
}

Registry& registry() {
  static Registry* registry = [] {
    auto* created = new Registry;  // never destroyed: user code may register and look up passes at any time
    for (Pass& pass : built_in_passes()) created->add(std::move(pass));
    return created;
  }();
  return *registry;
}

}  // namespace

void register_pass(Pass pass) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  all.add(std::move(pass));
}

// The address stays valid: passes are never removed.
const Pass* find_pass(std::string_view name) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  const auto found = all.passes.find(name);
  return found == all.passes.end() ? nullptr : found->second.get();
}

std::vector<const Pass*> all_passes() {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  std::vector<const Pass*> result;
  for (const auto& [name, pass] : all.passes) result.push_back(pass.get());
  return result;
}

}  // namespace shadowgraph
