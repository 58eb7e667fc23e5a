#include <fmt/format.h>

#include <unordered_map>

#include "ir/text/words.h"
#include "shadowgraph/profile/measure.h"

namespace shadowgraph {
namespace {

class CallText {
 public:
  explicit CallText(const Graph& graph) : graph_(graph) {}

  std::string of(NodeId node) {
    graph_.for_each_input(node, [&](ValueId value) {
      const StorageId storage = graph_.value(value).storage;
      if (storage.valid()) ++uses_[storage.index];
    });
    text_ = graph_.target(node).name();
    text_ += '(';
    add(graph_.arguments(node), 0);
    text_ += ')';
    return std::move(text_);
  }

 private:
  void add(std::span<const Argument> arguments, int depth) {
    bool first = true;
    for (const Argument& argument : arguments) {
      if (!first) text_ += ", ";
      first = false;
      add(argument, depth);
    }
  }

  void add(const Argument& argument, int depth) {
    switch (argument.kind) {
      case ArgumentKind::kNone:
        text_ += "None";
        return;
      case ArgumentKind::kValue:
        return add_value(argument.ref.value);
      case ArgumentKind::kInt:
        return append_int(text_, argument.i);
      case ArgumentKind::kFloat:
        return append_float(text_, argument.d);
      case ArgumentKind::kBool:
        text_ += argument.b ? "true" : "false";
        return;
      case ArgumentKind::kString:
        return append_quoted(text_, graph_.text(argument.string));
      case ArgumentKind::kDevice:
        return append_device(text_, argument.device());
      case ArgumentKind::kIntList:
        text_ += '[';
        for (const int64_t element : graph_.ints(argument)) text_ += fmt::format("{},", element);
        text_ += ']';
        return;
      case ArgumentKind::kList:
        text_ += '[';
        if (depth < kMaxListDepth) add(graph_.list(argument), depth + 1);
        text_ += ']';
        return;
      case ArgumentKind::kConstant: {
        const auto constant = graph_.constant_meta(argument.constant);
        if (!constant) {
          text_ += "None";
          return;
        }
        text_ += "constant ";
        return add_tensor(constant->dtype, constant->sizes, constant->strides);
      }
      case ArgumentKind::kComplex:
      case ArgumentKind::kGenerator:
      case ArgumentKind::kOpaque:
        text_ += '*';
        return;
    }
  }

  void add_value(ValueId id) {
    const Value& value = graph_.value(id);
    if (value.kind != ValueKind::kTensor) {
      text_ += "number";
      return;
    }
    add_tensor(value.dtype, graph_.sizes(id), graph_.strides(id));
    // Says who shares memory with whom, and where.
    if (value.storage.valid() && uses_[value.storage.index] > 1) {
      const auto place = places_.try_emplace(value.storage.index, places_.size()).first;
      text_ += fmt::format("@{}+{}", place->second, value.offset);
    }
  }

  template <class Sizes>
  void add_tensor(c10::ScalarType dtype, const Sizes& sizes, const Sizes& strides) {
    text_ += dtype_word(dtype);
    text_ += '[';
    for (const int64_t size : sizes) text_ += fmt::format("{},", size);
    text_ += "]{";
    for (const int64_t stride : strides) text_ += fmt::format("{},", stride);
    text_ += '}';
  }

  const Graph& graph_;
  std::string text_;
  std::unordered_map<uint32_t, int> uses_;       // of storages, in this call
  std::unordered_map<uint32_t, size_t> places_;  // numbers of the shared ones, in order of appearance
};

}  // namespace

std::string call_signature(const Graph& graph, NodeId node) { return CallText(graph).of(node); }

}  // namespace shadowgraph
