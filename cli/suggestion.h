// What somebody who mistyped a name may have meant.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace shadowgraph::cli {

// The candidate nearest to `name` by edit distance, case and punctuation aside; empty if none is near.
//
//     closest("ResNet-5", {"resnet50", "gpt2"})  // "resnet50"
std::string closest(std::string_view name, std::span<const std::string> candidates);

}  // namespace shadowgraph::cli
