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
  // Whose it is, as the tool's exit code says. kOurs: a bug of a pass, or a libtorch in which nothing works.
  enum class Fault { kInput = 1, kUsage = 2, kOurs = 3 };
  explicit Error(const std::string& message, NodeId node = NodeId(), Fault fault = Fault::kInput)
      : std::runtime_error(message), node_(node), fault_(fault) {}
  NodeId node() const { return node_; }  // of the graph in question; invalid if it is about none
  Fault fault() const { return fault_; }

 private:
  NodeId node_;
  Fault fault_;
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

// A file that cannot be read or written.
class FileError : public Error {
 public:
  using Error::Error;
};

// A graph that breaks an invariant of shadowgraph/graph/verify.h: what() lists every violation. Or an edit that would
// leave it so, e.g. erasing a node whose outputs are used: nothing was changed.
class GraphError : public Error {
 public:
  using Error::Error;
};

// A pass that failed, or a text that is no pipeline of passes. kUsage: the text; kOurs: the pass left a broken graph,
// or changed what it said it had not.
class PassError : public Error {
 public:
  PassError(const std::string& pass, const std::string& message, Fault fault = Fault::kInput)
      : Error(message, NodeId(), fault), pass_(pass) {}
  const std::string& pass() const { return pass_; }  // empty for a text

 private:
  std::string pass_;
};

// The operator has neither a rule, nor a decomposition, nor a C++ Meta kernel. Shape and type errors of the operators
// themselves are libtorch's own (c10::Error), word for word as eager raises them.
class NoRuleError : public Error {
 public:
  using Error::Error;
};

// The result depends on data that a fake tensor does not have: item(), nonzero(), masked_select(), ...
class DataDependentError : public Error {
 public:
  using Error::Error;
};

// What is asked for is not done for this tensor or graph, though another way may be open: a real tensor where a fake
// one is needed, a node without kernel, code, layout or words in another framework, captures that are not one program.
class UnsupportedError : public Error {
 public:
  using Error::Error;
};

// What deferred initialisation throws. The record is as it was, and the call may be tried again. node(), of the
// record's graph: the operator that failed (the cause is nested), or the sg::constant that was written since.
class DeferredError : public Error {
 public:
  using Error::Error;
};

// A graph that cannot run here, or a run that failed: names the node, its text, and what to do.
class ReplayError : public Error {
 public:
  using Error::Error;
};

// No segment can be had and nothing cached is left to give back; what() has the figures that PyTorch's error has.
class OutOfMemoryError : public Error {
 public:
  using Error::Error;
};

// Nothing keeps within the memory, or what is asked for contradicts itself. what() says what is in the way, or what
// would fit, smallest change first.
class NoPlanError : public Error {
 public:
  using Error::Error;
};

// ---------------------------------------------------------------------------------------------------------------------
// Serves bindings to other languages. An error that leaves an operator call passes through libtorch. That may know how
// to hand exceptions of its own to the caller's language, but not these. The translator is called with each and may
// throw one of libtorch's in its place. nullptr: nobody is called. Thread-safe.

using ErrorTranslator = void (*)(const Error& error);
void set_error_translator(ErrorTranslator translator);

}  // namespace shadowgraph
