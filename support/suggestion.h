// Suggestions for mistyped names.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace shadowgraph {

// Returns the candidate closest to `name` by edit distance, ignoring case and punctuation; otherwise the first one that
// begins with `name`; empty if there is none.
//
//     closest("ResNet-5", {"resnet50", "gpt2"})  // "resnet50"
std::string closest(std::string_view name, std::span<const std::string> candidates);

// Throws ParseError for a member other than `keys`: "memory is not a key of a device spec (did you mean ...".
class JsonPlace;
void check_keys(const JsonPlace& object, std::string_view whose, std::span<const std::string> keys);
// Throws likewise for a key, at any depth, that docs/profile.schema.json does not list. For readers of parts of profiles.
void refuse_keys_outside_schema(const JsonPlace& profile);

}  // namespace shadowgraph
