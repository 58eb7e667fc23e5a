#include "python/src/options.h"

#include <fmt/format.h>

namespace shadowgraph::python {
namespace {

// Converts "torch.float32" to "f32", the format of the command line.
std::string dtype_text(const std::string& name) {
  for (const auto& [kind, word] : {std::pair{"torch.bfloat", "bf"}, {"torch.float", "f"}, {"torch.int", "i"}}) {
    if (name.starts_with(kind)) return word + name.substr(std::string_view(kind).size());
  }
  return name;
}

std::string option_text(const Option& option, const py::handle& value) {
  const bool flag = option.takes.kind == OptionKind::kFlag;
  if (py::isinstance<py::bool_>(value)) {
    if (!flag)
      refuse_keyword(option,
                     fmt::format("got {}, expected {}", py::repr(value).cast<std::string>(), option.takes.text()));
    return value.cast<bool>() ? "true" : "false";
  }
  if (py::isinstance<py::str>(value)) return value.cast<std::string>();
  if (py::hasattr(value, "__fspath__")) return py::str(value.attr("__fspath__")());
  if (py::isinstance<py::float_>(value)) return py::repr(value);
  if (py::hasattr(value, "__index__")) {
    const std::string number = py::str(value.attr("__index__")());
    return option.takes.kind == OptionKind::kBytes && number != "0" ? number + "B" : number;
  }
  const std::string text = py::str(value);
  if (text.starts_with("torch.")) return dtype_text(text);
  refuse_keyword(option, fmt::format("got {}, expected {}", py::repr(value).cast<std::string>(), option.takes.text()));
}

}  // namespace

void refuse_keyword(const Option& option, const std::string& why) { throw Error(option.name + ": " + why); }

std::vector<std::string> words_of(const Option& option, const py::handle& value) {
  if (!option.takes.list) return {option_text(option, value)};
  std::vector<std::string> words;
  if (py::hasattr(value, "items")) {
    for (const auto& pair : py::reinterpret_borrow<py::object>(value).attr("items")()) {
      words.push_back(fmt::format("{}={}", py::str(pair[py::int_(0)]).cast<std::string>(),
                                  py::str(pair[py::int_(1)]).cast<std::string>()));
    }
  } else if (py::isinstance<py::str>(value) || !py::hasattr(value, "__iter__")) {
    const std::string given = py::repr(value);
    refuse_keyword(option, fmt::format("expected a list, got {}; pass {}=[{}]", given, option.name, given));
  } else {
    for (const py::handle& one : value) words.push_back(option_text(option, one));
  }
  return words;
}

std::string description(const Option& option, const std::vector<std::string>& defaults) {
  std::string text = fmt::format("{}: {} ({}", option.name, option.summary, option.takes.text());
  if (!defaults.empty() && !option.takes.list && option.takes.kind != OptionKind::kFlag) {
    text += "; " + defaults.front();
  }
  return text + ")";
}

}  // namespace shadowgraph::python
