// The other half of shadowgraph/text.h: JSON to text to graph, see the top of json.cpp.
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "ir/text/json_arguments.h"
#include "shadowgraph/text.h"

namespace shadowgraph {
namespace {

using nlohmann::json;

// Writes JSON as graph text, line by line, and lets the one parser judge it.
class Importer : JsonArguments {
 public:
  explicit Importer(const json& source) : source_(source) {}
  Graph run();

 private:
  void put_result_names(const json& results, int depth);
  void put_result_types(const json& results, int depth);
  void put_type(const json& type);
  void put_node(const json& node);
  void put_header();
  void put_metadata();
  void put_target(const json& target);
  void put_storage(const json& storage, size_t number);
  void put_constant(const json& constant, size_t number);
  void put_region(const json& region, size_t number);
  void put_dependency(const json& dependency);
  void put_saved(const json& saved);
  template <class F>
  void each(const char* table, F&& f);

  const json& source_;
};

// ---- Results --------------------------------------------------------------------------------------------------------

void Importer::put_result_names(const json& results, int depth) {
  if (!results.is_array()) fail("no array of results where one is expected");
  if (depth > kMaxListDepth) fail("results nest too deep");
  for (size_t i = 0; i < results.size(); ++i) {
    if (i != 0) put(", ");
    if (results[i].is_null()) {
      put("None");
    } else if (results[i].is_array()) {
      put("[");
      put_result_names(results[i], depth + 1);
      put("]");
    } else {
      put("%");
      put_int(field(results[i], "value"));
    }
  }
}

void Importer::put_result_types(const json& results, int depth) {
  for (size_t i = 0; i < results.size(); ++i) {
    if (i != 0) put(", ");
    if (results[i].is_null()) {
      put("None");
    } else if (results[i].is_array()) {
      put("[");
      put_result_types(results[i], depth + 1);
      put("]");
    } else {
      put_type(results[i]);
    }
  }
}

// The parser checks types itself, so a wrong dtype is reported in the same words as in the text form.
// Everything is written out, also what equals its default: the parser drops it.
void Importer::put_type(const json& type) {
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

// ---- Lines ----------------------------------------------------------------------------------------------------------

void Importer::put_saved(const json& saved) {
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

// Follows the order of the text's node lines.
void Importer::put_node(const json& node) {
  if (const json* results = optional_field(node, "results"); results != nullptr && !results->empty()) {
    put_result_names(*results, 0);
    put(" = ");
  }
  put(word(field(node, "target"), "the name of a target"));
  put_arguments(field(node, "arguments"), optional_field(node, "more"));
  if (const json* results = optional_field(node, "results"); results != nullptr && !results->empty()) {
    put(" : ");
    put_result_types(*results, 0);
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

void Importer::put_region(const json& region, size_t number) {
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

// Notes for every line which element it came from, so that the parser's error can name that.
template <class F>
void Importer::each(const char* table, F&& f) {
  path_ = fmt::format("/{}", table);
  const json& list = field(source_, table);
  if (!list.is_array()) fail("no array where one is expected");
  for (size_t i = 0; i < list.size(); ++i) {
    path_ = fmt::format("/{}/{}", table, i);
    f(list[i], i);
    end_line();
  }
}

void Importer::put_header() {
  put("shadowgraph ");
  put_int(field(source_, "shadowgraph"));
  put(" libtorch ");
  put(word(field(source_, "libtorch"), "a libtorch version"));
  path_ = "/shadowgraph";
  end_line();
}

// Metadata is an object, or an array of pairs where JSON cannot have the keys.
void Importer::put_metadata() {
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

void Importer::put_target(const json& target) {
  put(word(field(target, "kind"), "operator or function"));
  put(" ");
  const json& schema = field(target, "schema");
  // A line break in a schema would begin another line, of any kind.
  if (!schema.is_string() || schema.get_ref<const std::string&>().find_first_of("\n\r") != std::string::npos) {
    fail("no schema on one line");
  }
  put(schema.get_ref<const std::string&>());
}

void Importer::put_storage(const json& storage, size_t number) {
  put(fmt::format("s{} = ", number));
  put_int(field(storage, "bytes"));
  put(fmt::format(" {} {} born ", word(field(storage, "device"), "a device"), word(field(storage, "kind"), "a kind")));
  if (const json* born = optional_field(storage, "born")) {
    put("n");
    put_int(*born);
  } else {
    put("before");
  }
}

void Importer::put_constant(const json& constant, size_t number) {
  put(fmt::format("c{} = ", number));
  if (constant.is_null()) return put("unreadable");
  put(word(field(constant, "dtype"), "a dtype"));
  put_ints(field(constant, "sizes"), '[', ']');
  put_ints(field(constant, "strides"), '{', '}');
  put(" ");
  put_quoted(field(constant, "base64"));
}

void Importer::put_dependency(const json& dependency) {
  put(fmt::format("depends {}(", word(field(dependency, "kind"), "a kind")));
  put_value(field(dependency, "value"));
  if (const json& dimension = field(dependency, "dimension"); dimension != -1) {
    put(", ");
    put_int(dimension);
  }
  put(") = ");
  put_quoted(field(dependency, "observed"));
}

Graph Importer::run() {
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

}  // namespace

Graph from_json(const nlohmann::json& json) { return Importer(json).run(); }

}  // namespace shadowgraph
