// A view model as text in Graphviz' DOT language: nested clusters, coloured boxes, types on edges, a legend.
//
// Ids come from node positions, so the text is the same for every capture of a program. Labels and tooltips may hold
// any bytes: quotes, backslashes, braces, ampersands and line ends are escaped, what is not UTF-8 becomes '?'.
#pragma once

#include <string>
#include <string_view>

#include "viz/view_model.h"

namespace shadowgraph {

struct DotOptions {
  bool legend = true;  // colours in use, and the model's notes
};

std::string write_dot(const ViewModel& model, const DotOptions& options = {});

// `text` as it stands between the quotes of a DOT string: rendered, it is `text` again. Lines are separated by
// `line_end`.
std::string escape_dot(std::string_view text, std::string_view line_end = "\\n");

}  // namespace shadowgraph
