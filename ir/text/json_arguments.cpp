#include "ir/text/json_arguments.h"

#include <algorithm>

#include "ir/text/words.h"

namespace shadowgraph {

using nlohmann::json;

// Returns a string that may stand in the text as it is. Anything with a space, quote or bracket could end its field and
// begin another.
std::string_view JsonArguments::word(const json& value, std::string_view what) const {
  if (!value.is_string()) fail(fmt::format("no string, expected {}", what));
  const std::string_view text = value.get_ref<const std::string&>();
  // One rule for all words: dtypes, devices, kinds and names of operators with their overloads.
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.' ||
           c == ':' || c == '#';
  };
  if (text.empty() || !std::all_of(text.begin(), text.end(), plain)) fail(fmt::format("not {}", what));
  return text;
}

void JsonArguments::put_int(const json& value) {
  if (!value.is_number_integer()) fail("not an integer where one is expected");
  // Numbers keep all 64 bits; a double in between would round them.
  put(value.is_number_unsigned() ? fmt::to_string(value.get<uint64_t>()) : fmt::to_string(value.get<int64_t>()));
}

// JSON strings are UTF-8. Other bytes come as the text form's escapes.
void JsonArguments::put_quoted(const json& value) {
  if (value.is_object()) {
    // Unquoted and quoted again, so that nothing but a proper string gets into the text.
    const auto text = field(value, "escaped").is_string() ? unquote(value["escaped"].get<std::string>()) : std::nullopt;
    if (!text) fail("a broken 'escaped' string");
    return append_quoted(text_, *text);
  }
  if (!value.is_string()) fail("no string where one is expected");
  append_quoted(text_, value.get_ref<const std::string&>());
}

void JsonArguments::put_float(const json& value) {
  // JSON has no infinity and no NaN, so they come as strings.
  if (value.is_number()) return append_float(text_, value.get<double>());
  const auto number = value.is_string() ? parse_float(value.get<std::string>()) : std::nullopt;
  if (!number) fail("no float, expected a number, \"inf\", \"-inf\" or \"nan\"");
  append_float(text_, *number);
}

void JsonArguments::put_value(const json& value) {
  put("%");
  if (value.is_null()) {
    put("?");
  } else {
    put_int(value);
  }
}

void JsonArguments::put_ints(const json& list, char open, char close) {
  if (!list.is_array()) fail("no array of integers where one is expected");
  text_ += open;
  for (size_t i = 0; i < list.size(); ++i) {
    if (i != 0) put(",");
    put_int(list[i]);
  }
  text_ += close;
}

// Depth is checked here, too, for this recursion runs before the parser's.
void JsonArguments::put_list(const json& list, int depth) {
  if (!list.is_array()) fail("no array where one is expected");
  if (depth > kMaxListDepth) fail("lists nest too deep");
  put("[");
  for (size_t i = 0; i < list.size(); ++i) {
    if (i != 0) put(",");
    put_argument(list[i], depth + 1);
  }
  put("]");
}

void JsonArguments::put_argument(const json& value, int depth) {
  switch (value.type()) {
    case json::value_t::null:
      return put("None");
    case json::value_t::boolean:
      return put(value.get<bool>() ? "true" : "false");
    case json::value_t::number_integer:
    case json::value_t::number_unsigned:
      return put_int(value);
    case json::value_t::number_float:
      return put_float(value);
    case json::value_t::string:
      return put_quoted(value);
    case json::value_t::array:
      return put_list(value, depth);
    case json::value_t::object:
      break;
    default:
      fail("no argument");
  }
  // Kinds that JSON has no type for are objects with one key. Two keys would leave open which one is meant.
  if (value.size() != 1) fail("no argument: an object with one key is expected");
  const std::string& key = value.begin().key();
  const json& content = value.begin().value();
  if (key == "value") return put_value(content);
  // {"float": "inf"}: a bare string would be a string argument.
  if (key == "float") return put_float(content);
  if (key == "escaped") return put_quoted(value);
  if (key == "dtype" || key == "layout" || key == "memory_format" || key == "device") return put(word(content, key));
  if (key == "constant") {
    put("c");
    return put_int(content);
  }
  if (key == "complex") {
    if (!content.is_array() || content.size() != 2) fail("no complex number, expected two floats");
    put("complex(");
    put_float(content[0]);
    put(",");
    put_float(content[1]);
    return put(")");
  }
  if (key == "generator") return put(fmt::format("generator({})", word(content, "a device")));
  if (key == "opaque") {
    put("opaque(");
    put_quoted(content);
    return put(")");
  }
  if (key == "ints") {
    put("ints");
    return put_ints(content, '[', ']');
  }
  if (key == "list") {
    put("list");
    return put_list(content, depth);
  }
  fail("no argument: unknown kind '" + key + "'");
}

void JsonArguments::put_arguments(const json& object, const json* more) {
  if (!object.is_object()) fail("no object of arguments where one is expected");
  put("(");
  bool first = true;
  // Arguments beyond the schema's, of variadic functions, have no name and come in "more".
  for (const auto& [name, value] : object.items()) {
    if (!first) put(", ");
    first = false;
    put(word(name, "an argument's name"));
    put("=");
    put_argument(value, 0);
  }
  if (more != nullptr) {
    if (!more->is_array()) fail("'more' is no array");
    for (const json& value : *more) {
      if (!first) put(", ");
      first = false;
      put_argument(value, 0);
    }
  }
  put(")");
}

}  // namespace shadowgraph
