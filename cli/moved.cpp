// What earlier versions called things, and where they are now.
#include <fmt/format.h>

#include <string_view>

#include "cli/verbs.h"

namespace shadowgraph::cli {
namespace {

struct Moved {
  std::string_view verb;
  std::string_view option;  // empty: the verb itself
  std::string_view now;
};

constexpr Moved kMoved[] = {
    {"print", "", "capture g.sg"},
    {"verify", "", "capture g.sg --verify"},
    {"dot", "", "draw g.sg -o g.dot' or 'draw g.sg -o g.svg"},
    {"report", "", "draw SOURCE -o page.html' or 'compare A B -o page.html"},
    {"whatif", "", "profile SOURCE --what-if zero=1,ranks=8"},
    {"assign", "", "shard --problem FILE"},
    {"diff", "", "compare A B --nodes"},
    {"codegen", "", "emit SOURCE --lang cpp -o FOLDER"},
    {"materialize", "", "emit MODEL --weights -o w.pt"},
    {"models", "", "list models"},
    {"devices", "", "list devices"},
    {"passes", "", "list passes"},
    {"kernels", "", "list kernels [--verify|--prune SIZE|--clear]"},
    {"profile", "--by", "fit SOURCE --batch 1..512 --by live"},
    {"profile", "--device-memory", "profile SOURCE --memory 80GiB"},
    {"draw", "--svg", "draw SOURCE -o NAME.svg"},
    {"draw", "--compare", "compare A B -o page.html"},
    {"emit", "--namespace", "emit SOURCE --name NAME"},
    {"list", "--max-bytes", "list kernels --prune SIZE"},
};

}  // namespace

std::optional<std::string> moved_verb(const std::string& verb) {
  for (const Moved& moved : kMoved) {
    if (moved.verb == verb && moved.option.empty()) return fmt::format("'{}' is now '{}'", verb, moved.now);
  }
  return std::nullopt;
}

std::optional<std::string> moved_option(int argc, char** argv) {
  for (int i = 2; i < argc; ++i) {
    const std::string_view word = argv[i];
    for (const Moved& moved : kMoved) {
      if (moved.option.empty() || moved.verb != argv[1] || moved.option != word.substr(0, word.find('='))) continue;
      return fmt::format("'{} {}' is now '{}'", moved.verb, moved.option, moved.now);
    }
  }
  return std::nullopt;
}

}  // namespace shadowgraph::cli
