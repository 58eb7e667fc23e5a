// Reads a saved profile (the JSON of to_json(Profile)) for a page that compares with it.
#pragma once

#include <string>

namespace shadowgraph {

// Returns the profile's JSON for the page: validated, with a title, without members that a comparison does not need.
// Throws ParseError if it is not the profile of one program. If `title` is empty, the model's name is used.
std::string saved_profile(const std::string& text, const std::string& title);

}  // namespace shadowgraph
