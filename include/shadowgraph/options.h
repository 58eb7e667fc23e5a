// Options as struct fields: command line, Python keywords, JSON, text form, help and errors follow from one table.
//
//     struct DceOptions {
//       enum class Random : uint8_t { kKeep, kDrop };
//       Random random = Random::kKeep;
//       int64_t most = 100;
//
//       static OptionTable<DceOptions> table() {
//         return OptionTable<DceOptions>()
//             .choice("random", &DceOptions::random, {"keep", "drop"}, "Keep or drop unused random operators")
//             .add("most", &DceOptions::most, "Maximum number of erased nodes", {.min = 1});
//       }
//     };
//
// Names are written as in Python, JSON and the text form ("micro_batch"); the command line uses --micro-batch. Defaults
// are those of the struct. Accepted values follow from the type of the field: flags, numbers, strings, enums with names
// (shadowgraph/names.h), optionals, and lists of these. A field is given as a member pointer or as a function that
// returns a reference: [](auto& request) -> auto& { return request.state.gradient; }.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include "shadowgraph/error.h"
#include "shadowgraph/export.h"
#include "shadowgraph/names.h"

namespace SHADOWGRAPH_API shadowgraph {

// Type of value. kCount, kBytes and kSeconds are parsed with units (shadowgraph/units.h): "16M", "24GiB", "14d".
enum class OptionKind : uint8_t { kText, kFlag, kWhole, kNumber, kCount, kBytes, kSeconds };

struct OptionDomain {
  OptionKind kind = OptionKind::kText;  // deduced from the field, except for values with units
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool above = false;              // exclusive minimum
  bool list = false;               // deduced from the field
  bool has_commas = false;         // list elements contain commas, so that commas do not separate them
  std::vector<std::string> words;  // accepted words; empty: any
  std::string placeholder = {};    // shown in --help; empty: default of the kind
  std::string (*note)(const std::string& text) = nullptr;  // returns a warning about an accepted value, or ""

  std::string text() const;  // description for messages: "an integer >= 1", "a list, each ..."
};

struct Option {
  std::string name;
  std::string group;    // heading in --help
  std::string summary;  // one line of help
  OptionDomain takes;

  std::string flag() const;         // "--micro-batch"
  std::string placeholder() const;  // "INT"
  // Convert between JSON and words (one word, or one per list element). Throw Error for JSON of the wrong type.
  nlohmann::json json(const std::vector<std::string>& words) const;
  std::vector<std::string> words(const nlohmann::json& value) const;
  // Split and join the single string used by the text form.
  std::vector<std::string> split(const std::string& text) const;
  static std::string joined(const std::vector<std::string>& words);
};

namespace internal {
// Throw Error that states the given and the accepted values.
size_t choice_of(const std::string& text, const OptionDomain& takes);
int64_t whole_of(const std::string& text, const OptionDomain& takes);
double number_of(const std::string& text, const OptionDomain& takes);
bool flag_of(const std::string& text, const OptionDomain& takes);
std::string print_number(double number, OptionKind kind);
[[noreturn]] void refuse_count(size_t given);
[[noreturn]] void refuse_option(std::string_view name, const std::vector<std::string>& names);

template <class T>
struct OptionField {
  using Element = T;
  static constexpr bool list = false;
};
template <class T>
struct OptionField<std::optional<T>> : OptionField<T> {};
template <class T>
struct OptionField<std::vector<T>> : OptionField<T> {
  static constexpr bool list = true;
};

template <class T>
OptionDomain taken_by(OptionDomain takes) {
  using Element = typename OptionField<T>::Element;
  if (takes.kind != OptionKind::kText) return takes;
  if constexpr (std::is_same_v<Element, bool>) {
    takes.kind = OptionKind::kFlag;
  } else if constexpr (std::is_integral_v<Element>) {
    takes.kind = OptionKind::kWhole;
    takes.max = std::min(takes.max, static_cast<double>(std::numeric_limits<Element>::max()));
  } else if constexpr (std::is_floating_point_v<Element>) {
    takes.kind = OptionKind::kNumber;
  } else if constexpr (NamedEnum<Element>) {
    takes.words = enum_words<Element>();
  }
  return takes;
}

template <class T>
T read_word(const std::string& text, const OptionDomain& takes) {
  if constexpr (std::is_same_v<T, bool>) {
    return flag_of(text, takes);
  } else if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(whole_of(text, takes));
  } else if constexpr (std::is_floating_point_v<T>) {
    return number_of(text, takes);
  } else if constexpr (NamedEnum<T>) {
    return enum_names(T{})[choice_of(text, takes)].value;
  } else {
    if (!takes.words.empty()) choice_of(text, takes);
    return text;
  }
}

template <class T>
std::string print_word(const T& value, OptionKind kind) {
  if constexpr (std::is_same_v<T, bool>) {
    return value ? "true" : "false";
  } else if constexpr (std::is_integral_v<T>) {
    return std::to_string(value);
  } else if constexpr (std::is_floating_point_v<T>) {
    return print_number(value, kind);
  } else if constexpr (NamedEnum<T>) {
    return std::string(to_string(value));
  } else {
    return value;
  }
}
}  // namespace internal

template <class Options>
class OptionTable {
  template <class Field>
  using Type = std::remove_cvref_t<std::invoke_result_t<Field, Options&>>;
  template <class Field>
  using Choices = std::vector<std::pair<std::string, typename internal::OptionField<Type<Field>>::Element>>;

 public:
  struct Row : Option {
    // Parses `words` into the field. Throws Error for invalid values.
    std::function<void(Options&, const std::vector<std::string>& words)> read;
    // Returns the value as words; empty if the option is unset or an empty list.
    std::function<std::vector<std::string>(const Options&)> print;
  };

  // Sets the --help heading of all options added after this call.
  OptionTable group(std::string heading) && {
    group_ = std::move(heading);
    return std::move(*this);
  }
  template <class Field>
  OptionTable add(std::string name, Field field, std::string summary, OptionDomain takes = {}) && {
    using Element = typename internal::OptionField<Type<Field>>::Element;
    takes = internal::taken_by<Type<Field>>(std::move(takes));
    const auto print = [kind = takes.kind](const Element& value) { return internal::print_word(value, kind); };
    return fill(std::move(name), field, std::move(summary), std::move(takes), &internal::read_word<Element>, print);
  }
  // Adds an option of any other type. `parse` throws Error for invalid text; `print` returns text that `parse` accepts.
  template <class Field, class Parse, class Print>
  OptionTable parsed(std::string name, Field field, Parse parse, Print print, std::string summary,
                     OptionDomain takes = {}) && {
    return fill(
        std::move(name), field, std::move(summary), std::move(takes),
        [parse](const std::string& text, const OptionDomain&) { return parse(text); }, print);
  }
  // Adds an option with a fixed set of words and the values they map to.
  template <class Field>
  OptionTable words(std::string name, Field field, Choices<Field> choices, std::string summary) && {
    OptionDomain takes;
    for (const auto& [word, value] : choices) takes.words.push_back(word);
    const auto print = [choices](const auto& value) {
      for (const auto& [word, meaning] : choices) {
        if (meaning == value) return word;
      }
      return std::string();
    };
    const auto read = [choices](const std::string& text, const OptionDomain& takes) {
      return choices[internal::choice_of(text, takes)].second;
    };
    return fill(std::move(name), field, std::move(summary), std::move(takes), read, print);
  }
  // Adds an option for an enum whose enumerators, starting from 0, are called `names`.
  template <class Enum>
  requires std::is_enum_v<Enum> OptionTable choice(std::string name, Enum Options::*field,
                                                   std::vector<std::string> names, std::string summary) && {
    std::vector<std::pair<std::string, Enum>> choices;
    for (std::string& word : names) choices.emplace_back(std::move(word), static_cast<Enum>(choices.size()));
    return std::move(*this).words(std::move(name), field, std::move(choices), std::move(summary));
  }

  const std::vector<Row>& rows() const& { return rows_; }
  const std::vector<Row>& rows() && = delete;  // would dangle in a range-based for loop
  const Row* find(std::string_view name) const {
    for (const Row& row : rows_) {
      if (row.name == name) return &row;
    }
    return nullptr;
  }
  // Returns the option called `name`. Throws Error if there is none.
  const Row& at(std::string_view name) const {
    if (const Row* row = find(name)) return *row;
    std::vector<std::string> names;
    for (const Row& row : rows_) names.push_back(row.name);
    internal::refuse_option(name, names);
  }
  // Throws Error if a field holds a value that could not be parsed from text.
  void check(const Options& options) const {
    Options scratch;
    for (const Row& row : rows_) {
      const std::vector<std::string> words = row.print(options);
      if (words.empty()) continue;
      try {
        row.read(scratch, words);
      } catch (const Error& error) {
        throw Error(row.name + ": " + error.what());
      }
    }
  }
  // Parses options from text by name. Options not given keep their defaults.
  Options read(const std::map<std::string, std::string, std::less<>>& given) const {
    Options options;
    for (const auto& [name, text] : given) {
      const Row& row = at(name);
      try {
        row.read(options, row.split(text));
      } catch (const Error& error) {
        if (typeid(error) != typeid(Error)) throw;
        throw Error("option " + name + "=" + text + ": " + error.what());
      }
    }
    return options;
  }

 private:
  // `read` parses the whole value, a list element, or the content of an optional.
  template <class Field, class Read, class Print>
  OptionTable fill(std::string name, Field field, std::string summary, OptionDomain takes, Read read, Print print) {
    using Value = Type<Field>;
    using Element = std::remove_cvref_t<std::invoke_result_t<Read, const std::string&, const OptionDomain&>>;
    constexpr bool kList = internal::OptionField<Value>::list && !std::is_same_v<Value, Element>;
    takes.list = kList;
    Row& row = rows_.emplace_back();
    row.name = std::move(name);
    row.group = group_;
    row.summary = std::move(summary);
    row.takes = takes;
    row.read = [field, takes = std::move(takes), read](Options& options, const std::vector<std::string>& words) {
      if constexpr (kList) {
        Value values;
        for (const std::string& word : words) values.push_back(read(word, takes));
        std::invoke(field, options) = std::move(values);
      } else {
        if (words.size() != 1) internal::refuse_count(words.size());
        std::invoke(field, options) = read(words.front(), takes);
      }
    };
    row.print = [field, print, choices = row.takes.words](const Options& options) {
      const Value& value = std::invoke(field, options);
      std::vector<std::string> words;
      if constexpr (kList) {
        for (const auto& element : value) words.push_back(print(element));
      } else if constexpr (std::is_same_v<Value, std::optional<Element>>) {
        if (value) words.push_back(print(*value));
      } else {
        words.push_back(print(value));
      }
      if (!choices.empty()) std::erase(words, "");  // values without a word
      return words;
    };
    return std::move(*this);
  }

  std::vector<Row> rows_;
  std::string group_;
};

}  // namespace shadowgraph
