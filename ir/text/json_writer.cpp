// Writes graphs as JSON, for readers without a parser for the text form.
//
// Linear in the graph. Builds the whole value in memory, whereas the text form is written in pieces.
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cmath>

#include "ir/text/tensor_bytes.h"
#include "ir/text/words.h"
#include "shadowgraph/graph/analysis.h"
#include "shadowgraph/graph/text.h"
#include "support/text.h"

namespace shadowgraph {

namespace {

using nlohmann::json;

// nlohmann::json throws for invalid UTF-8; sources and names may contain any bytes.
bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    if (!pop_character(text).valid) return false;
  }
  return true;
}

// Strings that are not UTF-8 become an object with the text form's escapes, so that nothing is lost and the JSON is
// valid.
json string_json(std::string_view text) {
  if (is_utf8(text)) return text;
  std::string quoted;
  append_quoted(quoted, text);
  return json{{"escaped", quoted.substr(1, quoted.size() - 2)}};
}

// JSON has no infinities and NaNs.
json float_json(double value) {
  if (std::isfinite(value)) return value;
  std::string text;
  append_float(text, value);
  return text;
}

// Writes everything, defaults included, since readers of JSON may not have the schemas.
class Exporter {
 public:
  explicit Exporter(const Graph& graph)
      : graph_(graph), numbering_(Numbering::of(graph)), effects_(Effects::of(graph)) {}
  json run() {
    json result = {{"shadowgraph", kTextFormatVersion}, {"libtorch", libtorch_version()}, {"metadata", json::array()}};
    // Empty tables are written, too, so that readers need not check for them.
    for (const char* table : {"operators", "storages", "regions", "constants", "dependencies", "nodes"}) {
      result[table] = json::array();
    }
    json metadata = json::object();
    // Metadata is an object, or a list of pairs if a key is not UTF-8.
    bool plain_keys = true;
    for (const auto& [key, value] : graph_.metadata.lines()) {
      result["metadata"].push_back(json::array({string_json(key), string_json(value)}));
      plain_keys = plain_keys && is_utf8(key);
      if (plain_keys) metadata[key] = string_json(value);
    }
    if (plain_keys) result["metadata"] = std::move(metadata);
    for (const TargetId id : numbering_.targets()) {
      const Target& target = graph_.target(id);
      result["operators"].push_back({{"kind", target.kind() == TargetKind::kFunction ? "function" : "operator"},
                                     {"schema", target.schema_text()}});
    }
    for (const StorageId id : numbering_.storages()) {
      const Storage& storage = graph_.storage(id);
      result["storages"].push_back({{"bytes", storage.bytes},
                                    {"device", device_text(storage.device())},
                                    {"kind", to_string(storage.kind)},
                                    {"born", number(storage.born)}});
    }
    for (uint32_t i = 0; i < graph_.region_count(); ++i) result["regions"].push_back(region(RegionId(i)));
    for (const ConstantId id : numbering_.constants()) result["constants"].push_back(constant(id));
    for (const Guard& guard : graph_.guards) {
      result["dependencies"].push_back({{"kind", to_string(guard.kind)},
                                        {"value", number(guard.value)},
                                        {"dimension", guard.dimension},
                                        {"observed", string_json(guard.observed)}});
    }
    json& nodes = result["nodes"];
    // Nodes make up most of a graph; reserving avoids moving them as the array grows.
    nodes.get_ref<json::array_t&>().reserve(numbering_.nodes().size());
    for (const NodeId id : numbering_.nodes()) nodes.push_back(node(id));
    return result;
  }

 private:
  template <class I>
  json number(I id) const {
    const uint32_t n = numbering_.of(id);
    return n == Numbering::kNone ? json() : json(n);
  }
  // Kinds without a JSON type become objects with one key, to distinguish them from strings and numbers.
  json argument(const Argument& a, const FormalType& type) const {
    switch (a.kind) {
      case ArgumentKind::kNone:
        return nullptr;
      case ArgumentKind::kValue:
        return {{"value", number(a.ref.value)}};
      case ArgumentKind::kInt:
        if (const std::string_view word = word_of_number(type.type, a.i); !word.empty()) {
          const bool dtype = type.type == TypeClass::kDtype;
          return {{dtype ? "dtype" : type.type == TypeClass::kLayout ? "layout" : "memory_format", word}};
        }
        return a.i;
      case ArgumentKind::kFloat:
        return std::isfinite(a.d) ? json(a.d) : json{{"float", float_json(a.d)}};
      case ArgumentKind::kBool:
        return a.b;
      case ArgumentKind::kComplex: {
        const auto parts = graph_.complex_parts(a);
        return {{"complex", json::array({float_json(parts[0]), float_json(parts[1])})}};
      }
      case ArgumentKind::kString:
        return string_json(graph_.text_or_empty(a.string));
      case ArgumentKind::kDevice:
        return {{"device", device_text(a.device())}};
      case ArgumentKind::kIntList: {
        json list = json::array();
        for (const int64_t i : graph_.ints(a)) list.push_back(i);
        // The kind of list that the schema expects is a plain array; the other one is marked.
        return type.is_int_list() ? list : json{{"ints", std::move(list)}};
      }
      case ArgumentKind::kList: {
        json list = json::array();
        FormalType element;
        if (type.type == TypeClass::kList) element.type = type.element;
        for (const Argument& e : graph_.list(a)) list.push_back(argument(e, element));
        return type.is_int_list() ? json{{"list", std::move(list)}} : list;
      }
      case ArgumentKind::kConstant:
        return {{"constant", number(a.constant)}};
      case ArgumentKind::kGenerator:
        return {{"generator", device_text(a.device())}};
      case ArgumentKind::kOpaque:
        return {{"opaque", string_json(graph_.text_or_empty(a.string))}};
    }
    return nullptr;
  }

  // By name, including defaults.
  json arguments(TargetId target, std::span<const Argument> actual) {
    const auto& formals = graph_.target(target).signature().arguments;
    json result = json::object();
    for (size_t i = 0; i < std::min(actual.size(), formals.size()); ++i) {
      result[formals[i].name] = argument(actual[i], formals[i].type);
    }
    return result;
  }

  // Nested as returned; None is null.
  json results(std::span<const Argument> results) const {
    json list = json::array();
    for (const Argument& result : results) {
      list.push_back(result.kind == ArgumentKind::kValue  ? type(result.ref.value)
                     : result.kind == ArgumentKind::kList ? this->results(graph_.list(result))
                                                          : json());
    }
    return list;
  }

  json type(ValueId id) const {
    const Value& value = graph_.value(id);
    if (value.kind != ValueKind::kTensor) return {{"value", number(id)}, {"scalar", to_string(value.kind)}};
    const auto sizes = graph_.sizes(id);
    const auto strides = graph_.strides(id);
    return {{"value", number(id)},
            {"dtype", dtype_word(value.dtype)},
            {"sizes", std::vector<int64_t>(sizes.begin(), sizes.end())},
            {"strides", std::vector<int64_t>(strides.begin(), strides.end())},
            {"offset", value.offset},
            {"storage", number(value.storage)},
            {"device", device_text(value.device())},
            {"layout", layout_word(value.layout)},
            {"requires_grad", value.requires_grad}};
  }

  json region(RegionId id) {
    const Region& region = graph_.region(id);
    json result = {{"kind", to_string(region.kind)},
                   {"name", string_json(graph_.text_or_empty(region.name))},
                   {"class", string_json(graph_.text_or_empty(region.class_name))},
                   {"call", region.call},
                   {"parent", region.parent.valid() ? json(region.parent.index) : json()},
                   {"inferred", region.inferred}};
    if (region.target.valid()) {
      result["target"] = target_name(region.target);
      if (region.arguments.size != 0) result["arguments"] = arguments(region.target, graph_.region_arguments(id));
    }
    return result;
  }

  json constant(ConstantId id) const {
    const auto bytes = tensor_bytes(graph_.constant(id));
    // A meta or sparse tensor has no bytes to write.
    if (!bytes) return nullptr;
    std::string base64;
    append_base64(base64, bytes->bytes);
    return {{"dtype", dtype_word(bytes->dtype)},
            {"sizes", bytes->sizes},
            {"strides", bytes->strides},
            {"base64", std::move(base64)}};
  }

  // Empty lists are omitted to keep most nodes short.
  json node(NodeId id) {
    const Node& node = graph_.node(id);
    json result = {{"target", target_name(node.target)},
                   {"arguments", arguments(node.target, graph_.arguments(id))},
                   {"region", node.region.index},
                   {"phase", string_json(graph_.phase_name(node.phase))}};
    const auto& formals = graph_.target(node.target).signature().arguments;
    const auto actual = graph_.arguments(id);
    // Variadic arguments have no name, so they are a list.
    for (size_t i = formals.size(); i < actual.size(); ++i) result["more"].push_back(argument(actual[i], {}));
    if (node.results.size != 0) result["results"] = results(graph_.results(id));
    if (numbering_.of(node.forward) != Numbering::kNone) result["forward"] = number(node.forward);
    for (const auto& [flag, word] : kModeWords) {
      if (node.flags.*flag) result["modes"].push_back(word);
    }
    for (const SavedTensor& saved : graph_.saved(id)) {
      json item = {{"value", number(saved.value)}};
      if (saved.role == SavedRole::kArgument) {
        // `internal` is a keyword of the text form.
        const bool by_name = saved.index < formals.size() && formals[saved.index].name != "internal";
        item["argument"] = by_name ? json(formals[saved.index].name) : json(saved.index);
      } else if (saved.role == SavedRole::kResult) {
        item["result"] = saved.index;
      }
      result["saved"].push_back(std::move(item));
    }
    for (const StorageWrite& write : effects_.writes(id)) {
      if (effects_.is_generator(write.storage)) continue;
      result["writes"].push_back({{"storage", number(write.storage)}, {"version", write.after}});
    }
    for (const StorageId storage : graph_.frees(id)) result["free"].push_back(number(storage));
    // Pairs, since a key may not be UTF-8.
    graph_.for_each_note(id, [&](std::string_view key, std::string_view value) {
      result["notes"].push_back(json::array({string_json(key), string_json(value)}));
    });
    if (const auto source = graph_.text_or_empty(node.source); !source.empty()) result["source"] = string_json(source);
    return result;
  }

  std::string target_name(TargetId id) const {
    const uint32_t copy = numbering_.name_copy(id);
    return copy > 1 ? fmt::format("{}#{}", graph_.target(id).name(), copy) : graph_.target(id).name();
  }

  const Graph& graph_;
  const Numbering numbering_;
  const Effects effects_;
};

}  // namespace

json to_json(const Graph& graph) { return Exporter(graph).run(); }

}  // namespace shadowgraph
