// The figures of a profile as its JSON has them: of a file (profile.json), or of to_json(Profile).
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "support/json.h"

namespace shadowgraph::cli {

// Figures by name, as far as a profile has them. What is there and of another type is refused with ParseError.
class Figures {
 public:
  using Table = std::map<std::string, double>;

  // `name` is of the file or graph, for messages. Refers to both.
  Figures(const nlohmann::json& profile, std::string_view name) : profile_(profile, name) {}

  // "peak/bytes": by the names of members.
  std::optional<double> at(std::string_view path) const;
  // Sums of the modules' tree by path.
  std::map<std::string, Table> modules() const;
  Table operators() const;
  // Bytes alive at the peak by who made them.
  Table at_peak() const;

 private:
  JsonPlace profile_;
};

}  // namespace shadowgraph::cli
