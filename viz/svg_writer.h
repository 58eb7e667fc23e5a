// DOT to SVG by Graphviz' own library, in this process.
//
// Only the layout and the plain renderer are loaded, from the folder beside libgvc, so neither the `dot` program nor
// its configuration file is needed, and text is measured from built-in metrics: the same picture on every machine,
// whatever fonts it has. Graphviz is not thread-safe; calls take turns. It writes nothing to stderr.
#pragma once

#include <string>

namespace shadowgraph {

// Throws Error if `dot` is not DOT, or if Graphviz or its plugins cannot be used.
std::string render_svg(const std::string& dot);

}  // namespace shadowgraph
