// Suggestions for mistyped names.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace shadowgraph::cli {

// Returns the candidate closest to `name` by edit distance, ignoring case and punctuation; empty if none is close.
//
//     closest("ResNet-5", {"resnet50", "gpt2"})  // "resnet50"
std::string closest(std::string_view name, std::span<const std::string> candidates);

}  // namespace shadowgraph::cli
