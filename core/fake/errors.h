// What a fake tensor run throws when it cannot give what the real run would. Shape and type errors of the operators
// themselves are libtorch's own (c10::Error), word for word as eager raises them.
#pragma once

#include "ir/error.h"

namespace shadowgraph {

// The operator has neither a rule, nor a decomposition, nor a C++ Meta kernel.
class NoRuleError : public Error {
 public:
  using Error::Error;
};

// Tensors of one call live on devices that do not mix.
class DeviceMismatchError : public Error {
 public:
  using Error::Error;
};

// The result depends on data that a fake tensor does not have: item(), nonzero(), masked_select(), ...
class DataDependentError : public Error {
 public:
  using Error::Error;
};

// A real tensor where a fake one is needed, e.g. written to by a fake operation.
class RealTensorError : public Error {
 public:
  using Error::Error;
};

// libtorch in this process is not usable for fake tensors, e.g. another library owns the dispatch key.
class EnvironmentError : public Error {
 public:
  using Error::Error;
};

}  // namespace shadowgraph
