// Reads metrics from the JSON of a profile: profile.json or to_json(Profile).
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "support/json.h"

namespace shadowgraph::cli {

// Metrics by name, where present. Throws ParseError for values of another type.
class Figures {
 public:
  using Table = std::map<std::string, double>;

  // `name` of the file or graph is used in messages. Keeps references to both arguments.
  Figures(const nlohmann::json& profile, std::string_view name) : profile_(profile, name) {}

  // Value at a path of member names, such as "peak/bytes".
  std::optional<double> at(std::string_view path) const;
  // Metrics of the module tree by path.
  std::map<std::string, Table> modules() const;
  Table operators() const;
  // Bytes alive at the peak by origin.
  Table at_peak() const;

 private:
  JsonPlace profile_;
};

}  // namespace shadowgraph::cli
