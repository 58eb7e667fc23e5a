#include "viz/tidy_clusters.h"

#include <fmt/format.h>

#include <algorithm>

#include "viz/box_labels.h"

namespace shadowgraph {

void tidy_clusters(const std::vector<ModuleCluster>& modules, std::set<uint32_t>& titled, ViewModel& view) {
  const auto count = static_cast<uint32_t>(view.clusters.size());
  std::vector<uint32_t> boxes(count, 0);
  std::vector<uint32_t> children(count, 0);
  std::vector<uint32_t> only_box(count, DrawnGraph::kNone);
  std::vector<uint32_t> only_child(count, DrawnGraph::kNone);
  std::vector<uint32_t> first(count, DrawnGraph::kNone);
  std::vector<uint8_t> dropped(count, 0);
  for (uint32_t b = 0; b < view.boxes.size(); ++b) {
    const uint32_t c = view.boxes[b].cluster;
    ++boxes[c];
    only_box[c] = b;
    first[c] = std::min(first[c], b);
  }
  for (uint32_t c = count; c-- > 1;) {
    ViewCluster& cluster = view.clusters[c];
    const uint32_t parent = cluster.parent;
    if (boxes[c] + children[c] == 0) {
      dropped[c] = 1;
      continue;
    }
    first[parent] = std::min(first[parent], first[c]);
    if (boxes[c] == 1 && children[c] == 0 && !cluster.phase) {
      dropped[c] = 1;
      ViewBox& box = view.boxes[only_box[c]];
      box.cluster = parent;
      if (!titled.insert(only_box[c]).second) {
        box.lines.front() = shortened(cluster.title + "." + box.lines.front());
      } else {
        box.lines.insert(box.lines.begin(), cluster.title);
      }
      ++boxes[parent];
      only_box[parent] = only_box[c];
      continue;
    }
    if (boxes[c] == 0 && children[c] == 1 && modules[c].class_name.empty() && !cluster.phase) {
      dropped[c] = 1;
      ViewCluster& child = view.clusters[only_child[c]];
      child.title = cluster.title + "." + child.title;
      child.parent = parent;
      ++children[parent];
      only_child[parent] = only_child[c];
      continue;
    }
    ++children[parent];
    only_child[parent] = c;
  }
  std::vector<ViewCluster> kept;
  std::vector<uint32_t> place(count, 0);
  for (uint32_t c = 0; c < count; ++c) {
    if (dropped[c] != 0) continue;
    place[c] = static_cast<uint32_t>(kept.size());
    ViewCluster& cluster = view.clusters[c];
    cluster.parent = c == 0 ? ViewCluster::kNone : place[cluster.parent];
    cluster.id = c == 0 ? "" : fmt::format("c{}", place[c]);
    kept.push_back(std::move(cluster));
  }
  view.clusters = std::move(kept);
  for (ViewBox& box : view.boxes) {
    box.cluster = place[box.cluster];
    // A module called relu whose only operator is relu says it once.
    if (box.lines.size() > 1 && box.lines[0] == box.lines[1]) box.lines.erase(box.lines.begin());
  }
}

}  // namespace shadowgraph
