// Replaces hooks that libtorch has cached. libtorch looks for the hooks of a kind of device once and keeps what it
// found for the life of the process. In a Python process `import torch` has asked long before this library is there.
// Internal to core/process.
#pragma once

#include <cstring>
#include <type_traits>
#include <typeinfo>

namespace shadowgraph {

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

}  // namespace shadowgraph
