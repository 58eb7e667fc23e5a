// Writes one HTML file with script, style and data, without network access.
//
// Text from programs and files is compressed and base64-encoded, so that names cannot end a script or open a tag. Only
// the title is plain text, and is escaped.
#include <c10/util/Exception.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shadowgraph/draw/draw.h"
#include "shadowgraph/graph/verify.h"
#include "shadowgraph/plan/training_plan.h"
#include "shadowgraph/profile/profile.h"
#include "support/embedded_file.h"
#include "support/json.h"
#include "support/text.h"
#include "viz/page_data.h"
#include "viz/saved_profile.h"

namespace shadowgraph {

struct PageText {
  const char* id;
  std::string packed;  // by packed() of viz/page_data.h
};

std::span<const EmbeddedFile> page_files();  // viz/page/dist/, by cmake/embed.cmake

namespace {

std::string_view bundled(std::string_view name) {
  for (const EmbeddedFile& file : page_files()) {
    if (file.name == name) return file.text;
  }
  TORCH_INTERNAL_ASSERT(false, "no file ", name, " is compiled in");
}

// Limits the window title; the page itself shows the full name.
std::string window_title(std::string_view title) {
  constexpr size_t kLongest = 200;
  return xml_text(utf8_text(title).substr(0, kLongest)) + (title.size() > kLongest ? " ..." : "");
}

// `script`: a file of viz/page/dist/.
std::string page_of(std::string_view title, std::string_view script, const std::vector<PageText>& texts) {
  std::string html =
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; script-src 'unsafe-inline'; "
      "style-src 'unsafe-inline'; img-src data: blob:\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta name=\"generator\" content=\"shadowgraph " SHADOWGRAPH_VERSION "\">\n<title>";
  html += window_title(title) + " - shadowgraph</title>\n<style>";
  html += bundled("page.css");
  html +=
      "</style>\n</head>\n<body>\n<div id=\"page\"><p class=\"waiting\">Reading the graph ...</p></div>\n"
      "<noscript><p>This page needs JavaScript, which is disabled.</p></noscript>\n";
  for (const PageText& text : texts) {
    html += "<script type=\"text/plain\" id=\"";
    html += text.id;
    html += "\">" + text.packed + "</script>\n";
  }
  html += "<script>";
  html += bundled(script);
  html += "</script>\n</body>\n</html>\n";
  return html;
}

std::string title_of(const Profile& profile, const std::string& wanted) {
  return wanted.empty() ? profile.model.value_or("graph") : wanted;
}

// The page's data for a plan; viz/page/src/plan/data.ts declares their format.
nlohmann::json actions_of(const PipelineRun& run, int32_t rank) {
  constexpr double kMillion = 1e6;
  nlohmann::json numbers = nlohmann::json::array();
  const auto part = [&](double seconds) {
    return run.seconds() > 0 ? std::llround(kMillion * seconds / run.seconds()) : 0;
  };
  for (const PipelineActionTime& at : run.actions(rank)) {
    if (!computes(at.action)) continue;
    numbers.insert(numbers.end(), {static_cast<int>(at.action.work), at.action.stage, at.action.microbatch,
                                   part(at.begin), part(at.end), at.live});
  }
  return numbers;
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

std::string plan_html(const ClusterPlan& answer) {
  nlohmann::json data = to_json(answer);
  data["device_title"] = answer.request.device.title;
  nlohmann::json& actions = data["actions"] = nlohmann::json::array();
  const PipelineRun& run = answer.best().run;
  for (int32_t rank = 0; rank < run.ranks(); ++rank) actions.push_back(actions_of(run, rank));
  return page_of(answer.name, "plan.js", {{"plan-data", packed(json_text(data))}});
}

}  // namespace shadowgraph
