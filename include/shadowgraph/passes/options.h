// Options of passes: fields of a struct, declared once. What text forms read, what `shadowgraph list passes` shows and
// messages say follows from the table beside them.
//
//     struct DceOptions {
//       enum class Random : uint8_t { kKeep, kDrop };
//       Random random = Random::kKeep;
//
//       static OptionTable<DceOptions> table() {
//         return OptionTable<DceOptions>().choice("random", &DceOptions::random, {"keep", "drop"},
//                                                 "keep, or drop: later random numbers may differ");
//       }
//     };
//
// Defaults are those of the struct. Reading throws Error that names the option, what it was given, and what it takes.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "shadowgraph/export.h"

namespace SHADOWGRAPH_API shadowgraph {

// Options as text, by name.
using PassOptions = std::map<std::string, std::string, std::less<>>;

// What the text form knows of an option.
struct PassOption {
  std::string name;
  std::string default_value;
  std::string summary;
};

namespace internal {
size_t choice_of(std::string_view name, std::string_view text, std::span<const std::string> choices);
int64_t whole_number_of(std::string_view name, std::string_view text, int64_t least, int64_t most);
[[noreturn]] void refuse_option(std::string_view name);
}  // namespace internal

template <class Options>
class OptionTable {
 public:
  // An enum whose enumerators, from 0 on, are called `names`.
  template <class Enum>
  requires std::is_enum_v<Enum> OptionTable choice(std::string name, Enum Options::*field,
                                                   std::vector<std::string> names, std::string summary) && {
    auto print = [field, names](const Options& options) { return names[static_cast<size_t>(options.*field)]; };
    auto read = [field, name, names = std::move(names)](Options& options, const std::string& text) {
      options.*field = static_cast<Enum>(internal::choice_of(name, text, names));
    };
    return add(std::move(name), std::move(summary), std::move(read), std::move(print));
  }
  OptionTable whole_number(std::string name, int64_t Options::*field, int64_t least, std::string summary,
                           int64_t most = std::numeric_limits<int64_t>::max()) && {
    auto print = [field](const Options& options) { return std::to_string(options.*field); };
    auto read = [field, name, least, most](Options& options, const std::string& text) {
      options.*field = internal::whole_number_of(name, text, least, most);
    };
    return add(std::move(name), std::move(summary), std::move(read), std::move(print));
  }
  OptionTable text(std::string name, std::string Options::*field, std::string summary) && {
    return add(
        std::move(name), std::move(summary),
        [field](Options& options, const std::string& text) { options.*field = text; },
        [field](const Options& options) { return options.*field; });
  }
  // Any other type: `parse` throws Error for what it does not take, `print` gives the text that `parse` reads back.
  template <class Field>
  OptionTable parsed(std::string name, Field Options::*field, Field (*parse)(const std::string&),
                     std::string (*print)(const Field&), std::string summary) && {
    return add(
        std::move(name), std::move(summary),
        [field, parse](Options& options, const std::string& text) { options.*field = parse(text); },
        [field, print](const Options& options) { return print(options.*field); });
  }

  // Those not given keep their defaults.
  Options read(const PassOptions& given) const {
    Options options;
    for (const auto& [name, text] : given) row(name).read(options, text);
    return options;
  }
  std::vector<PassOption> describe() const {
    std::vector<PassOption> described;
    for (const Row& row : rows_) described.push_back({row.name, row.print(Options()), row.summary});
    return described;
  }

 private:
  struct Row {
    std::string name;
    std::string summary;
    std::function<void(Options&, const std::string&)> read;
    std::function<std::string(const Options&)> print;
  };
  template <class Read, class Print>
  OptionTable add(std::string name, std::string summary, Read read, Print print) {
    rows_.push_back({std::move(name), std::move(summary), std::move(read), std::move(print)});
    return std::move(*this);
  }
  const Row& row(const std::string& name) const {
    for (const Row& row : rows_) {
      if (row.name == name) return row;
    }
    internal::refuse_option(name);
  }

  std::vector<Row> rows_;
};

}  // namespace shadowgraph
