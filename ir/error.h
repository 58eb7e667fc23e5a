// What shadowgraph throws at its users. Every message says what was wrong, where, and what to do about it.
//
// Our own bugs are TORCH_INTERNAL_ASSERT failures (c10::Error), never one of these.
#pragma once

#include <stdexcept>
#include <string>

namespace shadowgraph {

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

// A graph that breaks an invariant of ir/verifier.h; what() lists every violation.
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

}  // namespace shadowgraph
