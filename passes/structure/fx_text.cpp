// Prints a graph in the format of torch.fx, for reading only: shapes, storages and regions are omitted.
#include <fmt/format.h>

#include <cctype>
#include <unordered_map>

#include "ir/analysis/identity.h"
#include "ir/text/words.h"
#include "shadowgraph/passes/structure.h"

namespace shadowgraph {
namespace {

class FxPrinter {
 public:
  explicit FxPrinter(const Graph& graph) : graph_(graph), names_(graph.value_capacity()) {}

  std::string run() {
    std::string text = "graph():\n";
    for (NodeId n : graph_.nodes()) {
      if (graph_.node(n).target == target_of(Builtin::kOutput)) {
        text += fmt::format("    return {}\n", returned(n));
      } else {
        text += line(n);
      }
    }
    return text;
  }

 private:
  // Returns whether an operand is shown: not if it belongs to the called module.
  bool is_shown(NodeId user, ValueId v) const {
    const std::string_view module = graph_.note(user, "module");
    if (module.empty()) return true;
    const NodeId producer = graph_.value(v).producer;
    const TargetId target = graph_.node(producer).target;
    if (target != target_of(Builtin::kParameter) && target != target_of(Builtin::kBuffer)) return true;
    const std::string_view name = graph_.text(graph_.arguments(producer)[0].string);
    return !(name.starts_with(module) && name.size() > module.size() && name[module.size()] == '.');
  }

  // Counts user nodes, not uses, as torch.fx does.
  size_t users(NodeId n) const {
    size_t count = 0;
    NodeId last;
    graph_.for_each_output(n, [&](ValueId v) {
      graph_.for_each_use(v, [&](NodeId user) {
        // The uses of one node are consecutive and count once.
        count += user != last && is_shown(user, v);
        last = user;
      });
    });
    return count;
  }

  std::string fresh_name(std::string_view wish) {
    std::string name;
    for (const char c : wish) name += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
    if (name.empty() || std::isdigit(static_cast<unsigned char>(name[0])) != 0) name.insert(0, "_");
    // Names are numbered as in torch.fx: add, add_1, add_2.
    const int copy = taken_[name]++;
    return copy == 0 ? name : fmt::format("{}_{}", name, copy);
  }

  // Prints a node as one line, and an operator.getitem line for each used result if there are several.
  std::string line(NodeId n) {
    const TargetId target = graph_.node(n).target;
    const Target& t = graph_.target(target);
    const auto show = [&](const std::string& name, size_t count, std::string_view call) {
      return fmt::format("    %{} : [num_users={}] = {}\n", name, count, call);
    };
    if (is_placeholder(target)) {
      const ValueId v = only_result(graph_, n);
      const Argument& named = graph_.arguments(n)[0];
      const std::string path = named.kind == ArgumentKind::kString ? graph_.text(named.string) : "constant";
      const bool is_input = target == target_of(Builtin::kInput);
      const size_t count = users(n);
      // A parameter that only a called module reads is not shown; in torch.fx it is inside the module.
      if (!v.valid() || (!is_input && count == 0)) return {};
      names_[v.index] = fresh_name(path);
      return show(names_[v.index], count, fmt::format("{}[target={}]", is_input ? "placeholder" : "get_attr", path));
    }
    const std::string_view module = graph_.note(n, "module");
    const bool is_module = !module.empty() && t.kind() == TargetKind::kFunction;
    std::string shown(t.name());
    if (const size_t colons = shown.find("::"); colons != shown.npos) shown.replace(colons, 2, ".");
    if (is_module) {
      shown = module;
      if (!t.signature().overload.empty()) shown += "." + t.signature().overload;
    }
    std::string_view base = t.signature().name;
    base.remove_prefix(std::min(base.size(), base.find("::") + 2));
    const std::string name = fresh_name(is_module ? std::string_view(shown) : base);
    std::string text =
        show(name, users(n),
             fmt::format("{}[target={}]{}", is_module ? "call_module" : "call_function", shown, arguments(n)));
    // A single result is the node itself; of several, each is an item.
    const auto results = graph_.results(n);
    if (results.size() == 1 && results[0].kind == ArgumentKind::kValue) {
      names_[results[0].ref.value.index] = name;
      return text;
    }
    size_t index = 0;
    graph_.for_each_output(n, [&](ValueId v) {
      const size_t at = index++;
      if (!graph_.has_uses(v)) return;
      names_[v.index] = fresh_name("getitem");
      text += show(names_[v.index], graph_.users_of(v).size(),
                   fmt::format("call_function[target=operator.getitem](args = (%{}, {}), kwargs = {{}})", name, at));
    });
    return text;
  }

  // Prints arguments as torch.fx does: positional up to the last non-default, keyword-only by name, no generators.
  std::string arguments(NodeId n) {
    const auto& formals = graph_.target(n).signature().arguments;
    const auto actual = graph_.arguments(n);
    const auto is_default = [&](size_t i) {
      return i < formals.size() && formals[i].default_value && formals[i].default_value->equals(graph_, actual[i]);
    };
    const auto is_keyword = [&](size_t i) { return i < formals.size() && formals[i].keyword_only; };
    size_t last = 0;
    for (size_t i = 0; i < actual.size(); ++i) {
      if (!is_keyword(i) && !is_default(i)) last = i + 1;
    }
    std::string positional;
    std::string keywords;
    size_t count = 0;
    for (size_t i = 0; i < actual.size(); ++i) {
      if (actual[i].kind == ArgumentKind::kValue && !is_shown(n, actual[i].ref.value)) continue;
      if (actual[i].kind == ArgumentKind::kGenerator) continue;
      if (is_keyword(i)) {
        if (is_default(i)) continue;
        keywords += fmt::format("{}{}: {}", keywords.empty() ? "" : ", ", formals[i].name, item(actual[i]));
      } else if (i < last) {
        positional += fmt::format("{}{}", count++ == 0 ? "" : ", ", item(actual[i]));
      }
    }
    return fmt::format("(args = ({}{}), kwargs = {{{}}})", positional, count == 1 ? "," : "", keywords);
  }

  std::string item(const Argument& a) const {
    switch (a.kind) {
      case ArgumentKind::kNone:
        return "None";
      case ArgumentKind::kValue:
        return "%" + names_[a.ref.value.index];
      case ArgumentKind::kInt:
        return fmt::format("{}", a.i);
      case ArgumentKind::kFloat:
        return fmt::format("{}", a.d);
      case ArgumentKind::kBool:
        return a.b ? "True" : "False";
      case ArgumentKind::kComplex:
        return fmt::format("({}+{}j)", graph_.complex_parts(a)[0], graph_.complex_parts(a)[1]);
      case ArgumentKind::kString:
      case ArgumentKind::kOpaque:
        return graph_.text(a.string);
      case ArgumentKind::kDevice:
      case ArgumentKind::kGenerator: {
        std::string text;
        append_device(text, a.device());
        return text;
      }
      case ArgumentKind::kConstant:
        return "constant";
      case ArgumentKind::kIntList: {
        std::string text;
        for (const int64_t i : graph_.ints(a)) text += fmt::format("{}{}", text.empty() ? "" : ", ", i);
        return "[" + text + "]";
      }
      case ArgumentKind::kList: {
        std::string text;
        for (const Argument& element : graph_.list(a)) text += (text.empty() ? "" : ", ") + item(element);
        return "[" + text + "]";
      }
    }
    return {};
  }

  std::string returned(NodeId n) const {
    std::string text;
    size_t count = 0;
    for (const Argument& a : graph_.list(graph_.arguments(n)[0])) {
      text += count++ == 0 ? "" : ", ";
      text += a.kind == ArgumentKind::kValue ? names_[a.ref.value.index] : "None";
    }
    return count == 1 ? text : "(" + text + ")";
  }

  const Graph& graph_;
  std::vector<std::string> names_;  // by value
  std::unordered_map<std::string, int> taken_;
};

}  // namespace

std::string fx_text(const Graph& graph) { return FxPrinter(graph).run(); }

}  // namespace shadowgraph
