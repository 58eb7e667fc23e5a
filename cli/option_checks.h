// What an option takes, and what is said of text that it does not take.
#pragma once

#include <CLI/CLI.hpp>

#include <cstdint>
#include <optional>
#include <string>

namespace shadowgraph::cli {

// CLI11's own number checks print the whole range of a double.
CLI::Validator whole_number_from(int64_t least);
// "80GB", "24GiB"; `example` is one that the message names.
CLI::Validator size_like(const std::string& example);
std::string positive_number(const std::string& text);
std::string from_0_to_1(const std::string& text);
// "512", "4k", "1k..": the number.
std::optional<int64_t> sequence_option(std::string text);

}  // namespace shadowgraph::cli
