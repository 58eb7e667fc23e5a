#include "support/json.h"

#include <algorithm>

#include "shadowgraph/error.h"

namespace shadowgraph {
namespace {

[[noreturn]] void refuse_json(std::string_view text, size_t at, std::string_view name, const std::string& why) {
  const std::string_view before = text.substr(0, std::min(at, text.size()));
  const auto line = static_cast<int>(std::count(before.begin(), before.end(), '\n')) + 1;
  const auto column = static_cast<int>(before.size() - (before.rfind('\n') + 1)) + 1;  // npos + 1 is 0
  throw ParseError(std::string(name) + ":" + std::to_string(line) + ":" + std::to_string(column) +
                       ": not JSON that can be read: " + why,
                   line, column);
}

// Refuses text whose brackets nest too deeply, without a stack of any kind.
void check_depth(std::string_view text, std::string_view name) {
  int depth = 0;
  bool quoted = false;
  for (size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (quoted) {
      at += c == '\\';
      quoted = c != '"';
    } else if (c == '"') {
      quoted = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kDeepestJson) refuse_json(text, at, name, "values are nested too deeply");
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
}

// Calls nlohmann's parser, and says in our words what it throws.
template <class Parse>
nlohmann::json parsed(std::string_view text, std::string_view name, const Parse& parse) {
  check_depth(text, name);
  try {
    return parse();
  } catch (const nlohmann::json::parse_error& error) {
    // "[json.exception.parse_error.101] parse error at line 1, column 2: syntax error while ..." becomes what is wrong.
    const std::string_view what = error.what();
    const size_t begin = what.find(": ");
    refuse_json(text, error.byte == 0 ? 0 : error.byte - 1, name,
                std::string(begin == std::string_view::npos ? what : what.substr(begin + 2)));
  } catch (const nlohmann::json::exception& error) {  // a number that no double holds
    const std::string_view what = error.what();       // "[json.exception.out_of_range.406] number overflow ..."
    refuse_json(text, 0, name, std::string(what.substr(what.find(']') + 2)));
  }
}

}  // namespace

nlohmann::json parse_json(std::string_view text, std::string_view name) {
  return parsed(text, name, [&] { return nlohmann::json::parse(text); });
}

nlohmann::json parse_json_list(std::string_view text, std::string_view name, std::string_view list,
                               const std::function<void(const nlohmann::json& element, size_t place)>& see) {
  using Event = nlohmann::json::parse_event_t;
  int depth_of_elements = 2;
  bool inside = false;
  bool begun = false;
  size_t place = 0;
  const auto callback = [&](int depth, Event event, nlohmann::json& value) {
    if (!begun) {
      begun = true;
      if (event == Event::array_start) {  // the document is the list
        depth_of_elements = 1;
        inside = true;
      }
    }
    if (event == Event::key && depth == 1 && depth_of_elements == 2) inside = value == list;
    const bool ends = event == Event::object_end || event == Event::array_end || event == Event::value;
    if (!inside || !ends || depth != depth_of_elements) return true;
    see(value, place++);
    return false;
  };
  return parsed(text, name, [&] { return nlohmann::json::parse(text, callback); });
}

std::string json_text(const nlohmann::json& json, int indent) {
  return json.dump(indent, ' ', /*ensure_ascii=*/false, nlohmann::json::error_handler_t::replace);
}

}  // namespace shadowgraph
