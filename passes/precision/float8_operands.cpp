#include "passes/precision/float8_operands.h"

#include <c10/core/MemoryFormat.h>

#include <limits>

#include "ir/analysis/kernel_note.h"

namespace shadowgraph {
namespace {

constexpr double kLeast = 1e-12;  // scale of a matrix of zeros

double largest(c10::ScalarType dtype) { return dtype == c10::kFloat8_e5m2 ? 57344.0 : 448.0; }

Argument of_type(c10::ScalarType dtype) { return Argument::of_int(static_cast<int64_t>(dtype)); }

}  // namespace

bool Float8Operands::lies_by_rows(ValueId value) const {
  const auto strides = graph_.strides(value);
  const auto sizes = graph_.sizes(value);
  return strides[1] == 1 || (strides[0] != 1 && sizes[0] >= sizes[1]);
}

Float8Operands::Key Float8Operands::key_of(NodeId product, ValueId value, c10::ScalarType dtype) const {
  const auto sizes = graph_.sizes(value), strides = graph_.strides(value);
  const size_t row = lies_by_rows(value) ? 0 : 1;
  const Value& facts = graph_.value(value);
  uint32_t version = 0;
  for (const StorageVersion& read : effects_.reads(product)) {
    if (read.storage == facts.storage) version = read.version;
  }
  return {facts.storage, version, facts.offset, sizes[row], sizes[1 - row], strides[row], dtype};
}

bool Float8Operands::was_cast(NodeId product, ValueId value) const {
  return matrices_.contains(key_of(product, value, c10::kFloat8_e4m3fn));
}

Float8Operands::Operand Float8Operands::left(NodeId product, ValueId value, const Part& part, bool is_parameter,
                                             c10::ScalarType dtype) {
  return of(product, value, part, is_parameter, dtype, true);
}

Float8Operands::Operand Float8Operands::right(NodeId product, ValueId value, const Part& part, bool is_parameter,
                                              c10::ScalarType dtype) {
  return of(product, value, part, is_parameter, dtype, false);
}

Float8Operands::Operand Float8Operands::of(NodeId product, ValueId value, const Part& part, bool is_parameter,
                                           c10::ScalarType dtype, bool as_left) {
  InsertionPoint at(graph_, product);
  const bool by_rows = lies_by_rows(value);
  std::vector<Matrix>& known = matrices_[key_of(product, value, dtype)];
  Matrix* matrix = nullptr;
  for (Matrix& each : known) {
    if (each.part == part || (part.backward && !part.recomputed.valid() && !is_parameter)) matrix = &each;
  }
  if (matrix == nullptr) {
    const ValueId scale = known.empty() ? scale_of(at, value, dtype) : known.front().scale;
    matrix = &known.emplace_back(Matrix{.part = part, .scale = scale});
  }
  // The right operand's columns are rows of its transpose.
  const bool turned = by_rows != as_left;
  ValueId& wanted = turned ? matrix->turned : matrix->by_rows;
  const ValueId other = turned ? matrix->by_rows : matrix->turned;
  if (!wanted.valid()) {
    ++casts_;
    wanted = other.valid() ? turn(at, other)
                           : cast(at, by_rows == turned ? transposed(at, value) : value, matrix->scale, dtype);
  }
  return {as_left ? wanted : transposed(at, wanted), matrix->scale};
}

ValueId Float8Operands::result(NodeId node, c10::ScalarType dtype, const std::vector<int64_t>& sizes,
                               const std::vector<int64_t>& strides, ValueId like, StorageId storage) {
  const c10::Device device = graph_.value(like).device();
  if (!storage.valid()) {
    int64_t bytes = static_cast<int64_t>(c10::elementSize(dtype));
    for (const int64_t size : sizes) bytes *= size;
    storage = graph_.add_storage(
        {.bytes = bytes, .device_type = device.type(), .device_index = device.index(), .born = node});
    made_.insert(storage);
  }
  return graph_.add_tensor_result(
      node, {.dtype = dtype, .sizes = sizes, .strides = strides, .storage = storage, .device = device});
}

ValueId Float8Operands::scale_of(InsertionPoint& at, ValueId value, c10::ScalarType dtype) {
  const auto call = [&](const char* name, ValueId of, std::initializer_list<Argument> more) {
    std::vector<Argument> arguments{Argument::of_value(of)};
    arguments.insert(arguments.end(), more);
    return result(at.insert(graph_.intern_operator(name), arguments), c10::kFloat, {1, 1}, {1, 1}, value);
  };
  const ValueId most = call("aten::linalg_vector_norm", value,
                            {Argument::of_float(std::numeric_limits<double>::infinity()), Argument::none(),
                             Argument::of_bool(true), of_type(c10::kFloat)});
  return call("aten::clamp_min", call("aten::mul.Scalar", most, {Argument::of_float(1 / largest(dtype))}),
              {Argument::of_float(kLeast)});
}

ValueId Float8Operands::cast(InsertionPoint& at, ValueId value, ValueId scale, c10::ScalarType dtype) {
  const auto of = graph_.sizes(value);
  const std::vector<int64_t> sizes(of.begin(), of.end()), strides{sizes[1], 1};
  const NodeId room = at.insert(graph_.intern_operator("aten::empty_strided"),
                                {graph_.int_list(sizes), graph_.int_list(strides), of_type(dtype), Argument::none(),
                                 Argument::of_device(graph_.value(value).device()), Argument::none()});
  const ValueId out = result(room, dtype, sizes, strides, value);
  const NodeId node = at.insert(graph_.intern_operator("aten::div.out"),
                                {Argument::of_value(value), Argument::of_value(scale), Argument::of_value(out)});
  graph_.set_note(node, kKernelNote, kCompiledKernel);
  return result(node, dtype, sizes, strides, value, graph_.value(out).storage);
}

ValueId Float8Operands::turn(InsertionPoint& at, ValueId by_rows) {
  const ValueId view = transposed(at, by_rows);
  const auto of = graph_.sizes(view);
  const std::vector<int64_t> sizes(of.begin(), of.end());
  const NodeId node =
      at.insert(graph_.intern_operator("aten::clone"),
                {Argument::of_value(view), Argument::of_int(static_cast<int64_t>(c10::MemoryFormat::Contiguous))});
  graph_.set_note(node, kKernelNote, kCompiledKernel);
  return result(node, graph_.value(view).dtype, sizes, {sizes[1], 1}, view);
}

ValueId Float8Operands::transposed(InsertionPoint& at, ValueId value) {
  const auto sizes = graph_.sizes(value), strides = graph_.strides(value);
  const std::vector<int64_t> turned_sizes{sizes[1], sizes[0]}, turned_strides{strides[1], strides[0]};
  const Value facts = graph_.value(value);
  const NodeId node = at.insert(graph_.intern_operator("aten::t"), {Argument::of_value(value)});
  return graph_.add_tensor_result(node, {.dtype = facts.dtype,
                                         .sizes = turned_sizes,
                                         .strides = turned_strides,
                                         .storage = facts.storage,
                                         .offset = facts.offset,
                                         .device = facts.device(),
                                         .requires_grad = facts.requires_grad});
}

}  // namespace shadowgraph
