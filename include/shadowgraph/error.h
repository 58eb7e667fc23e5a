// What shadowgraph throws at its users. Every message says what was wrong, where, and what to do about it.
#pragma once

#include <stdexcept>
#include <string>

#include "shadowgraph/export.h"
#include "shadowgraph/graph/ids.h"

namespace SHADOWGRAPH_API shadowgraph {

// ---------------------------------------------------------------------------------------------------------------------
// What shadowgraph throws at its users. Every message says what was wrong, where, and what to do about it.
//
// Our own bugs are TORCH_INTERNAL_ASSERT failures (c10::Error), never one of these.

// The root: a user's mistake, or input that cannot be handled.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Text or JSON that is not a graph. what() holds "name:line:column: message" and the offending line.
class ParseError : public Error {
 public:
  ParseError(const std::string& message, int line, int column) : Error(message), line_(line), column_(column) {}
  int line() const { return line_; }
  int column() const { return column_; }

 private:
  int line_;
  int column_;
};

// A graph that breaks an invariant of shadowgraph/graph/verify.h; what() lists every violation.
class VerifyError : public Error {
 public:
  using Error::Error;
};

// An edit that would leave the graph broken, e.g. erasing a node whose outputs are used.
class GraphEditError : public Error {
 public:
  using Error::Error;
};

// A file that cannot be read or written.
class FileError : public Error {
 public:
  using Error::Error;
};

// ---------------------------------------------------------------------------------------------------------------------
// What a fake tensor run throws when it cannot give what the real run would. Shape and type errors of the operators
// themselves are libtorch's own (c10::Error), word for word as eager raises them.

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

// A device that the pretended machine does not have: cuda:99 among 8, any where there are none.
class NoSuchDeviceError : public Error {
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

// ---------------------------------------------------------------------------------------------------------------------
// What deferred initialisation throws. In every case the record is as it was, and the call may be tried again.

class DeferredError : public Error {
 public:
  using Error::Error;
};

// A tensor that is not described by any deferred_init: real, or a fake of another mode.
class NotDeferredError : public DeferredError {
 public:
  using DeferredError::DeferredError;
};

// A real tensor from outside, which the recipe uses, has been written since. Names what was to be materialised, the
// tensor from outside and the versions.
class ExternalTensorChangedError : public DeferredError {
 public:
  ExternalTensorChangedError(const std::string& message, NodeId node) : DeferredError(message), node_(node) {}
  NodeId node() const { return node_; }  // the sg::constant of the record's graph

 private:
  NodeId node_;
};

// A call cannot be recorded: it writes to a tensor from outside, or has an argument that the record cannot hold. Such
// are objects, fake tensors of another record and inference tensors from outside.
class UnrecordableCallError : public DeferredError {
 public:
  using DeferredError::DeferredError;
};

// A described tensor is used although the storage it shares has been materialised: the recipe no longer says what is in
// there. Materialise it too (it costs nothing: the data is shared) and use it then.
class AlreadyMaterializedError : public DeferredError {
 public:
  using DeferredError::DeferredError;
};

// Somebody drew from a generator, past the record, while a program was being described.
class GeneratorMovedError : public DeferredError {
 public:
  using DeferredError::DeferredError;
};

// An operator failed while a tensor was computed: names both. The cause is nested.
class MaterializeError : public DeferredError {
 public:
  MaterializeError(const std::string& message, NodeId node) : DeferredError(message), node_(node) {}
  NodeId node() const { return node_; }  // in the record's graph; invalid if it is about none

 private:
  NodeId node_;
};

// ---------------------------------------------------------------------------------------------------------------------
// Serves bindings to other languages. An error that leaves an operator call passes through libtorch. That may know how
// to hand exceptions of its own to the caller's language, but not these. The translator is called with each and may
// throw one of libtorch's in its place. nullptr: nobody is called. Thread-safe.

using ErrorTranslator = void (*)(const Error& error);
void set_error_translator(ErrorTranslator translator);

}  // namespace shadowgraph
