#include <algorithm>
#include <string_view>

#include "profiler/profile/text_blocks.h"

namespace shadowgraph {

std::string wrapped(const std::string& text, size_t width) {
  std::string result;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line = std::string_view(text).substr(at, end - at);
    const size_t indent = std::min(line.find_first_not_of(' '), line.size()) + 4;
    size_t before = 0;  // columns that the rest of a broken line begins with
    while (before + line.size() > width) {
      const size_t words = std::min(line.find_first_not_of(' '), line.size());
      size_t space = line.rfind(' ', width - before);
      if (space == line.npos || space <= words) space = line.find(' ', width - before);  // one long word
      if (space == line.npos) break;
      const std::string_view head = line.substr(0, std::min(line.find_last_not_of(' ', space) + 1, space));
      result.append(before, ' ').append(head).append("\n");
      line.remove_prefix(std::min(line.find_first_not_of(' ', space), line.size()));
      before = indent;
    }
    result.append(before, ' ').append(line);
    if (end < text.size()) result += '\n';
    at = end + 1;
  }
  return result;
}

}  // namespace shadowgraph
