// The table of passes: one row each. A new pass adds its file, its declaration and its row.
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

// Names stand in the text of a pipeline, where other characters have a meaning.
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
    // Behind a pointer, since find_pass hands out addresses that must stay right when passes are added.
    entry->second = std::make_unique<const Pass>(std::move(pass));
  }
};

// A row is name, one line for `list passes`, function; its options come from the function's second argument.
std::vector<Pass> built_in_passes() {
  return {
      pass_row("canonicalize",
               "One way of writing for what can be written in many: no-op views and copies, view chains, arguments",
               canonicalize),
      pass_row("checkpoint", "Activation checkpointing: backward computes again what forward then need not keep",
               checkpoint_modules),
      pass_row("collapse",
               "One node for each call of a module or composite operator: the graph at the level of torch.fx",
               collapse),
      pass_row("const-fold", "Computes now, on the CPU, what only depends on constants", const_fold),
      pass_row("cse", "Of nodes that compute the same thing, one stays", cse),
      pass_row("dce", "Erases nodes that nobody can notice; never an effect", dce),
      pass_row("dead-storage", "Drops writes that nobody sees; allocations that are filled at once become the filling",
               dead_storage),
      pass_row("decompose",
               "Replaces operators by more basic ones until a chosen set is left; lists what has no decomposition",
               decompose),
      pass_row("find-repeats", "Finds blocks that repeat, such as layers; notes repeat=\"run 0, block 3 of 32\"",
               find_repeats),
      pass_row("float8", "Products of linear layers in float8: operands cast by their largest element, as torchao does",
               float8_products),
      pass_row("free-at-last-use",
               "Storages die after their last use, as a replay frees them, not when the program let go",
               free_at_last_use),
      pass_row("functionalize",
               "Resolves aliases and writes: no mutation but write-backs to what was given, at the end", functionalize),
      pass_row("fuse-groups", "Finds chains of elementwise operators that one kernel could do; notes fuse=\"g0\"",
               fuse_groups),
      pass_row("merge-constants", "Of constants with the same contents, one stays", merge_constants),
      pass_row("offload", "What modules keep for backward waits on the host meanwhile", offload_modules),
      pass_row("partition", "Finds parts of given operators that can run as one; notes part=\"0\"", partition),
      pass_row("reinplace",
               "Runs operators in place where nobody needs the memory any more: the reverse of functionalize",
               reinplace),
      pass_row("rewrite", "Replaces what matches patterns, both written as graph text", rewrite),
      pass_row("shape-prop",
               "Runs the operators again on fake tensors with other inputs; finds sizes that are baked in", shape_prop),
      pass_row("split-bias", "Products and convolutions with a bias: the product, and the addition by itself",
               split_bias),
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

// The address stays good: passes are never taken out.
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
