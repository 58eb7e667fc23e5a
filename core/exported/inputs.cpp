#include "core/exported/inputs.h"

#include "core/capture/program_from_file.h"
#include "shadowgraph/error.h"

namespace shadowgraph {
namespace {

std::string join_words(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

std::string range_text(const SymbolRange& range) {
  constexpr int64_t kAsGoodAsUnbounded = int64_t{1} << 40;  // "no bound" is written as one of several large numbers
  if (range.most >= kAsGoodAsUnbounded) return "at least " + std::to_string(range.least);
  return std::to_string(range.least) + " to " + std::to_string(range.most);
}

std::string dimension_text(const SymbolicSize& size, const std::map<std::string, SymbolRange>& ranges) {
  if (!size.expression) return std::to_string(size.value);
  std::string text = size.expression->to_string();
  const auto range = ranges.find(text);
  if (size.value >= 0) text += " = " + std::to_string(size.value);
  if (range != ranges.end()) text += " (" + range_text(range->second) + ")";
  return text;
}

bool is_users_tensor(const SavedInput& spec) { return spec.kind == SavedInput::Kind::kUser && spec.geometry; }

class InputBinder {
 public:
  InputBinder(const SavedProgram& program, const std::string& path) : program_(program), path_(path) {}

  SymbolValues& symbols() { return symbols_; }

  // Binds what the size says of symbols that have no value yet.
  void bind(const SavedInput& spec, size_t dimension, int64_t given) {
    const SymbolicSize& size = spec.geometry->sizes[dimension];
    if (!size.expression) return;
    const auto symbol = size.expression->unknown(symbols_);
    if (!symbol) return;
    const auto value = size.expression->solve(*symbol, given, symbols_);
    if (!value) return;
    const auto range = program_.ranges.find(*symbol);
    if (range != program_.ranges.end() && (*value < range->second.least || *value > range->second.most)) {
      refuse(spec, dimension, given,
             *symbol + " must be " + range_text(range->second) +
                 (size.expression->to_string() == *symbol ? "" : ", not " + std::to_string(*value)));
    }
    symbols_[*symbol] = *value;
  }

  void check(const SavedInput& spec, size_t dimension, int64_t given) const {
    const SymbolicSize& size = spec.geometry->sizes[dimension];
    if (!size.expression) {
      if (size.value != given) refuse(spec, dimension, given, "it is always " + std::to_string(size.value));
      return;
    }
    const auto expected = size.expression->evaluate(symbols_);
    if (expected && *expected != given) {
      refuse(spec, dimension, given,
             "it is " + size.expression->to_string() + ", which other sizes make " + std::to_string(*expected));
    }
    if (!expected && size.expression->unknown(symbols_)) {
      refuse(spec, dimension, given, "it is " + size.expression->to_string());
    }
  }

 private:
  [[noreturn]] void refuse(const SavedInput& spec, size_t dimension, int64_t given, const std::string& why) const {
    throw Error(path_ + ": dimension " + std::to_string(dimension) + " of the input '" + spec.name + "' cannot be " +
                std::to_string(given) + ": " + why + " in the archive");
  }

  const SavedProgram& program_;
  const std::string& path_;
  SymbolValues symbols_;
};

TensorSpecText example_of(const SavedInput& spec, const std::string& path, c10::ScalarType dtype) {
  TensorSpecText example{.dtype = dtype};
  for (size_t i = 0; i < spec.geometry->sizes.size(); ++i) {
    const int64_t size = spec.geometry->sizes[i].value;
    if (size < 0) {
      throw Error(path + " has no example of dimension " + std::to_string(i) + " of the input '" + spec.name +
                  "': give the inputs' sizes");
    }
    example.sizes.push_back(size);
  }
  return example;
}

// Returns the archive's strides if they are not the contiguous ones.
std::vector<int64_t> strides_for(const SavedGeometry& geometry, const std::vector<int64_t>& sizes,
                                 const SymbolValues& symbols) {
  std::vector<int64_t> strides;
  for (const SymbolicSize& stride : geometry.strides) {
    const auto value = stride.expression ? stride.expression->evaluate(symbols) : std::optional(stride.value);
    if (!value || *value < 0) return {};
    strides.push_back(*value);
  }
  int64_t contiguous = 1;
  bool differs = false;
  for (size_t i = sizes.size(); i-- > 0;) {
    differs = differs || (strides[i] != contiguous && sizes[i] > 1);
    contiguous *= std::max<int64_t>(sizes[i], 1);
  }
  return differs ? strides : std::vector<int64_t>();
}

}  // namespace

std::vector<std::string> describe_inputs(const SavedProgram& program) {
  std::vector<std::string> texts;
  for (const SavedInput& spec : program.inputs) {
    if (!is_users_tensor(spec)) continue;
    std::vector<std::string> sizes;
    for (const SymbolicSize& size : spec.geometry->sizes) sizes.push_back(dimension_text(size, program.ranges));
    texts.push_back(spec.name + " " + name_of_dtype(spec.geometry->dtype) + "[" + join_words(sizes) + "]");
  }
  return texts;
}

BoundInputs bind_inputs(const SavedProgram& program, const std::string& path, std::span<const TensorSpecText> given,
                        std::optional<c10::ScalarType> dtype) {
  std::vector<const SavedInput*> specs;
  for (const SavedInput& spec : program.inputs) {
    if (is_users_tensor(spec)) specs.push_back(&spec);
  }
  if (!given.empty() && given.size() != specs.size()) {
    throw Error(path + " takes " + std::to_string(specs.size()) + " inputs (" + join_words(describe_inputs(program)) +
                "), but " + std::to_string(given.size()) + " were given");
  }
  BoundInputs bound;
  for (size_t i = 0; i < specs.size(); ++i) {
    const SavedGeometry& geometry = *specs[i]->geometry;
    const c10::ScalarType expected = dtype && at::isFloatingType(geometry.dtype) ? *dtype : geometry.dtype;
    bound.tensors.push_back(given.empty() ? example_of(*specs[i], path, expected) : given[i]);
    const TensorSpecText& spec = bound.tensors.back();
    if (spec.dtype != expected) {
      throw Error(path + ": the input '" + specs[i]->name + "' is " + name_of_dtype(expected) + ", not " +
                  name_of_dtype(spec.dtype));
    }
    if (spec.sizes.size() != geometry.sizes.size()) {
      throw Error(path + ": the input '" + specs[i]->name + "' has " + std::to_string(geometry.sizes.size()) +
                  " dimensions, not " + std::to_string(spec.sizes.size()));
    }
  }
  for (size_t i = 0; i < specs.size(); ++i) {
    int64_t elements = 1;
    for (const int64_t size : bound.tensors[i].sizes) {
      if (size != 0 && (__builtin_mul_overflow(elements, size, &elements) || elements > (int64_t{1} << 58))) {
        throw Error(path + ": the input '" + specs[i]->name + "' has too many elements");
      }
    }
  }
  InputBinder binder(program, path);
  const auto for_each_size = [&](auto f) {
    for (size_t i = 0; i < specs.size(); ++i) {
      for (size_t d = 0; d < bound.tensors[i].sizes.size(); ++d) f(*specs[i], d, bound.tensors[i].sizes[d]);
    }
  };
  // Go round twice: an input may have s0 + s1, and the next one s1.
  for (int round = 0; round < 2; ++round) {
    for_each_size([&](const SavedInput& spec, size_t d, int64_t size) { binder.bind(spec, d, size); });
  }
  for_each_size([&](const SavedInput& spec, size_t d, int64_t size) { binder.check(spec, d, size); });
  bound.symbols = std::move(binder.symbols());
  for (size_t i = 0; i < specs.size(); ++i) {
    bound.strides.push_back(strides_for(*specs[i]->geometry, bound.tensors[i].sizes, bound.symbols));
    bound.requires_grad.push_back(specs[i]->geometry->requires_grad);
  }
  return bound;
}

int64_t number_for(const SavedInput& spec, const SymbolValues& symbols, const std::string& path) {
  const auto value = spec.number.expression ? spec.number.expression->evaluate(symbols) : std::nullopt;
  if (value) return *value;
  if (spec.number.expression && spec.number.value < 0) {
    throw Error(path + " has no example of the integer '" + spec.name + "'");
  }
  return spec.number.value;
}

}  // namespace shadowgraph
