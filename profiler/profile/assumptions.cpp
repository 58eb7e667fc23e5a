#include "profiler/profile/assumptions.h"

#include <algorithm>

namespace shadowgraph {

std::vector<std::string> assumptions_of(const Graph& graph) {
  std::vector<std::string> found;
  const auto noted = graph.metadata.other.find("assumed");
  if (noted != graph.metadata.other.end()) found.push_back(noted->second);
  for (const Guard& guard : graph.guards) {
    if (guard.kind != Guard::Kind::kHostValue || guard.observed.find("assumed") == std::string::npos) continue;
    if (std::find(found.begin(), found.end(), guard.observed) == found.end()) found.push_back(guard.observed);
  }
  return found;
}

}  // namespace shadowgraph
