// Declares options with their checks, and rejects combinations of options.
#pragma once

#include <CLI/CLI.hpp>

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "shadowgraph/names.h"
#include "shadowgraph/options.h"
#include "shadowgraph/profile/memory.h"

namespace shadowgraph::cli {

// Replaces CLI11's number checks, whose messages print the whole range of a double.
CLI::Validator whole_number_from(int64_t least);
// Accepts one of the words. CLI11's own check would list all of them in --help.
CLI::Validator one_of(std::vector<std::string> words);
// Accepts "cpu", "cuda" and "cuda:1". Returns the error message, or "".
std::string device_name(const std::string& text);

// Adds an option in its group of --help. `read` stores the words and throws Error if they are invalid; `check` only
// validates. `value` is shown as the default.
using ReadWords = std::function<void(const std::vector<std::string>& words)>;
CLI::Option* add_option(CLI::App& command, const Option& option, const ReadWords& read, const ReadWords& check,
                        const std::vector<std::string>& value);
template <class Request>
CLI::Option* add_option(CLI::App& command, Request& request, const typename OptionTable<Request>::Row& row) {
  return add_option(
      command, row, [&request, read = row.read](const auto& words) { read(request, words); },
      [read = row.read](const auto& words) {
        Request scratch{};
        read(scratch, words);
      },
      row.print(request));
}
template <class Request>
void add_options(CLI::App& command, Request& request, const OptionTable<Request>& table) {
  for (const auto& row : table.rows()) add_option(command, request, row);
}

// Adds an option for a single field. `name` is "--rows". The field's value is shown as the default if it is valid.
template <class T>
struct Field {
  T value;
};
template <class T>
CLI::Option* add_field(CLI::App& command, T& value, const OptionTable<Field<T>>& table) {
  const auto& row = table.rows().front();
  const auto check = [read = row.read](const std::vector<std::string>& words) {
    Field<T> scratch{};
    read(scratch, words);
    return std::move(scratch.value);
  };
  return add_option(
      command, row, [&value, check](const auto& words) { value = check(words); }, check, row.print({value}));
}
template <class T>
CLI::Option* add_field(CLI::App& command, const std::string& name, T& value, const std::string& description,
                       OptionDomain takes = {}) {
  return add_field(command, value,
                   OptionTable<Field<T>>().add(name.substr(2), &Field<T>::value, description, std::move(takes)));
}
template <class Number>
void add_number(CLI::App& command, const std::string& name, Number& number, double least,
                const std::string& description) {
  add_field(command, name, number, description, {.min = least});
}
inline void add_tokens(CLI::App& command, const std::string& name, int64_t& tokens, const std::string& description) {
  add_field(command, name, tokens, description, {.kind = OptionKind::kCount, .min = 1});
}
inline void add_bytes(CLI::App& command, const std::string& name, std::optional<int64_t>& bytes,
                      const std::string& description) {
  add_field(command, name, bytes, description, {.kind = OptionKind::kBytes, .min = 1});
}
// An option that may be repeated.
inline CLI::Option* add_list(CLI::App& command, const std::string& name, std::vector<std::string>& list,
                             const std::string& description) {
  return add_field(command, name, list, description, {.has_commas = true});
}
inline void add_choice(CLI::App& command, const std::string& name, std::string& value, std::vector<std::string> words,
                       const std::string& description) {
  add_field(command, name, value, description, {.words = std::move(words)});
}
// Maps words to values. A default without a word is not shown.
template <class Value>
requires(!std::is_same_v<Value, std::string>) void add_choice(
    CLI::App& command, const std::string& name, Value& value,
    std::vector<std::pair<std::string, std::type_identity_t<Value>>> choices, const std::string& description) {
  add_field(command, value,
            OptionTable<Field<Value>>().words(name.substr(2), &Field<Value>::value, std::move(choices), description));
}
template <NamedEnum E>
void add_choice(CLI::App& command, const std::string& name, E& value, const std::string& description) {
  add_field(command, name, value, description);
}
// Adds --memory: a size, or the name of a device (MemoryLimit::parse).
inline void add_memory(CLI::App& command, std::optional<MemoryLimit>& memory, const std::string& description) {
  using Memory = Field<std::optional<MemoryLimit>>;
  add_field(command, memory,
            OptionTable<Memory>().parsed(
                "memory", &Memory::value, &MemoryLimit::parse, [](const MemoryLimit& limit) { return limit.title; },
                description, MemoryLimit::takes()));
}

// Reject other options given together with `option`, as wrong usage. `words` are names of options and of groups.
void takes_only(const CLI::App& command, std::string_view option, std::initializer_list<std::string_view> words);
void takes_none_of(const CLI::App& command, std::string_view option, std::initializer_list<std::string_view> words);

}  // namespace shadowgraph::cli
