#include "core/fake/call_observer.h"

namespace shadowgraph {

c10::IValue CallArgument::value() const {
  switch (kind_) {
    case Kind::kBoxed:
      return boxed();
    case Kind::kNone:
      return {};
    case Kind::kTensor:
      return tensor();
    case Kind::kTensors:
      return tensors().vec();
    case Kind::kTensorRefs: {
      c10::List<at::Tensor> list;
      for (const at::Tensor& element : tensor_refs()) list.push_back(element);
      return list;
    }
    case Kind::kOptionalTensors:
      return optional_tensors();
    case Kind::kInt:
      return integer();
    case Kind::kInts:
      return ints();
    case Kind::kFloat:
      return real();
    case Kind::kBool:
      return boolean();
    case Kind::kBools: {
      c10::List<bool> list;
      for (const bool element : bools()) list.push_back(element);
      return list;
    }
    case Kind::kScalar:
      return scalar();
    case Kind::kString:
      return std::string(string());
    case Kind::kDevice:
      return device();
    case Kind::kGenerator:
      return generator();
  }
  return {};
}

}  // namespace shadowgraph
