#include "core/exported/weights.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

#include <cstring>
#include <map>

#include "core/fake/known_contents.h"
#include "shadowgraph/error.h"

namespace shadowgraph {
namespace {

// Position ids and masks of small models stay below this; anything larger is rather a table of numbers that is looked
// up in.
constexpr size_t kMostBytesRead = 64 * 1024;

struct FixedGeometry {
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  int64_t offset = 0;
  auto operator<=>(const FixedGeometry&) const = default;
};

// Has all weights on one record of the archive.
struct SharedRecord {
  at::Tensor base;   // of one dimension, over all of it; made when somebody needs it
  at::Tensor whole;  // the first weight, if that is all of it
  std::map<FixedGeometry, at::Tensor> tensors;
};

class WeightMaker {
 public:
  WeightMaker(const ExportArchive& archive, std::optional<c10::ScalarType> dtype) : archive_(archive), dtype_(dtype) {}

  at::Tensor make(const SavedInput& spec, const SavedPayload& payload) {
    const FixedGeometry geometry = fixed(spec, payload.geometry);
    SharedRecord& record = records_[payload.record];
    at::Tensor& tensor = record.tensors[geometry];
    if (tensor.defined()) return tensor;
    const c10::ScalarType made_as = dtype_ && at::isFloatingType(geometry.dtype) ? *dtype_ : geometry.dtype;
    const auto options = at::TensorOptions().dtype(made_as);
    const at::NoGradGuard no_grad;
    const int64_t elements = elements_of(spec, payload, geometry);
    const bool is_first = record.tensors.size() == 1;
    if (is_first && geometry.offset == 0 && elements == extent(spec, geometry)) {
      tensor = record.whole = at::empty_strided(geometry.sizes, geometry.strides, options);
    } else {
      if (!record.base.defined()) {
        record.base = record.whole.defined() ? record.whole.as_strided({elements}, {1}, 0).detach()
                                             : at::empty({elements}, options);
      }
      check_dtype(spec, record.base, made_as);
      tensor = record.base.as_strided(geometry.sizes, geometry.strides, geometry.offset).detach();
    }
    if (spec.kind != SavedInput::Kind::kParameter && made_as == geometry.dtype)
      read_contents(payload, geometry, tensor);
    if (spec.kind == SavedInput::Kind::kParameter && (at::isFloatingType(made_as) || at::isComplexType(made_as))) {
      tensor.set_requires_grad(payload.geometry.requires_grad);
    }
    return tensor;
  }

 private:
  [[noreturn]] void refuse(const SavedInput& spec, const std::string& why) const {
    throw Error(archive_.path() + " is damaged: the weight '" + spec.target + "' " + why);
  }

  FixedGeometry fixed(const SavedInput& spec, const SavedGeometry& geometry) const {
    FixedGeometry result{.dtype = geometry.dtype};
    const auto number = [&](const SymbolicSize& size) {
      if (size.expression) refuse(spec, "has a symbolic geometry");
      return size.value;
    };
    for (const SymbolicSize& size : geometry.sizes) result.sizes.push_back(number(size));
    for (const SymbolicSize& stride : geometry.strides) result.strides.push_back(number(stride));
    result.offset = number(geometry.offset);
    if (result.offset < 0) refuse(spec, "has a negative offset");
    return result;
  }

  // Returns how many elements of the storage the tensor reaches over, from the storage's begin.
  int64_t extent(const SavedInput& spec, const FixedGeometry& geometry) const {
    int64_t last = geometry.offset;
    for (size_t i = 0; i < geometry.sizes.size(); ++i) {
      if (geometry.sizes[i] == 0) return 0;
      int64_t reach = 0;
      if (__builtin_mul_overflow(geometry.sizes[i] - 1, geometry.strides[i], &reach) ||
          __builtin_add_overflow(last, reach, &last) || last >= (int64_t{1} << 58)) {
        refuse(spec, "has too many elements");
      }
    }
    return last + 1;
  }

  int64_t elements_of(const SavedInput& spec, const SavedPayload& payload, const FixedGeometry& geometry) const {
    const int64_t extent = this->extent(spec, geometry);
    const auto bytes = static_cast<int64_t>(archive_.size_of(payload.record));
    // A model exported under a fake mode has no bytes.
    if (bytes == 0) return extent;
    const int64_t elements = bytes / static_cast<int64_t>(c10::elementSize(geometry.dtype));
    if (elements < extent) refuse(spec, "is larger than its record " + payload.record);
    return elements;
  }

  void check_dtype(const SavedInput& spec, const at::Tensor& base, c10::ScalarType dtype) const {
    if (base.scalar_type() != dtype) refuse(spec, "shares a record with a weight of another dtype");
  }

  void read_contents(const SavedPayload& payload, const FixedGeometry& geometry, const at::Tensor& fake) const {
    const size_t bytes = archive_.size_of(payload.record);
    const bool may_decide = c10::isIntegralType(geometry.dtype, /*includeBool=*/true) || fake.numel() == 1;
    if (!may_decide || bytes == 0 || bytes > kMostBytesRead) return;
    const std::string contents = archive_.bytes_of(payload.record);
    const RealCalls real_calls;
    const auto elements = static_cast<int64_t>(bytes / c10::elementSize(geometry.dtype));
    at::Tensor real = at::empty({elements}, at::TensorOptions().dtype(geometry.dtype).device(at::kCPU));
    std::memcpy(real.mutable_data_ptr(), contents.data(), real.nbytes());
    give_contents(fake, real.as_strided(geometry.sizes, geometry.strides, geometry.offset));
  }

  const ExportArchive& archive_;
  std::optional<c10::ScalarType> dtype_;
  std::map<std::string, SharedRecord> records_;
};

}  // namespace

MadeWeights make_weights(const ExportArchive& archive, const SavedProgram& program,
                         std::optional<c10::ScalarType> dtype) {
  WeightMaker maker(archive, dtype);
  const auto make = [&](const SavedInput& spec) {
    if (spec.kind == SavedInput::Kind::kUser || spec.kind == SavedInput::Kind::kConstant) return at::Tensor();
    const auto payload = program.payloads.find(spec.target);
    if (payload == program.payloads.end()) {
      throw Error(archive.path() + " is damaged: there is no weight '" + spec.target + "'");
    }
    try {
      return maker.make(spec, payload->second);
    } catch (const c10::Error& error) {
      throw Error(archive.path() + ": the weight '" + spec.target + "': " + error.what_without_backtrace());
    }
  };
  MadeWeights weights;
  for (const SavedInput& spec : program.inputs) weights.inputs.push_back(make(spec));
  for (const SavedInput& spec : program.idle) weights.idle.push_back(make(spec));
  return weights;
}

}  // namespace shadowgraph
