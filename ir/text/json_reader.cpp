// Converts a graph's JSON to graph text, one line for each JSON element, and parses that. The parser validates the
// text; only words that could break out of their place are checked here.
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

class Importer {
 public:
  explicit Importer(const json& source) : source_(source) {}
  Graph run() {
    put_header();
    put_metadata();
    each("operators", [&](const json& target, size_t) { put_target(target); });
    each("storages", [&](const json& storage, size_t i) { put_storage(storage, i); });
    // Constants come first, since arguments of regions may refer to them.
    each("constants", [&](const json& constant, size_t i) { put_constant(constant, i); });
    each("regions", [&](const json& region, size_t i) { put_region(region, i); });
    each("dependencies", [&](const json& dependency, size_t) { put_dependency(dependency); });
    each("nodes", [&](const json& node, size_t i) {
      put(fmt::format("n{}: ", i));
      put_node(node);
    });
    path_.clear();
    refuse_other_keys(source_, 0);

    // The parser's error has a line of the intermediate text, which is replaced by a path in the JSON.
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
    // The error contains the element's path, such as /nodes/12; a line of the text would be meaningless to the user.
    const int line = static_cast<int>(paths_.size()) + 1;
    throw ParseError(fmt::format("json:{}: {}", path_.empty() ? "/" : path_, what), line, 1);
  }
  const json& field(const json& object, const char* key) const {
    if (!object.is_object()) fail(fmt::format("not an object, expected one with the key '{}'", key));
    read_.emplace_back(&object, key);
    const auto found = object.find(key);
    if (found == object.end()) fail(fmt::format("'{}' is missing", key));
    return *found;
  }
  const json* optional_field(const json& object, const char* key) const {
    read_.emplace_back(&object, key);
    const auto found = object.find(key);
    return found == object.end() || found->is_null() ? nullptr : &*found;
  }
  // Rejects keys of the object that were not looked up since read_ had `begin` entries, and removes these.
  void refuse_other_keys(const json& object, size_t begin) {
    for (const auto& [key, value] : object.items()) {
      const std::pair<const json*, std::string_view> wanted(&object, key);
      if (std::find(read_.begin() + static_cast<std::ptrdiff_t>(begin), read_.end(), wanted) == read_.end()) {
        fail(fmt::format("unknown key '{}'", key));
      }
    }
    read_.resize(begin);
  }
  // Returns a string that is safe to insert into the text. A space, quote or bracket could end its field and start
  // another.
  std::string_view word(const json& value, std::string_view what) const {
    if (!value.is_string()) fail(fmt::format("not a string, expected {}", what));
    const std::string_view text = value.get_ref<const std::string&>();
    // One rule for all words: dtypes, devices, kinds and operator names with overloads.
    const auto plain = [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.' ||
             c == ':' || c == '#';
    };
    if (text.empty() || !std::all_of(text.begin(), text.end(), plain))
      fail(fmt::format("an invalid word, expected {}", what));
    return text;
  }

  // Parts of a line, for put().
  struct Int {
    const json& value;
  };
  struct Quoted {
    const json& value;
  };
  template <class... Parts>
  requires(sizeof...(Parts) > 1) void put(const Parts&... parts) { (put(parts), ...); }
  void put(std::string_view text) { text_ += text; }
  void put(Int number) {
    const json& value = number.value;
    if (!value.is_number_integer()) fail("not an integer where one is expected");
    // Numbers keep all 64 bits; a double would round them.
    put(value.is_number_unsigned() ? fmt::to_string(value.get<uint64_t>()) : fmt::to_string(value.get<int64_t>()));
  }

  // Writes "{before}{number}" if the field is there, otherwise `missing`.
  void put_optional_int(const json& object, const char* key, std::string_view before, std::string_view missing = "") {
    const json* number = optional_field(object, key);
    put(number != nullptr ? before : missing);
    if (number != nullptr) put(Int{*number});
  }
  template <class F>
  void put_each(const json& list, std::string_view separator, F&& put_element) {
    for (size_t i = 0; i < list.size(); ++i) {
      if (i != 0) put(separator);
      put_element(list[i]);
    }
  }

  // JSON strings are UTF-8. Other bytes are given as the text form's escapes.
  void put(Quoted quoted) {
    const json& value = quoted.value;
    if (value.is_object()) {
      // Unquotes and requotes the string, so that only valid strings enter the text.
      const auto text = value.size() == 1 && field(value, "escaped").is_string()
                            ? unquote(value["escaped"].get<std::string>())
                            : std::nullopt;
      if (!text) fail("an invalid 'escaped' string");
      return append_quoted(text_, *text);
    }
    if (!value.is_string()) fail("not a string where one is expected");
    append_quoted(text_, value.get_ref<const std::string&>());
  }

  void put_float(const json& value) {
    // JSON has no infinity and NaN, so they are strings.
    if (value.is_number()) return append_float(text_, value.get<double>());
    const auto number = value.is_string() ? parse_float(value.get<std::string>()) : std::nullopt;
    if (!number) fail("not a float, expected a number, \"inf\", \"-inf\" or \"nan\"");
    append_float(text_, *number);
  }

  void put_value(const json& value) { value.is_null() ? put("%?") : put("%", Int{value}); }

  void put_argument(const json& value, int depth) {
    switch (value.type()) {
      case json::value_t::null:
        return put("None");
      case json::value_t::boolean:
        return put(value.get<bool>() ? "true" : "false");
      case json::value_t::number_integer:
      case json::value_t::number_unsigned:
        return put(Int{value});
      case json::value_t::number_float:
        return put_float(value);
      case json::value_t::string:
        return put(Quoted{value});
      case json::value_t::array:
        return put_list(value, depth);
      case json::value_t::object:
        break;
      default:
        fail("not an argument");
    }
    // Kinds without a JSON type are objects with one key. Two keys would be ambiguous.
    if (value.size() != 1) fail("not an argument: expected an object with exactly one key");
    const std::string& key = value.begin().key();
    const json& content = value.begin().value();
    if (key == "value") return put_value(content);
    // {"float": "inf"}: a bare string would be a string argument.
    if (key == "float") return put_float(content);
    if (key == "escaped") return put(Quoted{value});
    if (key == "dtype" || key == "layout" || key == "memory_format" || key == "device") return put(word(content, key));
    if (key == "constant") return put("c", Int{content});
    if (key == "complex") {
      if (!content.is_array() || content.size() != 2) fail("not a complex number, expected two floats");
      put("complex(");
      put_each(content, ",", [&](const json& part) { put_float(part); });
      return put(")");
    }
    if (key == "generator") return put(fmt::format("generator({})", word(content, "a device")));
    if (key == "opaque") return put("opaque(", Quoted{content}, ")");
    if (key == "ints") {
      put("ints");
      return put_ints(content, '[', ']');
    }
    if (key == "list") {
      put("list");
      return put_list(content, depth);
    }
    fail("not an argument: unknown kind '" + key + "'");
  }

  void put_arguments(const json& object, const json* more) {
    if (!object.is_object()) fail("not an object of arguments where one is expected");
    put("(");
    bool first = true;
    // Variadic arguments beyond the schema have no name and are in "more".
    for (const auto& [name, value] : object.items()) {
      if (!first) put(", ");
      first = false;
      put(word(name, "an argument's name"), "=");
      put_argument(value, 0);
    }
    if (more != nullptr) {
      if (!more->is_array()) fail("'more' is not an array");
      if (!first && !more->empty()) put(", ");
      put_each(*more, ", ", [&](const json& value) { put_argument(value, 0); });
    }
    put(")");
  }

  // The depth is checked here, too, since this recursion runs before the parser's.
  void put_list(const json& list, int depth) {
    if (!list.is_array()) fail("not an array where one is expected");
    if (depth > kMaxListDepth) fail("lists nested too deeply");
    put("[");
    put_each(list, ",", [&](const json& element) { put_argument(element, depth + 1); });
    put("]");
  }

  void put_ints(const json& list, char open, char close) {
    if (!list.is_array()) fail("not an array of integers where one is expected");
    text_ += open;
    put_each(list, ",", [&](const json& integer) { put(Int{integer}); });
    text_ += close;
  }

  void end_line() {
    text_ += '\n';
    paths_.push_back(path_);
  }

  // Nested as returned; put_value(json) writes each value.
  template <class F>
  void put_results(const json& results, F&& put_value, int depth = 0) {
    if (!results.is_array()) fail("not an array of results where one is expected");
    if (depth > kMaxListDepth) fail("results nested too deeply");
    put_each(results, ", ", [&](const json& result) {
      if (result.is_null()) return put("None");
      if (!result.is_array()) return put_value(result);
      put("[");
      put_results(result, put_value, depth + 1);
      put("]");
    });
  }

  // The parser checks types, so an invalid dtype is reported in the same words as in the text form. Defaults are
  // written out; the parser drops them.
  void put_type(const json& type) {
    const size_t begin = read_.size();
    optional_field(type, "value");  // read by put_node
    if (const json* scalar = optional_field(type, "scalar")) {
      put(word(*scalar, "int, float or bool"));
      return refuse_other_keys(type, begin);
    }
    put(word(field(type, "dtype"), "a dtype"));
    put_ints(field(type, "sizes"), '[', ']');
    if (const json* strides = optional_field(type, "strides")) put_ints(*strides, '{', '}');
    put(" @");
    put_optional_int(type, "storage", "s", "none");
    put_optional_int(type, "offset", "+");
    put(" ", word(field(type, "device"), "a device"));
    if (const json* layout = optional_field(type, "layout"); layout != nullptr && *layout != "strided") {
      put(" ", word(*layout, "a layout"));
    }
    if (const json* grad = optional_field(type, "requires_grad")) {
      if (!grad->is_boolean()) fail("'requires_grad' is neither true nor false");
      if (grad->get<bool>()) put(" grad");
    }
    refuse_other_keys(type, begin);
  }

  // Follows the order of the text form's node lines.
  void put_node(const json& node) {
    const json* results = optional_field(node, "results");
    if (results != nullptr && results->empty()) results = nullptr;
    if (results != nullptr) {
      put_results(*results, [this](const json& value) { put("%", Int{field(value, "value")}); });
      put(" = ");
    }
    put(word(field(node, "target"), "the name of a target"));
    put_arguments(field(node, "arguments"), optional_field(node, "more"));
    if (results != nullptr) {
      put(" : ");
      put_results(*results, [this](const json& type) { put_type(type); });
    }
    put(" |");
    put_optional_int(node, "region", " r");
    if (const json* phase = optional_field(node, "phase")) {
      // The four built-in phases are words of the text form; others are quoted to distinguish them.
      const bool known = *phase == "forward" || *phase == "backward" || *phase == "optimizer" || *phase == "init";
      put(known ? " " : " phase ");
      known ? put(phase->get_ref<const std::string&>()) : put(Quoted{*phase});
    }
    put_optional_int(node, "forward", " of n");
    if (const json* modes = optional_field(node, "modes")) {
      if (!modes->is_array()) fail("'modes' is not an array");
      for (const json& mode : *modes) put(fmt::format(" {}", word(mode, "a mode")));
    }
    if (const json* saved = optional_field(node, "saved")) put_saved(*saved);
    const auto storages = [&](const char* key, std::string_view text, bool with_version) {
      const json* list = optional_field(node, key);
      if (list == nullptr) return;
      if (!list->is_array() || list->empty()) fail(fmt::format("'{}' is not a non-empty array", key));
      put(text);
      put_each(*list, ", s", [&](const json& element) {
        put(Int{with_version ? field(element, "storage") : element});
        if (!with_version) return;
        put("@", Int{field(element, "version")});
        refuse_other_keys(element, read_.size() - 2);
      });
      put(")");
    };
    storages("writes", " writes(s", true);
    storages("free", " free(s", false);
    if (const json* notes = optional_field(node, "notes")) {
      if (!notes->is_array() || notes->empty()) fail("'notes' is not a non-empty array");
      put(" note(");
      put_each(*notes, ", ", [&](const json& note) {
        if (!note.is_array() || note.size() != 2) fail("a note is not a pair of key and value");
        put(Quoted{note[0]}, "=", Quoted{note[1]});
      });
      put(")");
    }
    if (const json* source = optional_field(node, "source")) put(" ", Quoted{*source});
  }

  void put_header() {
    if (source_.is_object() && !source_.contains("shadowgraph"))
      fail("'shadowgraph' is missing; expected a graph saved by 'shadowgraph capture --json'");
    put("shadowgraph ", Int{field(source_, "shadowgraph")});
    put(" libtorch ", word(field(source_, "libtorch"), "a libtorch version"));
    path_ = "/shadowgraph";
    end_line();
  }

  // Metadata is an object, or an array of pairs if JSON cannot represent the keys.
  void put_metadata() {
    path_ = "/metadata";
    const auto meta = [&](const json& key, const json& value) {
      put("meta ", Quoted{key}, " = ", Quoted{value});
      end_line();
    };
    if (const json& metadata = field(source_, "metadata"); metadata.is_object()) {
      for (const auto& [key, value] : metadata.items()) meta(key, value);
    } else {
      if (!metadata.is_array()) fail("neither an object nor an array");
      for (const json& pair : metadata) {
        if (!pair.is_array() || pair.size() != 2) fail("not a pair of key and value");
        meta(pair[0], pair[1]);
      }
    }
  }

  void put_target(const json& target) {
    put(word(field(target, "kind"), "operator or function"), " ");
    const json& schema = field(target, "schema");
    // A line break in a schema would start another line.
    if (!schema.is_string() || schema.get_ref<const std::string&>().find_first_of("\n\r") != std::string::npos) {
      fail("the schema is not a string on one line");
    }
    put(schema.get_ref<const std::string&>());
  }

  void put_storage(const json& storage, size_t number) {
    put(fmt::format("s{} = ", number), Int{field(storage, "bytes")});
    put(fmt::format(" {} {} born ", word(field(storage, "device"), "a device"),
                    word(field(storage, "kind"), "a kind")));
    put_optional_int(storage, "born", "n", "before");
  }

  void put_constant(const json& constant, size_t number) {
    put(fmt::format("c{} = ", number));
    if (constant.is_null()) return put("unreadable");
    put(word(field(constant, "dtype"), "a dtype"));
    put_ints(field(constant, "sizes"), '[', ']');
    put_ints(field(constant, "strides"), '{', '}');
    put(" ", Quoted{field(constant, "base64")});
  }

  void put_region(const json& region, size_t number) {
    put(fmt::format("r{} = {} ", number, word(field(region, "kind"), "a region kind")));
    put(Quoted{field(region, "name")}, " ");
    put(Quoted{field(region, "class")}, " call ");
    put(Int{field(region, "call")});
    if (const json* target = optional_field(region, "target")) {
      put(" ", word(*target, "the name of a target"));
      if (const json* arguments = optional_field(region, "arguments")) put_arguments(*arguments, nullptr);
    }
    put_optional_int(region, "parent", " in r");
    if (const json* inferred = optional_field(region, "inferred"); inferred != nullptr && *inferred == true)
      put(" inferred");
  }

  void put_dependency(const json& dependency) {
    put(fmt::format("depends {}(", word(field(dependency, "kind"), "a kind")));
    put_value(field(dependency, "value"));
    if (const json& dimension = field(dependency, "dimension"); dimension != -1) put(", ", Int{dimension});
    put(") = ", Quoted{field(dependency, "observed")});
  }

  void put_saved(const json& saved) {
    if (!saved.is_array() || saved.empty()) fail("'saved' is not a non-empty array");
    put(" saved(");
    put_each(saved, ", ", [&](const json& tensor) {
      const size_t begin = read_.size();
      const json& value = field(tensor, "value");
      const json* argument = optional_field(tensor, "argument");
      if (argument != nullptr && argument->is_string()) {
        put(word(*argument, "an argument's name"));
      } else if (const char* role = argument != nullptr ? "argument" : "result"; optional_field(tensor, role)) {
        put_optional_int(tensor, role, argument != nullptr ? "argument[" : "result[");
        put("]");
      } else {
        put("internal");
      }
      put("=");
      put_value(value);
      refuse_other_keys(tensor, begin);
    });
    put(")");
  }

  // Records the JSON element of every line, for the parser's errors.
  template <class F>
  void each(const char* table, F&& f) {
    path_ = fmt::format("/{}", table);
    const json& list = field(source_, table);
    if (!list.is_array()) fail("not an array where one is expected");
    for (size_t i = 0; i < list.size(); ++i) {
      path_ = fmt::format("/{}/{}", table, i);
      const size_t begin = read_.size();
      f(list[i], i);
      if (list[i].is_object()) refuse_other_keys(list[i], begin);
      end_line();
    }
  }

  const json& source_;
  std::string text_;
  std::string path_;                // of the element being written
  std::vector<std::string> paths_;  // by line
  // Keys looked up in the objects being read.
  mutable std::vector<std::pair<const json*, std::string_view>> read_;
};

}  // namespace

Graph from_json(const nlohmann::json& json) { return Importer(json).run(); }

}  // namespace shadowgraph
