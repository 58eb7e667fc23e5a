// What an option takes, what is said of text that it does not take, and which options go together.
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

#include "shadowgraph/options.h"
#include "shadowgraph/profile/memory.h"

namespace shadowgraph::cli {

// CLI11's own number checks print the whole range of a double.
CLI::Validator whole_number_from(int64_t least);
// One of these words; CLI11's own check fills the screen of --help with them.
CLI::Validator one_of(std::vector<std::string> words);
// "80GB", "24GiB"; `example` is one that the message names.
CLI::Validator size_like(const std::string& example);
std::string from_0_to_1(const std::string& text);
// "cpu", "cuda", "cuda:1".
std::string device_name(const std::string& text);

// Options of one kind; what they hold already is shown as the default, if the option would take it.
void add_choice(CLI::App& command, const std::string& name, std::string& value, std::vector<std::string> words,
                const std::string& description);
// The same for words that mean values: an enumerator, a dtype. A value that no word means is not shown.
template <class Value>
requires(!std::is_same_v<Value, std::string>) void add_choice(
    CLI::App& command, const std::string& name, Value& value,
    std::vector<std::pair<std::string, std::type_identity_t<Value>>> choices, const std::string& description) {
  std::vector<std::string> words;
  std::string held;
  for (const auto& [word, meaning] : choices) {
    words.push_back(word);
    if (meaning == value) held = word;
  }
  const auto set = [&value, choices = std::move(choices)](const std::string& text) {
    for (const auto& [word, meaning] : choices) {
      if (word == text) value = meaning;
    }
  };
  command.add_option_function<std::string>(name, set, description)->check(one_of(std::move(words)))->default_str(held);
}
template <class Number>
void add_number(CLI::App& command, const std::string& name, Number& number, int64_t least,
                const std::string& description) {
  CLI::Option* option = command.add_option(name, number, description)->check(whole_number_from(least));
  if constexpr (std::is_integral_v<Number>) {
    if (number >= static_cast<Number>(least)) option->capture_default_str();
  }
}
// Tokens, as parse_count takes them: "512", "8Ki".
CLI::Option* add_tokens(CLI::App& command, const std::string& name, int64_t& tokens, const std::string& description);
void add_bytes(CLI::App& command, const std::string& name, std::optional<int64_t>& bytes,
               const std::string& description, const std::string& example = "24GiB");
// The memory of a device, the same in all verbs: a size, or a device's name (MemoryLimit::parse). What a size may have
// been meant for is said on stderr.
void add_memory(CLI::App& command, const std::function<void(const MemoryLimit&)>& set, const std::string& description);
void add_memory(CLI::App& command, std::optional<MemoryLimit>& memory, const std::string& description);
// The option of a row, under the heading of the row. `read` throws Error for words that it does not take; `check` does
// the same and leaves no trace. `held` is shown as the default.
using ReadWords = std::function<void(const std::vector<std::string>& words)>;
CLI::Option* add_option(CLI::App& command, const Option& option, const ReadWords& read, const ReadWords& check,
                        const std::vector<std::string>& held);
template <class Request>
CLI::Option* add_option(CLI::App& command, Request& request, const typename OptionTable<Request>::Row& row) {
  return add_option(
      command, row, [&request, read = row.read](const auto& words) { read(request, words); },
      [read = row.read](const auto& words) {
        Request scratch;
        read(scratch, words);
      },
      row.print(request));
}
template <class Request>
void add_options(CLI::App& command, Request& request, const OptionTable<Request>& table) {
  for (const auto& row : table.rows()) add_option(command, request, row);
}
// May be given several times. `delimiter` stands between several in one word; '\0': nothing does.
CLI::Option* add_list(CLI::App& command, const std::string& name, std::vector<std::string>& list,
                      const std::string& description, char delimiter = '\0');

// Both refuse, as wrong usage, options that were given beside `option`. Words are names of options and of groups.
void takes_only(const CLI::App& command, std::string_view option, std::initializer_list<std::string_view> words);
void takes_none_of(const CLI::App& command, std::string_view option, std::initializer_list<std::string_view> words);

}  // namespace shadowgraph::cli
