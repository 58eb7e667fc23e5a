// Writes the values of a graph in JSON as graph text: words, numbers, strings, arguments. Internal to ir/text.
//
// The one parser judges the text. Only what the text cannot express safely is checked here: words that could break out
// of their place.
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "ir/text/words.h"
#include "shadowgraph/graph/text.h"

namespace shadowgraph {

using nlohmann::json;

namespace {

// Writes JSON as graph text, line by line, and lets the one parser judge it.
class Importer {
 public:
  explicit Importer(const json& source) : source_(source) {}
  Graph run() {
    put_header();
    put_metadata();
    each("operators", [&](const json& target, size_t) { put_target(target); });
    each("storages", [&](const json& storage, size_t i) { put_storage(storage, i); });
    // Constants come before what refers to them: arguments of regions may.
    each("constants", [&](const json& constant, size_t i) { put_constant(constant, i); });
    each("regions", [&](const json& region, size_t i) { put_region(region, i); });
    each("dependencies", [&](const json& dependency, size_t) { put_dependency(dependency); });
    each("nodes", [&](const json& node, size_t i) {
      put(fmt::format("n{}: ", i));
      put_node(node);
    });

    // The parser's error tells a line of the intermediate text, which nobody has seen; it becomes a path in the JSON.
    try {
      return parse(text_, "json");
    } catch (const ParseError& error) {
      // "json:12:5: what" becomes "json:/nodes/3: what".
      std::string_view what = error.what();
      for (int colons = 0; colons < 3; ++colons) what.remove_prefix(what.find(':') + 1);
      const auto line = static_cast<size_t>(error.line());
      const std::string& path = line >= 1 && line <= paths_.size() ? paths_[line - 1] : path_;
      throw ParseError(fmt::format("json:{}:{}", path, what), error.line(), error.column());
    }
  }

 private:
  [[noreturn]] void fail(std::string_view what) const {
    // The error names the path of the element, as /nodes/12: a line of the text would tell the user nothing.
    const int line = static_cast<int>(paths_.size()) + 1;
    throw ParseError(fmt::format("json:{}: {}", path_.empty() ? "/" : path_, what), line, 1);
  }
  const json& field(const json& object, const char* key) const {
    if (!object.is_object()) fail(fmt::format("no object, expected one with '{}'", key));
    const auto found = object.find(key);
    if (found == object.end()) fail(fmt::format("'{}' is missing", key));
    return *found;
  }
  const json* optional_field(const json& object, const char* key) const {
    const auto found = object.find(key);
    return found == object.end() || found->is_null() ? nullptr : &*found;
  }
  // Returns a string that may stand in the text as it is. Anything with a space, quote or bracket could end its field
  // and begin another.
  std::string_view word(const json& value, std::string_view what) const {
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

  void put(std::string_view text) { text_ += text; }
  void put_int(const json& value) {
    if (!value.is_number_integer()) fail("not an integer where one is expected");
    // Numbers keep all 64 bits; a double in between would round them.
    put(value.is_number_unsigned() ? fmt::to_string(value.get<uint64_t>()) : fmt::to_string(value.get<int64_t>()));
  }

  // JSON strings are UTF-8. Other bytes come as the text form's escapes.
  void put_quoted(const json& value) {
    if (value.is_object()) {
      // Unquoted and quoted again, so that nothing but a proper string gets into the text.
      const auto text =
          field(value, "escaped").is_string() ? unquote(value["escaped"].get<std::string>()) : std::nullopt;
      if (!text) fail("a broken 'escaped' string");
      return append_quoted(text_, *text);
    }
    if (!value.is_string()) fail("no string where one is expected");
    append_quoted(text_, value.get_ref<const std::string&>());
  }

  void put_float(const json& value) {
    // JSON has no infinity and no NaN, so they come as strings.
    if (value.is_number()) return append_float(text_, value.get<double>());
    const auto number = value.is_string() ? parse_float(value.get<std::string>()) : std::nullopt;
    if (!number) fail("no float, expected a number, \"inf\", \"-inf\" or \"nan\"");
    append_float(text_, *number);
  }

  void put_value(const json& value) {
    put("%");
    if (value.is_null()) {
      put("?");
    } else {
      put_int(value);
    }
  }

  void put_argument(const json& value, int depth) {
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

  void put_arguments(const json& object, const json* more) {
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

  // Depth is checked here, too, for this recursion runs before the parser's.
  void put_list(const json& list, int depth) {
    if (!list.is_array()) fail("no array where one is expected");
    if (depth > kMaxListDepth) fail("lists nest too deep");
    put("[");
    for (size_t i = 0; i < list.size(); ++i) {
      if (i != 0) put(",");
      put_argument(list[i], depth + 1);
    }
    put("]");
  }

  void put_ints(const json& list, char open, char close) {
    if (!list.is_array()) fail("no array of integers where one is expected");
    text_ += open;
    for (size_t i = 0; i < list.size(); ++i) {
      if (i != 0) put(",");
      put_int(list[i]);
    }
    text_ += close;
  }

  void end_line() {
    text_ += '\n';
    paths_.push_back(path_);
  }

  // Nested as they are returned; put_value(json) writes each value.
  template <class F>
  void put_results(const json& results, F&& put_value, int depth = 0) {
    if (!results.is_array()) fail("no array of results where one is expected");
    if (depth > kMaxListDepth) fail("results nest too deep");
    for (size_t i = 0; i < results.size(); ++i) {
      if (i != 0) put(", ");
      if (results[i].is_null()) {
        put("None");
      } else if (results[i].is_array()) {
        put("[");
        put_results(results[i], put_value, depth + 1);
        put("]");
      } else {
        put_value(results[i]);
      }
    }
  }

  // The parser checks types itself, so a wrong dtype is reported in the same words as in the text form.
  // Everything is written out, also what equals its default: the parser drops it.
  void put_type(const json& type) {
    if (const json* scalar = optional_field(type, "scalar")) return put(word(*scalar, "int, float or bool"));
    put(word(field(type, "dtype"), "a dtype"));
    put_ints(field(type, "sizes"), '[', ']');
    if (const json* strides = optional_field(type, "strides")) put_ints(*strides, '{', '}');
    put(" @");
    if (const json* storage = optional_field(type, "storage")) {
      put("s");
      put_int(*storage);
    } else {
      put("none");
    }
    if (const json* offset = optional_field(type, "offset")) {
      put("+");
      put_int(*offset);
    }
    put(" ");
    put(word(field(type, "device"), "a device"));
    if (const json* layout = optional_field(type, "layout"); layout != nullptr && *layout != "strided") {
      put(" ");
      put(word(*layout, "a layout"));
    }
    if (const json* grad = optional_field(type, "requires_grad")) {
      if (!grad->is_boolean()) fail("'requires_grad' is neither true nor false");
      if (grad->get<bool>()) put(" grad");
    }
  }

  // Follows the order of the text's node lines.
  void put_node(const json& node) {
    const json* results = optional_field(node, "results");
    if (results != nullptr && results->empty()) results = nullptr;
    if (results != nullptr) {
      put_results(*results, [this](const json& value) {
        put("%");
        put_int(field(value, "value"));
      });
      put(" = ");
    }
    put(word(field(node, "target"), "the name of a target"));
    put_arguments(field(node, "arguments"), optional_field(node, "more"));
    if (results != nullptr) {
      put(" : ");
      put_results(*results, [this](const json& type) { put_type(type); });
    }
    put(" |");
    if (const json* region = optional_field(node, "region")) {
      put(" r");
      put_int(*region);
    }
    if (const json* phase = optional_field(node, "phase")) {
      // The four known phases are words of the text form; others are quoted, so that they cannot be taken for words.
      const bool known = *phase == "forward" || *phase == "backward" || *phase == "optimizer" || *phase == "init";
      put(known ? " " : " phase ");
      known ? put(phase->get_ref<const std::string&>()) : put_quoted(*phase);
    }
    if (const json* forward = optional_field(node, "forward")) {
      put(" of n");
      put_int(*forward);
    }
    if (const json* modes = optional_field(node, "modes")) {
      if (!modes->is_array()) fail("'modes' is no array");
      for (const json& mode : *modes) put(fmt::format(" {}", word(mode, "a mode")));
    }
    if (const json* saved = optional_field(node, "saved")) put_saved(*saved);
    const auto storages = [&](const char* key, std::string_view text, bool with_version) {
      const json* list = optional_field(node, key);
      if (list == nullptr) return;
      if (!list->is_array() || list->empty()) fail(fmt::format("'{}' is no array with elements", key));
      put(text);
      for (size_t i = 0; i < list->size(); ++i) {
        put(i == 0 ? "(s" : ", s");
        put_int(with_version ? field((*list)[i], "storage") : (*list)[i]);
        if (!with_version) continue;
        put("@");
        put_int(field((*list)[i], "version"));
      }
      put(")");
    };
    storages("writes", " writes", true);
    storages("free", " free", false);
    if (const json* notes = optional_field(node, "notes")) {
      if (!notes->is_array() || notes->empty()) fail("'notes' is no array with elements");
      for (size_t i = 0; i < notes->size(); ++i) {
        const json& note = (*notes)[i];
        if (!note.is_array() || note.size() != 2) fail("a note is no pair of key and value");
        put(i == 0 ? " note(" : ", ");
        put_quoted(note[0]);
        put("=");
        put_quoted(note[1]);
      }
      put(")");
    }
    if (const json* source = optional_field(node, "source")) {
      put(" ");
      put_quoted(*source);
    }
  }

  void put_header() {
    put("shadowgraph ");
    put_int(field(source_, "shadowgraph"));
    put(" libtorch ");
    put(word(field(source_, "libtorch"), "a libtorch version"));
    path_ = "/shadowgraph";
    end_line();
  }

  // Metadata is an object, or an array of pairs where JSON cannot have the keys.
  void put_metadata() {
    path_ = "/metadata";
    const auto meta = [&](const json& key, const json& value) {
      put("meta ");
      put_quoted(key);
      put(" = ");
      put_quoted(value);
      end_line();
    };
    if (const json& metadata = field(source_, "metadata"); metadata.is_object()) {
      for (const auto& [key, value] : metadata.items()) meta(key, value);
    } else {
      if (!metadata.is_array()) fail("neither object nor array");
      for (const json& pair : metadata) {
        if (!pair.is_array() || pair.size() != 2) fail("no pair of key and value");
        meta(pair[0], pair[1]);
      }
    }
  }

  void put_target(const json& target) {
    put(word(field(target, "kind"), "operator or function"));
    put(" ");
    const json& schema = field(target, "schema");
    // A line break in a schema would begin another line, of any kind.
    if (!schema.is_string() || schema.get_ref<const std::string&>().find_first_of("\n\r") != std::string::npos) {
      fail("no schema on one line");
    }
    put(schema.get_ref<const std::string&>());
  }

  void put_storage(const json& storage, size_t number) {
    put(fmt::format("s{} = ", number));
    put_int(field(storage, "bytes"));
    put(fmt::format(" {} {} born ", word(field(storage, "device"), "a device"),
                    word(field(storage, "kind"), "a kind")));
    if (const json* born = optional_field(storage, "born")) {
      put("n");
      put_int(*born);
    } else {
      put("before");
    }
  }

  void put_constant(const json& constant, size_t number) {
    put(fmt::format("c{} = ", number));
    if (constant.is_null()) return put("unreadable");
    put(word(field(constant, "dtype"), "a dtype"));
    put_ints(field(constant, "sizes"), '[', ']');
    put_ints(field(constant, "strides"), '{', '}');
    put(" ");
    put_quoted(field(constant, "base64"));
  }

  void put_region(const json& region, size_t number) {
    put(fmt::format("r{} = {} ", number, word(field(region, "kind"), "a region kind")));
    put_quoted(field(region, "name"));
    put(" ");
    put_quoted(field(region, "class"));
    put(" call ");
    put_int(field(region, "call"));
    if (const json* target = optional_field(region, "target")) {
      put(" ");
      put(word(*target, "the name of a target"));
      if (const json* arguments = optional_field(region, "arguments")) put_arguments(*arguments, nullptr);
    }
    if (const json* parent = optional_field(region, "parent")) {
      put(" in r");
      put_int(*parent);
    }
    if (const json* inferred = optional_field(region, "inferred"); inferred != nullptr && *inferred == true)
      put(" inferred");
  }

  void put_dependency(const json& dependency) {
    put(fmt::format("depends {}(", word(field(dependency, "kind"), "a kind")));
    put_value(field(dependency, "value"));
    if (const json& dimension = field(dependency, "dimension"); dimension != -1) {
      put(", ");
      put_int(dimension);
    }
    put(") = ");
    put_quoted(field(dependency, "observed"));
  }

  void put_saved(const json& saved) {
    if (!saved.is_array() || saved.empty()) fail("'saved' is no array with elements");
    put(" saved(");
    for (size_t i = 0; i < saved.size(); ++i) {
      if (i != 0) put(", ");
      const json& value = field(saved[i], "value");
      if (const json* argument = optional_field(saved[i], "argument"); argument != nullptr && argument->is_string()) {
        put(word(*argument, "an argument's name"));
      } else if (argument != nullptr) {
        put("argument[");
        put_int(*argument);
        put("]");
      } else if (const json* result = optional_field(saved[i], "result")) {
        put("result[");
        put_int(*result);
        put("]");
      } else {
        put("internal");
      }
      put("=");
      put_value(value);
    }
    put(")");
  }

  // Notes for every line which element it came from, so that the parser's error can name that.
  template <class F>
  void each(const char* table, F&& f) {
    path_ = fmt::format("/{}", table);
    const json& list = field(source_, table);
    if (!list.is_array()) fail("no array where one is expected");
    for (size_t i = 0; i < list.size(); ++i) {
      path_ = fmt::format("/{}/{}", table, i);
      f(list[i], i);
      end_line();
    }
  }

  const json& source_;
  std::string text_;
  std::string path_;                // of the element being written
  std::vector<std::string> paths_;  // by line
};

}  // namespace

Graph from_json(const nlohmann::json& json) { return Importer(json).run(); }

}  // namespace shadowgraph
