// Writes the page of a profile (viz/page_shell.h).

#include "shadowgraph/draw.h"
#include "shadowgraph/profile.h"
#include "shadowgraph/verify.h"
#include "viz/page_data.h"
#include "viz/page_shell.h"
#include "viz/saved_profile.h"

namespace shadowgraph {
namespace {

std::string title_of(const Profile& profile, const std::string& wanted) {
  return wanted.empty() ? profile.model.value_or("graph") : wanted;
}

}  // namespace

std::string to_html(const Profile& profile, const HtmlOptions& options) {
  const std::string title = title_of(profile, options.title);
  std::vector<PageText> texts;
  const auto add = [&](const char* id, const std::string& bytes) { texts.push_back({id, packed(bytes)}); };
  if (options.before == nullptr) {
    add("graph-data", page_data(profile, {.title = title, .values = options.values}));
    if (!options.before_json.empty()) add("before-profile", saved_profile(options.before_json, options.before_title));
  } else {
    const GraphDiff diff = GraphDiff::of(options.before->graph(), profile.graph());
    add("graph-data", page_data(profile, {.title = title, .diff = &diff, .values = options.values}));
    add("before-data",
        page_data(*options.before,
                  {.title = title_of(*options.before, options.before_title), .diff = &diff, .before = true}));
  }
  return page_of(title, "page.js", texts);
}

}  // namespace shadowgraph
