// The functions that generated C++ carries with it, each written only into files that call it.
#pragma once

#include <set>
#include <string>

namespace shadowgraph {

// Their text in a fixed order, with what they need of one another. `headers` receives what they include.
std::string cpp_helpers(std::set<std::string> names, std::set<std::string>& headers);

}  // namespace shadowgraph
