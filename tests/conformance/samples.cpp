#include "tests/conformance/samples.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ScalarOps.h>
#include <ATen/core/List.h>
#include <ATen/core/jit_type.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include <cstring>
#include <map>

#include "shadowgraph/error.h"
#include "shadowgraph/graph/text.h"

namespace shadowgraph::conformance {
namespace {

using c10::IValue;
using c10::TypeKind;

// Indices in the tuple of a call.
enum Field : size_t { kOperator, kOrigin, kDtype, kLevel, kArguments, kTensors };
// Indices in the list of a tensor.
constexpr size_t kGeometry = 5;  // after alias, storage, dtype, flags, offset
constexpr int64_t kRequiresGrad = 1;
constexpr int64_t kConj = 2;
constexpr int64_t kNeg = 4;
constexpr int64_t kNotLeaf = 8;

const IValue& field(const IValue& call, size_t which) { return call.toTupleRef().elements().asArrayRef()[which]; }

at::Scalar number(const IValue& value) {
  if (!value.isTuple()) return value.toScalar();
  const auto& parts = value.toTupleRef().elements();
  return c10::complex<double>(parts[1].toDouble(), parts[2].toDouble());
}

// Decodes an argument to the IValue that the dispatcher expects for its type.
class Decoder {
 public:
  explicit Decoder(const std::vector<at::Tensor>& tensors) : tensors_(tensors) {}

  IValue argument(const IValue& value, const c10::Argument& formal) const {
    if (tag(value) == "d") {
      if (!formal.default_value()) throw Error("no default for argument " + formal.name());
      return *formal.default_value();
    }
    return decode(value, *formal.type(), formal.N());
  }

 private:
  static std::string tag(const IValue& value) {
    return value.isTuple() ? value.toTupleRef().elements()[0].toStringRef() : std::string();
  }

  IValue decode(const IValue& value, const c10::Type& type, std::optional<int32_t> length) const {
    switch (type.kind()) {
      case TypeKind::OptionalType:
        if (value.isNone()) return value;
        return decode(value, *type.castRaw<c10::OptionalType>()->getElementType(), length);
      case TypeKind::TensorType:
        return tensor(value);
      case TypeKind::ListType:
        return list(value, *type.castRaw<c10::ListType>()->getElementType(), length);
      case TypeKind::FloatType:
        return value.isInt() ? IValue(static_cast<double>(value.toInt())) : value;
      case TypeKind::IntType:
      case TypeKind::SymIntType:
        return value.isBool() ? IValue(static_cast<int64_t>(value.toBool())) : value;
      case TypeKind::DeviceObjType:
        return value.isString() ? IValue(c10::Device(value.toStringRef())) : value;
      case TypeKind::NumberType:
        return value.isNone() ? value : IValue(number(value));
      default:
        return value;
    }
  }

  IValue tensor(const IValue& value) const {
    if (value.isNone()) return at::Tensor();
    if (tag(value) == "t") return tensors_.at(static_cast<size_t>(value.toTupleRef().elements()[1].toInt()));
    return at::native::wrapped_scalar_tensor(number(tag(value) == "n" ? value.toTupleRef().elements()[1] : value));
  }

  template <class Element, class Make>
  static IValue filled(c10::ArrayRef<IValue> elements, const Make& make) {
    c10::List<Element> list;
    for (const IValue& element : elements) list.push_back(make(element));
    return list;
  }

  IValue list(const IValue& value, const c10::Type& element, std::optional<int32_t> length) const {
    // int[2] stride=1: one number is repeated.
    const std::vector<IValue> repeated(value.isList() ? 0 : static_cast<size_t>(length.value_or(1)), value);
    const c10::ArrayRef<IValue> elements = value.isList() ? value.toListRef() : c10::ArrayRef<IValue>(repeated);
    switch (element.kind()) {
      case TypeKind::TensorType:
        return filled<at::Tensor>(elements, [&](const IValue& e) { return tensor(e).toTensor(); });
      case TypeKind::OptionalType:
        return filled<std::optional<at::Tensor>>(elements, [&](const IValue& e) -> std::optional<at::Tensor> {
          if (e.isNone()) return std::nullopt;
          return tensor(e).toTensor();
        });
      case TypeKind::IntType:
      case TypeKind::SymIntType:
        return filled<int64_t>(elements, [](const IValue& e) { return e.isBool() ? int64_t{e.toBool()} : e.toInt(); });
      case TypeKind::FloatType:
        return filled<double>(
            elements, [](const IValue& e) { return e.isInt() ? static_cast<double>(e.toInt()) : e.toDouble(); });
      case TypeKind::BoolType:
        return filled<bool>(elements, [](const IValue& e) { return e.isInt() ? e.toInt() != 0 : e.toBool(); });
      case TypeKind::StringType:
        return filled<std::string>(elements, [](const IValue& e) { return e.toStringRef(); });
      case TypeKind::NumberType:
        return filled<at::Scalar>(elements, number);
      default:
        throw Error("a list of " + element.str());
    }
  }

  const std::vector<at::Tensor>& tensors_;
};

}  // namespace

bool Fault::apply(Arguments& arguments) const {
  if (kind == kNone) return true;
  if (tensor >= arguments.tensors.size()) return false;
  at::Tensor& changed = arguments.tensors[tensor];
  const bool gradient = changed.requires_grad();
  const at::Tensor before = changed.detach();
  const auto sized = [&](c10::DimVector sizes) { return at::zeros(sizes, before.options()); };
  c10::DimVector sizes(before.sizes());
  at::ScalarType dtype = before.scalar_type();
  switch (kind) {
    case kNone:
      break;
    case kFloating:
      dtype = at::kFloat;
      break;
    case kOtherFloating:
      dtype = dtype == at::kDouble ? at::kFloat : at::kDouble;
      break;
    case kInteger:
      dtype = at::kLong;
      break;
    case kLonger:
    case kWider:
      if (sizes.empty() || (kind == kWider && sizes.size() == 1)) return false;
      ++(kind == kLonger ? sizes.front() : sizes.back());
      changed = sized(sizes);
      break;
    case kFewerDimensions:
      if (sizes.empty()) return false;
      sizes.erase(sizes.begin());
      changed = sized(sizes);
      break;
    case kMoreDimensions:
      sizes.insert(sizes.begin(), 2);
      changed = sized(sizes);
      break;
  }
  if (kind <= kInteger) {
    if (dtype == before.scalar_type()) return false;
    changed = at::zeros({}, before.options().dtype(dtype)).expand(before.sizes()).clone();
  }
  if (gradient && (changed.is_floating_point() || changed.is_complex())) changed.set_requires_grad(true);
  return true;
}

Samples::Samples(const std::string& path) {
  const std::string text = read_file(path);
  const IValue root = torch::jit::pickle_load(std::vector<char>(text.begin(), text.end()));
  const auto fields = root.toGenericDict();
  torch_version_ = fields.at("torch").toStringRef();
  storages_ = fields.at("storages").toTensor();
  const at::Tensor extents = fields.at("extents").toTensor();
  const auto* numbers = extents.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < extents.size(0); ++i) extents_.emplace_back(numbers[2 * i], numbers[2 * i + 1]);
  calls_ = fields.at("calls").toListRef().vec();
  for (const auto& entry : fields.at("skipped").toGenericDict()) {
    skipped_.emplace_back(entry.key().toStringRef(), entry.value().toInt());
  }
}

Sample Samples::sample(size_t index) const {
  const IValue& call = calls_.at(index);
  return {field(call, kOperator).toStringRef(), field(call, kOrigin).toStringRef(), field(call, kDtype).toStringRef(),
          static_cast<Level>(field(call, kLevel).toInt())};
}

Arguments Samples::arguments(size_t index, Contents contents) const {
  Arguments arguments;
  std::map<int64_t, c10::Storage> storages;
  for (const IValue& encoded : field(calls_.at(index), kTensors).toListRef()) {
    const c10::ArrayRef<IValue> numbers = encoded.toListRef();
    const int64_t alias = numbers[0].toInt();
    const auto dtype = static_cast<at::ScalarType>(numbers[2].toInt());
    const int64_t flags = numbers[3].toInt();
    const size_t rank = (numbers.size() - kGeometry) / 2;
    c10::DimVector sizes;
    c10::DimVector strides;
    for (size_t d = 0; d < rank; ++d) {
      sizes.push_back(numbers[kGeometry + d].toInt());
      strides.push_back(numbers[kGeometry + rank + d].toInt());
    }
    if (!storages.contains(alias)) {
      const auto [offset, bytes] = extents_.at(static_cast<size_t>(numbers[1].toInt()));
      uint8_t* data = storages_.mutable_data_ptr<uint8_t>() + offset;
      // A call that raised may have left a tensor larger than its storage, so grow the storage.
      const size_t needed = at::detail::computeStorageNbytes(sizes, strides, c10::elementSize(dtype),
                                                             static_cast<size_t>(numbers[4].toInt()));
      at::Tensor copy;
      if (contents == Contents::kCopied || needed > static_cast<size_t>(bytes)) {
        copy = at::empty({bytes}, at::kByte);
        if (bytes != 0) std::memcpy(copy.mutable_data_ptr<uint8_t>(), data, static_cast<size_t>(bytes));
      } else {
        copy = at::from_blob(data, {bytes}, at::kByte);
      }
      storages.emplace(alias, copy.storage());
    }
    at::Tensor tensor = at::empty({0}, dtype).set_(storages.at(alias), numbers[4].toInt(), sizes, strides);
    tensor._set_conj((flags & kConj) != 0);
    tensor._set_neg((flags & kNeg) != 0);
    // set_ increments the version; detach() resets it.
    tensor = tensor.detach();
    tensor.unsafeGetTensorImpl()->set_version_counter(c10::VariableVersion(/*version=*/0));
    tensor.set_requires_grad((flags & kRequiresGrad) != 0);
    arguments.tensors.push_back(std::move(tensor));
    arguments.not_leaf.push_back((flags & kNotLeaf) != 0);
  }
  return arguments;
}

std::optional<c10::OperatorHandle> Samples::find(const std::string& op) {
  const size_t dot = op.find('.');
  return c10::Dispatcher::singleton().findSchema(
      {op.substr(0, dot), dot == std::string::npos ? "" : op.substr(dot + 1)});
}

std::optional<torch::jit::Stack> Samples::stack(size_t index, const std::vector<at::Tensor>& tensors) const {
  const IValue& call = calls_.at(index);
  const auto op = find(field(call, kOperator).toStringRef());
  if (!op) return std::nullopt;
  const auto encoded = field(call, kArguments).toListRef();
  const auto& formals = op->schema().arguments();
  if (encoded.size() != formals.size()) throw Error("another number of arguments than " + toString(op->schema()));
  const Decoder decoder(tensors);
  torch::jit::Stack stack;
  for (size_t i = 0; i < formals.size(); ++i) stack.push_back(decoder.argument(encoded[i], formals[i]));
  return stack;
}

}  // namespace shadowgraph::conformance
