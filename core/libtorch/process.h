// Checks that this process's libtorch is the version that the library was compiled for, and that its private parts
// behave as expected. Run once, when process-wide hooks are installed (core/fake/mode/process_state.h).
#pragma once

#include <c10/util/Registry.h>

#include <cstring>
#include <memory>
#include <type_traits>
#include <typeinfo>

namespace shadowgraph {

// Throws Error unless the loaded version is that of the headers, since layouts of classes differ between versions.
void check_libtorch_version();

// Throws Error that names `piece` of libtorch unless `holds`. `what_it_should_do` describes the failure.
void require_of_libtorch(bool holds, const char* piece, const char* what_it_should_do);

// Replaces cached hooks. libtorch looks for the hooks of a device type once and caches the result for the life of the
// process; in a Python process `import torch` has done so before this library is loaded.
//
// Replaces: hooks registered before libtorch looks for them, which is too late in a Python process.
// Since:    2.12, unchanged up to 2.15.
// Check:    the assertion below, and verify_installation (core/fake/mode/process_state.cpp).

// Turns `cached` into an object of class Hooks. Hooks interfaces have only a virtual table, so that is one pointer. The
// original object keeps its memory and is never destroyed.
template <class Hooks, class Interface>
void replace_cached_hooks(const Interface& cached, const Hooks& ours) {
  static_assert(std::is_base_of_v<Interface, Hooks> && sizeof(Hooks) == sizeof(void*));
  if (typeid(cached) == typeid(Hooks)) return;
  std::memcpy(const_cast<void*>(static_cast<const void*>(&cached)), static_cast<const void*>(&ours), sizeof(void*));
}

// The same if libtorch cached no hooks; those of a real backend are left alone.
template <class Hooks, class Interface>
void replace_missing_hooks(const Interface& cached, const Hooks& ours) {
  if (typeid(cached) == typeid(Interface)) replace_cached_hooks(cached, ours);
}

// Registers hooks unless there are some. A factory takes no arguments, or one until 2.12.
template <class Hooks, class Interface, class Registry>
void register_missing_hooks(Registry& registry, const char* name) {
  if (registry.Has(name)) return;
  registry.Register(
      name, [](const auto&...) { return std::unique_ptr<Interface>(new Hooks); }, "", c10::REGISTRY_FALLBACK);
}

}  // namespace shadowgraph
