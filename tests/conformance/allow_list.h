// Disagreements that stand, each with its reason: tests/conformance/allow_list.txt. One a line, `#` comments, fields
// between " | ":
//
//     allowed | aten::foo* | result .*: eager .*, fake .* | why fake tensors differ here, and stay so
//     data    | aten::linalg_cholesky* | eager raises .*not positive-definite.* | eager looks at values
//
// `allowed` counts against the share of samples that agree, `data` says that the sample depends on data and is left out
// of it. The operator is a glob, the difference a regular expression that must match from its beginning.
#pragma once

#include <regex>
#include <string>
#include <vector>

namespace shadowgraph::conformance {

struct AllowRow {
  bool data = false;
  std::string op;
  std::string pattern;
  std::string reason;
  std::regex expression;
  size_t used = 0;
};

class AllowList {
 public:
  AllowList() = default;
  // Throws ParseError with the line.
  explicit AllowList(const std::string& path);

  // The first row that matches; nullptr if there is none.
  AllowRow* find(const std::string& op, const std::string& difference);
  const std::vector<AllowRow>& rows() const { return rows_; }

 private:
  std::vector<AllowRow> rows_;
};

}  // namespace shadowgraph::conformance
