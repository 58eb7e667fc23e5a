// Verbs and options of earlier versions: the tool says what they are called now, and does nothing else.
#pragma once

#include <optional>
#include <string>

namespace shadowgraph::cli {

// "'print' is now 'capture g.sg'", if the first word of the command line was a verb once.
std::optional<std::string> moved_verb(const std::string& verb);
// The same for an option among the words of a command line that could not be read.
std::optional<std::string> moved_option(int argc, char** argv);

}  // namespace shadowgraph::cli
