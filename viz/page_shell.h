// One HTML file with its program, its style and its data in it, which asks nothing of any network.
//
// What comes from programs and files stands in the page compressed and in base64. So no name in it can end a script or open
// a tag. The title alone is text, and is escaped.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace shadowgraph {

struct PageText {
  const char* id;
  std::string packed;  // as of viz/page_data.h
};

// `script`: a file of viz/page/dist/.
std::string page_of(std::string_view title, std::string_view script, const std::vector<PageText>& texts);

}  // namespace shadowgraph
