// Whether the libtorch of this process is the one that the library was compiled for, and behaves as its private pieces are
// taken to. Asked once, when what changes the process is installed (core/fake/mode/process_state.h).
#pragma once

#include <c10/util/Registry.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <type_traits>
#include <typeinfo>

namespace shadowgraph {

// "2.13.0" of what TORCH_ABI_VERSION and aoti_torch_abi_version() say: a byte for each number, the first the highest.
std::string libtorch_version_text(uint64_t abi_version);

// Throws Error unless `loaded` is the version of the headers: classes of libtorch have other layouts and
// virtual functions in each.
void check_libtorch_version(uint64_t loaded);
void check_libtorch_version();

// Throws Error that names `piece` of libtorch unless it did what is relied on.
void require_of_libtorch(bool holds, const char* piece, const char* what_it_should_do);

// Replaces hooks that libtorch has cached. libtorch looks for the hooks of a kind of device once and keeps what it
// found for the life of the process. In a Python process `import torch` has asked long before this library is there.
// Internal to core/process.
//
// Replaces: hooks that are registered before libtorch asks, which a Python process is too late for.
// Since:    2.12, and the same up to 2.15.
// Check:    the assertion below, and check_what_was_installed (core/fake/mode/process_state.cpp).

// Makes `cached` an object of class Hooks. Hooks interfaces are a table of virtual functions and nothing else, so that
// is one pointer. What the object was keeps its memory and is never destroyed.
template <class Hooks, class Interface>
void replace_cached_hooks(const Interface& cached, const Hooks& ours) {
  static_assert(std::is_base_of_v<Interface, Hooks> && sizeof(Hooks) == sizeof(void*));
  if (typeid(cached) == typeid(Hooks)) return;
  std::memcpy(const_cast<void*>(static_cast<const void*>(&cached)), static_cast<const void*>(&ours), sizeof(void*));
}

// Does the same if libtorch found none: hooks of a backend that is there are left alone.
template <class Hooks, class Interface>
void replace_missing_hooks(const Interface& cached, const Hooks& ours) {
  if (typeid(cached) == typeid(Interface)) replace_cached_hooks(cached, ours);
}

// Registers hooks for when libtorch asks, unless there are some. A maker takes no arguments, but one until 2.12.
template <class Hooks, class Interface, class Registry>
void register_missing_hooks(Registry& registry, const char* name) {
  if (registry.Has(name)) return;
  registry.Register(
      name, [](const auto&...) { return std::unique_ptr<Interface>(new Hooks); }, "", c10::REGISTRY_FALLBACK);
}

}  // namespace shadowgraph
