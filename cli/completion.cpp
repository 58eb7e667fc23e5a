// `shadowgraph completion`: prints a script for tab completion in bash and zsh.
#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>
#include <vector>

#include "cli/output.h"
#include "cli/verbs.h"
#include "models/registry.h"

namespace shadowgraph::cli {
namespace {

constexpr const char* kScript = R"sh(# eval "$(shadowgraph completion)"
[[ -n ${{ZSH_VERSION-}} ]] && autoload -U +X bashcompinit && bashcompinit
_shadowgraph() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} verb=${{COMP_WORDS[1]}} words=
  if ((COMP_CWORD == 1)); then words='{}'
  elif [[ $word == -* ]]; then
    case $verb in
{}    esac
  else
    case $verb:$before in
{}      *:--*) ;;
      *) words='{}' ;;
    esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "$word"))
  ((${{#COMPREPLY[@]}})) || COMPREPLY=($(compgen -f -- "$word"))
}}
complete -o filenames -F _shadowgraph shadowgraph
)sh";

// Returns the words that one_of() accepts, separated by blanks; "" for other options.
std::string words_of(CLI::Option& option) {
  try {
    return option.get_validator(0)->get_name();
  } catch (const CLI::OptionNotFound&) {
    return "";
  }
}

}  // namespace

Work declare_completion(CLI::App& command) {
  command.footer(
      "Examples:\n"
      "  eval \"$(shadowgraph completion)\"\n"
      "  shadowgraph completion > ~/.local/share/bash-completion/completions/shadowgraph");
  return [&command] {
    std::vector<std::string> verbs, models;
    std::string options, values;
    for (const auto& model : models::available()) models.emplace_back(model.name);
    for (CLI::App* verb : command.get_parent()->get_subcommands({})) {
      verbs.push_back(verb->get_name());
      std::vector<std::string> names;
      for (CLI::Option* option : verb->get_options({})) {
        for (const std::string& name : option->get_lnames()) {
          names.push_back("--" + name);
          const std::string words = words_of(*option);
          if (!words.empty()) values += fmt::format("      {}:--{}) words='{}' ;;\n", verbs.back(), name, words);
        }
      }
      options += fmt::format("      {}) words='{}' ;;\n", verbs.back(), fmt::join(names, " "));
    }
    print_text(fmt::format(kScript, fmt::join(verbs, " "), options, values, fmt::join(models, " ")));
    return 0;
  };
}

}  // namespace shadowgraph::cli
