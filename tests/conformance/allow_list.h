// Accepted disagreements and their reasons, in tests/conformance/allow_list.txt: one per line, `#` starts a comment,
// fields are separated by " | ":
//
//     allowed | aten::foo* | result .*: eager .*, fake .* | why fake tensors differ here, and stay so
//     data    | aten::linalg_cholesky* | eager raises .*not positive-definite.* | eager looks at values
//
// `allowed` counts as a disagreement in the share of agreeing samples; `data` marks a data-dependent sample, which is
// excluded from the share. The operator is a glob; the difference is a regular expression matched from the start.
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
  // Throws ParseError with the line number.
  explicit AllowList(const std::string& path);

  // Returns the first matching row, or nullptr.
  AllowRow* find(const std::string& op, const std::string& difference);
  const std::vector<AllowRow>& rows() const { return rows_; }

 private:
  std::vector<AllowRow> rows_;
};

}  // namespace shadowgraph::conformance
