// Writes the page: one HTML file with its program, its style and its data in it, which asks nothing of any network.
//
// What comes from the captured program stands in the page compressed and in base64. So no name in it can end a script or
// open a tag. The title alone is text, and is escaped.

#include "shadowgraph/draw.h"
#include "shadowgraph/profile.h"
#include "shadowgraph/verify.h"
#include "support/embedded_file.h"
#include "support/printable.h"
#include "viz/page_data.h"
#include "viz/saved_profile.h"

namespace shadowgraph {

std::span<const EmbeddedFile> page_files();  // viz/page/dist/, by cmake/embed.cmake

namespace {

std::string_view bundled(std::string_view name) {
  for (const EmbeddedFile& file : page_files()) {
    if (file.name == name) return file.text;
  }
  TORCH_INTERNAL_ASSERT(false, "no file ", name, " is compiled in");
}

// The title of the window keeps so many bytes; the page itself shows the name in full.
std::string window_title(std::string_view title) {
  constexpr size_t kLongest = 200;
  return xml_text(utf8_text(title).substr(0, kLongest)) + (title.size() > kLongest ? " ..." : "");
}

std::string title_of(const Profile& profile, const std::string& wanted) {
  return wanted.empty() ? profile.model.value_or("graph") : wanted;
}

void add_data(std::string& html, const char* id, const std::string& text) {
  html += "<script type=\"text/plain\" id=\"";
  html += id;
  html += "\">";
  html += text;
  html += "</script>\n";
}

}  // namespace

std::string to_html(const Profile& profile, const HtmlOptions& options) {
  const std::string title = title_of(profile, options.title);
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
      "<noscript><p>This page draws with JavaScript, which is switched off here.</p></noscript>\n";
  if (options.before == nullptr) {
    add_data(html, "graph-data", packed(page_data(profile, {.title = title, .values = options.values})));
    if (!options.before_json.empty())
      add_data(html, "before-profile", packed(saved_profile(options.before_json, options.before_title)));
  } else {
    const GraphDiff diff = GraphDiff::of(options.before->graph(), profile.graph());
    add_data(html, "graph-data", packed(page_data(profile, {.title = title, .diff = &diff, .values = options.values})));
    add_data(
        html, "before-data",
        packed(page_data(*options.before,
                         {.title = title_of(*options.before, options.before_title), .diff = &diff, .before = true})));
  }
  html += "<script>";
  html += bundled("page.js");
  html += "</script>\n</body>\n</html>\n";
  return html;
}

}  // namespace shadowgraph
