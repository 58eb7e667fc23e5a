// The table of passes: one row each. A new pass adds its file and its row.
#include <algorithm>
#include <memory>
#include <mutex>

#include "passes/builtin_passes.h"
#include "shadowgraph/passes/checkpoint.h"
#include "shadowgraph/passes/decompose.h"
#include "shadowgraph/passes/functional.h"
#include "shadowgraph/passes/pass.h"
#include "shadowgraph/passes/rewrite.h"
#include "shadowgraph/passes/shapes.h"
#include "shadowgraph/passes/structure.h"

namespace shadowgraph {
namespace {

bool is_name(std::string_view name) {
  const auto fits = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-'; };
  return !name.empty() && name.front() >= 'a' && name.front() <= 'z' && std::all_of(name.begin(), name.end(), fits);
}

struct Registry {
  std::mutex mutex;
  std::map<std::string, std::unique_ptr<const Pass>, std::less<>> passes;

  void add(Pass pass) {
    if (!is_name(pass.name))
      throw Error("'" + pass.name + "' is no name of a pass: lower case letters, digits and '-'");
    if (!pass.run) throw Error("pass '" + pass.name + "' has no function");
    auto [entry, added] = passes.try_emplace(pass.name);
    if (!added) throw Error("there is a pass named '" + pass.name + "' already");
    entry->second = std::make_unique<const Pass>(std::move(pass));
  }
};

std::vector<Pass> built_in_passes() {
  return {
      {.name = "canonicalize",
       .summary = "One way of writing for what can be written in many: no-op views and copies, view chains, arguments",
       .run = canonicalize},
      {.name = "checkpoint",
       .summary = "Activation checkpointing: backward computes again what forward then need not keep",
       .run = checkpoint_pass,
       .options = {{"modules", "",
                    "patterns of paths joined by '+', or auto: the longest run of numbered modules; none: "
                    "regions marked as checkpoints"},
                   {"policy", "each", "each, every (k-th), sqrt (segments), or budget (the fewest from the first on)"},
                   {"every", "2", "with policy=every: k"},
                   {"bytes", "1", "with policy=budget: the peak of live bytes that is allowed"}}},
      {.name = "collapse",
       .summary = "One node for each call of a module or composite operator: the graph at the level of torch.fx",
       .run = collapse,
       .options = {{"level", "module", "module or composite"},
                   {"depth", "1", "names in the path of the modules that become calls: layers.0 has 2"},
                   {"bodies", "drop", "drop, or keep: calls carry what they stand for, so that they can be run"}}},
      {.name = "const-fold",
       .summary = "Computes now, on the CPU, what only depends on constants",
       .run = const_fold,
       .options = {{"max_bytes", "4096", "largest constant to make"}}},
      {.name = "cse",
       .summary = "Of nodes that compute the same thing, one stays",
       .run = cse,
       .options = {{"phases", "within", "within, or merge: backward may keep what forward computed"}}},
      {.name = "dce",
       .summary = "Erases nodes that nobody can notice; never an effect",
       .run = dce,
       .options = {{"random", "keep", "keep, or drop: later random numbers may differ"}}},
      {.name = "dead-storage",
       .summary = "Drops writes that nobody sees; allocations that are filled at once become the filling",
       .run = dead_storage},
      {.name = "decompose",
       .summary = "Replaces operators by more basic ones until a chosen set is left; lists what has no decomposition",
       .run = decompose_pass,
       .options = {{"to", "core-aten", "core-aten, no-fused, basic, names joined by '+', or @file"}}},
      {.name = "find-repeats",
       .summary = "Finds blocks that repeat, such as layers; notes repeat=\"run 0, block 3 of 32\"",
       .run = find_repeats,
       .options = {{"min_nodes", "4", "nodes of the smallest block"},
                   {"min_blocks", "2", "blocks of the shortest run"}}},
      {.name = "fuse-groups",
       .summary = "Finds chains of elementwise operators that one kernel could do; notes fuse=\"g0\"",
       .run = fuse_groups,
       .options = {{"min_nodes", "2", "nodes of the smallest group"}}},
      {.name = "free-at-last-use",
       .summary = "Storages die after their last use, as a replay frees them, not when the program let go",
       .run = free_at_last_use},
      {.name = "functionalize",
       .summary = "Resolves aliases and writes: no mutation but write-backs to what was given, at the end",
       .run = functionalize_pass},
      {.name = "reinplace",
       .summary = "Runs operators in place where nobody needs the memory any more: the reverse of functionalize",
       .run = reinplace_pass},
      {.name = "partition",
       .summary = "Finds parts of given operators that can run as one; notes part=\"0\"",
       .run = partition_pass,
       .options = {{"operators", "*", "names joined by '+', all overloads or one; *: all"},
                   {"min_nodes", "1", "nodes of the smallest part"},
                   {"merge", "all", "all: as few parts as can be; linked: only what exchanges data is a part"}}},
      {.name = "rewrite",
       .summary = "Replaces what matches patterns, both written as graph text",
       .run = rewrite_pass,
       .options = {{"file", "", "file of rules: rule NAME, pattern, =>, replacement"},
                   {"rules", "", "the rules themselves, with ';' for line ends"}}},
      {.name = "shape-prop",
       .summary = "Runs the operators again on fake tensors with other inputs; finds sizes that are baked in",
       .run = shape_prop_pass,
       .options = {{"inputs", "", "name=f32[8,3,64,64], several joined by ';'; others as recorded"},
                   {"baked", "report", "what to do about recorded sizes that stand in arguments: report or error"}}},
      {.name = "split-bias",
       .summary = "Products and convolutions with a bias: the product, and the addition by itself",
       .run = split_bias_pass},
  };
}

Registry& registry() {
  static Registry* registry = [] {
    auto* made = new Registry;  // never destroyed: user code may register and look up at any time
    for (Pass& pass : built_in_passes()) made->add(std::move(pass));
    return made;
  }();
  return *registry;
}

}  // namespace

void register_pass(Pass pass) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  all.add(std::move(pass));
}

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
