// Reads what to_json(Profile) was, for a page that compares with it.
#pragma once

#include <string>

namespace shadowgraph {

// Returns the profile's JSON as the page reads it: checked, with a title, without what a comparison leaves alone.
// Throws ParseError if it is no profile of one program. `title` may be empty: then it is the model's name.
std::string saved_profile(const std::string& text, const std::string& title);

}  // namespace shadowgraph
