// Conversion between enumerators and names: to_string(), parse() and lists of names follow from one table per enum.
//
//     enum class Recompute : uint8_t { kNone, kSelective, kFull };
//     constexpr auto enum_names(Recompute) {
//       return names_of<Recompute>({{Recompute::kNone, "none"}, ...});
//     }
//
//     to_string(Recompute::kFull);                   // "full"
//     parse<Recompute>("full", "recompute");  // throws Error that lists the accepted names
//     find_named<Recompute>("full");                 // std::nullopt if there is no such name
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "shadowgraph/export.h"

namespace SHADOWGRAPH_API shadowgraph {

template <class E>
struct EnumName {
  E value;
  std::string_view name;
};

// Defines the name table of an enum. Messages and --help list the names in this order.
template <class E, size_t n>
constexpr std::array<EnumName<E>, n> names_of(const EnumName<E> (&names)[n]) {
  return std::to_array(names);
}

template <class E>
concept NamedEnum = std::is_enum_v<E> && requires(E value) {
  enum_names(value);
};

// Defines the name table from names in the order of the enumerators, starting at `first`.
template <class E, E first = E{}, class... Names>
constexpr auto names_in_order(Names... names) {
  auto value = static_cast<std::underlying_type_t<E>>(first);
  return std::array<EnumName<E>, sizeof...(names)>{EnumName<E>{static_cast<E>(value++), names}...};
}

// Returns the name of `value`, or "?" for a value that is not an enumerator.
template <NamedEnum E>
constexpr std::string_view to_string(E value) {
  for (const auto& row : enum_names(E{})) {
    if (row.value == value) return row.name;
  }
  return "?";
}

template <NamedEnum E>
constexpr std::optional<E> find_named(std::string_view name) {
  for (const auto& row : enum_names(E{})) {
    if (row.name == name) return row.value;
  }
  return std::nullopt;
}

template <NamedEnum E>
std::vector<std::string> enum_words() {
  std::vector<std::string> words;
  for (const auto& row : enum_names(E{})) words.emplace_back(row.name);
  return words;
}

namespace internal {
[[noreturn]] void refuse_name(std::string_view what, std::string_view text, std::span<const std::string> names);
}  // namespace internal

// Returns the enumerator called `text`. Throws Error, in which `what` names the option ("recompute").
template <NamedEnum E>
E parse(std::string_view text, std::string_view what) {
  if (const auto value = find_named<E>(text)) return *value;
  internal::refuse_name(what, text, enum_words<E>());
}

}  // namespace shadowgraph
