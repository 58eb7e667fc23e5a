// Exception types of shadowgraph.
#pragma once

#include <stdexcept>
#include <string>

#include "shadowgraph/export.h"
#include "shadowgraph/graph/ids.h"

namespace SHADOWGRAPH_API shadowgraph {

// Every message states the cause, the location and a remedy. Bugs in shadowgraph itself raise c10::Error instead.

// Base class: invalid use or unsupported input.
class Error : public std::runtime_error {
 public:
  // Cause of the error, used as exit code by the command line tool. kOurs: a bug in a pass, or an unusable libtorch.
  enum class Fault { kInput = 1, kUsage = 2, kOurs = 3 };
  explicit Error(const std::string& message, NodeId node = NodeId(), Fault fault = Fault::kInput)
      : std::runtime_error(message), node_(node), fault_(fault) {}
  NodeId node() const { return node_; }  // node of the graph being processed; invalid if not specific to a node
  Fault fault() const { return fault_; }

 private:
  NodeId node_;
  Fault fault_;
};

// Thrown for text or JSON that is not a valid graph. what() is "name:line:column: message" and the offending line.
class ParseError : public Error {
 public:
  ParseError(const std::string& message, int line, int column) : Error(message), line_(line), column_(column) {}
  int line() const { return line_; }
  int column() const { return column_; }

 private:
  int line_;
  int column_;
};

class FileError : public Error {
 public:
  using Error::Error;
};

// Thrown for a graph that violates an invariant of shadowgraph/graph/verify.h (what() lists every violation), and for
// an edit that would violate one, such as erasing a node whose outputs are used. The graph is left unchanged.
class GraphError : public Error {
 public:
  using Error::Error;
};

// Thrown when a pass fails or a pipeline string is invalid. kUsage: invalid pipeline string; kOurs: the pass produced
// an invalid graph, or modified state that it declared as preserved.
class PassError : public Error {
 public:
  PassError(const std::string& pass, const std::string& message, Fault fault = Fault::kInput)
      : Error(message, NodeId(), fault), pass_(pass) {}
  const std::string& pass() const { return pass_; }  // empty if a pipeline string is invalid

 private:
  std::string pass_;
};

// Thrown for an operator that has neither a shape rule nor a decomposition nor a C++ Meta kernel. Shape and type errors
// of operators are raised by libtorch as in eager mode (c10::Error, with the same message).
class NoRuleError : public Error {
 public:
  using Error::Error;
};

// Thrown when a result depends on the data of a fake tensor: item(), nonzero(), masked_select(), ...
class DataDependentError : public Error {
 public:
  using Error::Error;
};

// Thrown when an operation does not support the given tensor or graph: a real tensor where a fake one is required, a
// node without a kernel, generated code or layout, a plan that the target framework cannot express.
class UnsupportedError : public Error {
 public:
  using Error::Error;
};

// Thrown by deferred initialization. The recording is left unchanged and the call may be retried. node() refers to the
// recorded graph: the operator that failed (the cause is nested), or an sg::constant that was modified after recording.
class DeferredError : public Error {
 public:
  using Error::Error;
};

// Thrown when a graph cannot be executed on this machine or its execution fails. what() names the node and a remedy.
class ReplayError : public Error {
 public:
  using Error::Error;
};

// Thrown when no segment can be allocated and no cached one can be released. what() has the numbers of PyTorch's error.
class OutOfMemoryError : public Error {
 public:
  using Error::Error;
};

// Thrown when no plan fits in memory, or when the request is contradictory. what() names the limiting factor, or the
// changes that would make a plan fit, smallest first.
class InfeasibleError : public Error {
 public:
  using Error::Error;
};

// For language bindings. Exceptions that leave an operator call pass through libtorch, which can translate its own
// exceptions to the calling language, but not these. The translator is called with each one and may throw an exception
// type of libtorch instead. nullptr disables translation. Thread-safe.

using ErrorTranslator = void (*)(const Error& error);
void set_error_translator(ErrorTranslator translator);

}  // namespace shadowgraph
