// The geometries that inputs shall have, from tensors, from text, and as text.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "ir/text/words.h"
#include "shadowgraph/capture.h"
#include "shadowgraph/passes/shape_propagation.h"
#include "shadowgraph/text.h"

namespace shadowgraph {

InputGeometry InputGeometry::of(const at::Tensor& tensor) {
  InputGeometry geometry;
  geometry.dtype = tensor.scalar_type();
  geometry.sizes = tensor.sizes().vec();
  geometry.strides = tensor.strides().vec();
  geometry.offset = tensor.storage_offset();
  if (!tensor.is_meta()) geometry.device = tensor.device();
  return geometry;
}

InputGeometry InputGeometry::of_text(std::string_view text) {
  TensorSpecText spec = parse_tensor_spec(text);
  InputGeometry geometry;
  geometry.dtype = spec.dtype;
  geometry.sizes = std::move(spec.sizes);
  return geometry;
}

std::map<std::string, InputGeometry> ShapePropagationOptions::inputs_of(const std::string& text) {
  std::map<std::string, InputGeometry> inputs;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find_first_of(" ;", at), text.size());
    const std::string item = text.substr(at, end - at);
    at = end + 1;
    if (item.empty()) continue;
    const size_t equals = item.find('=');
    if (equals == std::string::npos) {
      throw Error("shape-prop: '" + item + "' is no input; write name=f32[8,3,64,64], several joined by ';'");
    }
    inputs.insert_or_assign(item.substr(0, equals), InputGeometry::of_text(item.substr(equals + 1)));
  }
  return inputs;
}

std::string ShapePropagationOptions::text_of(const std::map<std::string, InputGeometry>& inputs) {
  std::vector<std::string> items;
  for (const auto& [name, geometry] : inputs) {
    items.push_back(fmt::format("{}={}[{}]", name, dtype_word(geometry.dtype), fmt::join(geometry.sizes, ",")));
  }
  return fmt::format("{}", fmt::join(items, ";"));
}

}  // namespace shadowgraph
