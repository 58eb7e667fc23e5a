// What deferred initialisation throws. In every case the record is as it was, and the call may be tried again.
#pragma once

#include "ir/error.h"
#include "ir/ids.h"

namespace shadowgraph {

class DeferredError : public Error {
 public:
  using Error::Error;
};

// A tensor that is not described by any deferred_init: real, or a fake of another mode.
class NotDeferredError : public DeferredError {
 public:
  using DeferredError::DeferredError;
};

// A real tensor from outside, which the recipe uses, has been written since: names what was to be materialised, the
// tensor from outside and the versions.
class ExternalTensorChangedError : public DeferredError {
 public:
  ExternalTensorChangedError(const std::string& message, NodeId node) : DeferredError(message), node_(node) {}
  NodeId node() const { return node_; }  // the sg::constant of the record's graph

 private:
  NodeId node_;
};

// A call that cannot be recorded: an argument that is an object, a fake tensor of another record, an inference tensor from
// outside, a write to a tensor from outside.
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

}  // namespace shadowgraph
