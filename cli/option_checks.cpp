#include "cli/option_checks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "cli/output.h"
#include "support/suggestion.h"
#include "support/text.h"

namespace shadowgraph::cli {
namespace {

// `allowed`: whether `words` lists the options that may be given, or those that may not.
void refuse(const CLI::App& command, std::string_view option, std::initializer_list<std::string_view> words,
            bool allowed) {
  for (const CLI::Option* given : command.get_options()) {
    const std::string name = given->get_name();
    if (given->count() == 0 || name == option) continue;
    const bool named =
        std::ranges::any_of(words, [&](std::string_view word) { return word == name || word == given->get_group(); });
    if (named != allowed) throw CLI::ValidationError(fmt::format("{} cannot be used with {}", name, option));
  }
}

}  // namespace

CLI::Validator whole_number_from(int64_t least) {
  return {[least](const std::string& text) {
            const auto number = parse_number<int64_t>(text);
            return number && *number >= least ? std::string()
                                              : fmt::format("'{}' is not an integer >= {}", text, least);
          },
          ""};
}

CLI::Validator one_of(std::vector<std::string> words) {
  const std::string name = fmt::format("{}", fmt::join(words, " "));  // for `shadowgraph completion`
  return CLI::Validator(
             [words = std::move(words)](const std::string& text) {
               if (std::ranges::find(words, text) != words.end()) return std::string();
               const std::string near = closest(text, words);
               return fmt::format("unknown value '{}'{}; expected one of {}", text,
                                  near.empty() ? "" : " (did you mean " + near + "?)", fmt::join(words, ", "));
             },
             "")
      .name(name);
}

std::string device_name(const std::string& text) {
  const bool cuda = text == "cuda" || (text.starts_with("cuda:") && text.size() > 5 && text.size() <= 7 &&
                                       text.find_first_not_of("0123456789", 5) == std::string::npos);
  return text == "cpu" || cuda ? std::string() : "unknown device '" + text + "'; expected cpu, cuda or cuda:i";
}

CLI::Option* add_option(CLI::App& command, const Option& option, const ReadWords& read, const ReadWords& check,
                        const std::vector<std::string>& value) {
  if (!option.group.empty()) command.option_defaults()->group(option.group);
  const std::string name = option.flag();
  const OptionDomain& takes = option.takes;
  if (takes.kind == OptionKind::kFlag) {
    return command.add_flag_function(
        name, [read](int64_t) { read({"true"}); }, option.summary);
  }
  const auto set = [name, read, note = takes.note](const std::vector<std::string>& words) {
    for (const std::string& word : words) {
      const std::string text = note == nullptr ? "" : note(word);
      if (!text.empty()) print_log("shadowgraph: {} {}\n", name, text);
    }
    read(words);
  };
  const auto problem = [check](const std::vector<std::string>& words) {
    try {
      check(words);
    } catch (const std::exception& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CLI::Option* added = takes.list ? command.add_option_function<std::vector<std::string>>(name, set, option.summary)
                                  : command.add_option_function<std::string>(
                                        name, [set](const std::string& word) { set({word}); }, option.summary);
  if (takes.list) added->take_all();
  if (takes.list && !takes.has_commas) added->delimiter(',');
  if (takes.words.empty()) {
    added->check([problem](const std::string& word) { return problem({word}); });
  } else {
    added->check(one_of(takes.words));
  }
  added->type_name(option.placeholder());
  if (!takes.list && !value.empty() && problem(value).empty()) added->default_str(value.front());
  return added;
}

void takes_only(const CLI::App& command, std::string_view option, std::initializer_list<std::string_view> words) {
  refuse(command, option, words, true);
}

void takes_none_of(const CLI::App& command, std::string_view option, std::initializer_list<std::string_view> words) {
  refuse(command, option, words, false);
}

}  // namespace shadowgraph::cli
