// The table of passes: one row each. A new pass adds its file and its row.
#include <algorithm>
#include <memory>
#include <mutex>

#include "passes/pass.h"

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
    if (!is_name(pass.name)) throw Error("'" + pass.name + "' is no name of a pass: lower case letters, digits and '-'");
    if (!pass.run) throw Error("pass '" + pass.name + "' has no function");
    auto [entry, added] = passes.try_emplace(pass.name);
    if (!added) throw Error("there is a pass named '" + pass.name + "' already");
    entry->second = std::make_unique<const Pass>(std::move(pass));
  }
};

std::vector<Pass> built_in_passes() {
  return {};
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
