#include "viz/page_shell.h"

#include <c10/util/Exception.h>

#include <span>

#include "support/embedded_file.h"
#include "support/printable.h"

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

}  // namespace

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
      "<noscript><p>This page draws with JavaScript, which is switched off here.</p></noscript>\n";
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

}  // namespace shadowgraph
