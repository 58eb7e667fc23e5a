// Writes the page: one HTML file with its program, its style and its data in it, which asks nothing of any network.
//
// What comes from the captured program stands in the page compressed and in base64. So no name in it can end a script or
// open a tag. The title alone is text, and is escaped.

#include "shadowgraph/draw.h"
#include "shadowgraph/profile.h"
#include "shadowgraph/verify.h"
#include "support/embedded_file.h"
#include "support/json.h"
#include "viz/page_data.h"

namespace shadowgraph {

std::span<const EmbeddedFile> page_files();  // viz/page/dist/, by cmake/embed.cmake

namespace {

std::string_view bundled(std::string_view name) {
  for (const EmbeddedFile& file : page_files()) {
    if (file.name == name) return file.text;
  }
  TORCH_INTERNAL_ASSERT(false, "no file ", name, " is compiled in");
}

constexpr size_t kLongestTitle = 200;

// Escapes text of an HTML element; a character that is not printable becomes a space.
std::string escape_title(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (out.size() > kLongestTitle) return out + " ...";
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        // The title of the window keeps ASCII only; the page itself shows the name in full.
        out += c >= 0x20 && c < 0x7F ? c : ' ';
    }
  }
  return out;
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

// Returns a saved profile as the page reads it (viz/page/src/differences.ts): its JSON without what a comparison leaves
// alone.
std::string saved_profile(const HtmlOptions& options) {
  using nlohmann::json;
  std::optional<json> parsed = try_parse_json(options.before_json);
  if (!parsed) throw Error("the profile to compare with is not JSON");
  json& profile = *parsed;
  const auto has = [&](const char* key, const char* inner) {
    return profile.is_object() && profile.contains(key) && profile[key].is_object() && profile[key].contains(inner);
  };
  const bool complete = has("peak", "bytes") && has("peak", "by_kind") && profile["peak"]["bytes"].is_number() &&
                        profile.contains("nodes") && profile["nodes"].is_number() && profile.contains("operators") &&
                        profile["operators"].is_object();
  if (!complete) {
    throw Error(profile.is_object() && profile.contains("batches")
                    ? "the profile to compare with is of several batches: save that of one ('shadowgraph profile -o')"
                    : "the JSON to compare with is not a profile, as 'shadowgraph profile -o' saves it (profile.json)");
  }
  for (const char* unused : {"timeline", "outputs", "findings", "top_at_peak"}) profile.erase(unused);
  const bool named = profile.contains("model") && profile["model"].is_string();
  profile["title"] = !options.before_title.empty() ? options.before_title
                     : named                       ? profile["model"].get<std::string>()
                                                   : "a saved profile";
  return json_text(profile);
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
  html += escape_title(title) + " - shadowgraph</title>\n<style>";
  html += bundled("page.css");
  html +=
      "</style>\n</head>\n<body>\n<div id=\"page\"><p class=\"waiting\">Reading the graph ...</p></div>\n"
      "<noscript><p>This page draws with JavaScript, which is switched off here.</p></noscript>\n";
  if (options.before == nullptr) {
    add_data(html, "graph-data", packed(page_data(profile, {.title = title, .values = options.values})));
    if (!options.before_json.empty()) add_data(html, "before-profile", packed(saved_profile(options)));
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
