// A view of one argument or result of an operator call: an IValue of a boxed call, or the C++ argument of an unboxed
// one. Does not copy or count references, so the viewed value must outlive it.
#pragma once

#include <ATen/core/IListRef.h>
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/SmallVector.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace shadowgraph {

class CallArgument {
 public:
  enum class Kind : uint8_t {
    kBoxed,  // anything, in boxed()
    kNone,
    kTensor,  // possibly undefined
    kTensors,
    kTensorRefs,
    kOptionalTensors,
    kInt,  // int, SymInt, ScalarType, Layout, MemoryFormat
    kInts,
    kFloat,
    kBool,
    kBools,
    kScalar,
    kString,
    kDevice,
    kGenerator,
  };

  explicit CallArgument(const c10::IValue& value) : kind_(Kind::kBoxed), pointer_(&value) {}

  // Views a C++ argument or result. Does not compile for types that no unboxed kernel uses.
  template <class T>
  static CallArgument of(const T& value);

  // Returns an owning copy.
  c10::IValue value() const;

  Kind kind() const { return kind_; }
  const c10::IValue& boxed() const { return *static_cast<const c10::IValue*>(pointer_); }
  const at::Tensor& tensor() const { return *static_cast<const at::Tensor*>(pointer_); }
  at::TensorList tensors() const { return {static_cast<const at::Tensor*>(pointer_), size_}; }
  const at::ITensorListRef& tensor_refs() const { return *static_cast<const at::ITensorListRef*>(pointer_); }
  const c10::List<std::optional<at::Tensor>>& optional_tensors() const {
    return *static_cast<const c10::List<std::optional<at::Tensor>>*>(pointer_);
  }
  int64_t integer() const { return integer_; }
  c10::IntArrayRef ints() const { return {static_cast<const int64_t*>(pointer_), size_}; }
  double real() const { return real_; }
  bool boolean() const { return integer_ != 0; }
  std::span<const bool> bools() const { return {static_cast<const bool*>(pointer_), size_}; }
  const at::Scalar& scalar() const { return *static_cast<const at::Scalar*>(pointer_); }
  std::string_view string() const { return {static_cast<const char*>(pointer_), size_}; }
  c10::Device device() const {
    return {static_cast<c10::DeviceType>(integer_ >> 8), static_cast<c10::DeviceIndex>(integer_ & 0xFF)};
  }
  const at::Generator& generator() const { return *static_cast<const at::Generator*>(pointer_); }

 private:
  explicit CallArgument(Kind kind) : kind_(kind) {}
  CallArgument(Kind kind, const void* pointer, size_t size = 0) : kind_(kind), pointer_(pointer), size_(size) {}
  static CallArgument of_integer(Kind kind, int64_t value) {
    CallArgument argument(kind);
    argument.integer_ = value;
    return argument;
  }

  Kind kind_;
  union {
    const void* pointer_ = nullptr;
    int64_t integer_;
    double real_;
  };
  size_t size_ = 0;
};

template <class T>
struct IsOptionalArgument : std::false_type {};
template <class T>
struct IsOptionalArgument<std::optional<T>> : std::true_type {};
template <class T>
struct IsOptionalArgument<c10::OptionalArrayRef<T>> : std::true_type {};
template <class T>
struct IsBoolArray : std::false_type {};
template <size_t size>
struct IsBoolArray<std::array<bool, size>> : std::true_type {};
template <class>
inline constexpr bool kNoSuchArgument = false;

template <class T>
CallArgument CallArgument::of(const T& value) {
  if constexpr (std::is_same_v<T, at::Tensor>) {
    return {Kind::kTensor, &value};
  } else if constexpr (IsOptionalArgument<T>::value) {
    return value.has_value() ? of(*value) : CallArgument(Kind::kNone);
  } else if constexpr (std::is_same_v<T, bool>) {
    return of_integer(Kind::kBool, value);
  } else if constexpr (std::is_same_v<T, int64_t>) {
    return of_integer(Kind::kInt, value);
  } else if constexpr (std::is_same_v<T, c10::SymInt>) {
    return of_integer(Kind::kInt, value.expect_int());
  } else if constexpr (std::is_same_v<T, c10::ScalarType> || std::is_same_v<T, c10::Layout> ||
                       std::is_same_v<T, c10::MemoryFormat>) {
    return of_integer(Kind::kInt, static_cast<int64_t>(value));
  } else if constexpr (std::is_same_v<T, double>) {
    CallArgument argument(Kind::kFloat);
    argument.real_ = value;
    return argument;
  } else if constexpr (std::is_same_v<T, at::Scalar>) {
    return {Kind::kScalar, &value};
  } else if constexpr (std::is_same_v<T, c10::IntArrayRef>) {
    return {Kind::kInts, value.data(), value.size()};
  } else if constexpr (std::is_same_v<T, c10::SymIntArrayRef>) {
    return of(C10_AS_INTARRAYREF_SLOW(value));
  } else if constexpr (IsBoolArray<T>::value) {
    return {Kind::kBools, value.data(), value.size()};
  } else if constexpr (std::is_same_v<T, std::string_view>) {
    return {Kind::kString, value.data(), value.size()};
  } else if constexpr (std::is_same_v<T, c10::Device>) {
    return of_integer(Kind::kDevice, static_cast<int64_t>(value.type()) << 8 | static_cast<uint8_t>(value.index()));
  } else if constexpr (std::is_same_v<T, at::Generator>) {
    return {Kind::kGenerator, &value};
  } else if constexpr (std::is_same_v<T, at::TensorList> || std::is_same_v<T, std::vector<at::Tensor>>) {
    return {Kind::kTensors, value.data(), value.size()};
  } else if constexpr (std::is_same_v<T, at::ITensorListRef>) {
    return {Kind::kTensorRefs, &value};
  } else if constexpr (std::is_same_v<T, c10::List<std::optional<at::Tensor>>>) {
    return {Kind::kOptionalTensors, &value};
  } else {
    static_assert(kNoSuchArgument<T>, "add this type to CallArgument, and its kind to the recorder");
  }
}

// Returns views of the boxed arguments or results from `begin` on in the stack.
inline c10::SmallVector<CallArgument, 12> viewed(const std::vector<c10::IValue>& stack, size_t begin) {
  c10::SmallVector<CallArgument, 12> arguments;
  for (size_t i = begin; i < stack.size(); ++i) arguments.emplace_back(stack[i]);
  return arguments;
}

// Observes the calls that the fake tensor fallback executes. Implemented by the recorder in core/capture/.

struct OperatorInfo;
class FakeTensorImpl;
enum class SizeRead { kRank, kSize, kSizes };

// Arguments and results are in schema order. Called on the thread that runs the program, never re-entrantly: calls made
// by a kernel belong to the outer call and are not reported.
class CallObserver {
 public:
  virtual ~CallObserver() = default;

  // Called before a call runs; real operands are already replaced by fakes. Throwing rejects the call.
  virtual void begin_call(const OperatorInfo& info, std::span<const CallArgument> arguments) = 0;
  // Called after it has run.
  virtual void end_call(const OperatorInfo& info, std::span<const CallArgument> results) = 0;
  // Called if it throws.
  virtual void abandon_call(const OperatorInfo& info) noexcept = 0;

  // Called around a composite operator, even if it throws; calls in between are its decomposition.
  virtual void enter_composite(const OperatorInfo& info, std::span<const CallArgument> arguments) {}
  virtual void leave_composite() noexcept {}

  // With ModeState::reads_data: executes a call whose results depend on the contents of fakes, which is then not
  // reported otherwise. Returns true if it did; the stack then holds the results instead of the arguments.
  virtual bool compute(const OperatorInfo& info, torch::jit::Stack& stack) { return false; }

  // Returns the program's source location, "train.py:12"; empty if unknown.
  virtual std::string location() { return ""; }

  // Called when an UnfakeGuard begins and ends on the observed thread.
  virtual void mode_suspended() {}
  virtual void mode_resumed() noexcept {}

  // Called when the host wrote `value` through a data pointer into a fake tensor with known contents: at::tensor({...})
  // or an accessor. `value` is a real tensor, owned by the observer. Called before the first call that can see the
  // write.
  virtual void host_wrote(const at::Tensor& fake, const at::Tensor& value) {}

  // Called before the program resizes the storage of a fake tensor: untyped_storage().resize_(bytes).
  virtual void storage_resized(c10::StorageImpl& storage, size_t bytes) {}

  // Called when the program reads a size outside of kernels.
  virtual void size_read(const FakeTensorImpl& tensor, SizeRead what, int64_t dimension) noexcept {}
};

}  // namespace shadowgraph
