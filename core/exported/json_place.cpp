#include "core/exported/json_place.h"

#include <limits>

#include "shadowgraph/error.h"

namespace shadowgraph {

JsonPlace JsonPlace::inside(const nlohmann::json& value, const std::string& step) const {
  JsonPlace place = *this;
  place.value_ = &value;
  place.path_ += path_.empty() && step.starts_with('.') ? step.substr(1) : step;
  return place;
}

void JsonPlace::fail(const std::string& why) const {
  throw Error(std::string(file_) + " is damaged: " + std::string(record_) + ", " +
              (path_.empty() ? "the whole" : path_) + " " + why);
}

std::optional<JsonPlace> JsonPlace::find(const char* key) const {
  if (!value_->is_object()) fail("is not an object");
  const auto found = value_->find(key);
  if (found == value_->end() || found->is_null()) return std::nullopt;
  return inside(*found, std::string(".") + key);
}

JsonPlace JsonPlace::operator[](const char* key) const {
  std::optional<JsonPlace> found = find(key);
  if (!found) inside(*value_, std::string(".") + key).fail("is missing");
  return *std::move(found);
}

size_t JsonPlace::size() const {
  if (!value_->is_array()) fail("is not a list");
  return value_->size();
}

JsonPlace JsonPlace::operator[](size_t index) const {
  if (index >= size()) fail("has no element " + std::to_string(index));
  return inside((*value_)[index], "[" + std::to_string(index) + "]");
}

std::pair<std::string, JsonPlace> JsonPlace::alternative() const {
  if (!value_->is_object() || value_->size() != 1) fail("is not an object with one member");
  const auto member = value_->items().begin();
  return {member.key(), inside(member.value(), "." + member.key())};
}

const std::string& JsonPlace::text() const {
  if (!value_->is_string()) fail("is not a string");
  return value_->get_ref<const std::string&>();
}

int64_t JsonPlace::integer() const {
  if (!value_->is_number_integer()) fail("is not an integer");
  if (value_->is_number_unsigned() && value_->get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()}) {
    fail("is larger than 2^63 - 1");
  }
  return value_->get<int64_t>();
}

double JsonPlace::number() const {
  if (value_->is_number()) return value_->get<double>();
  if (value_->is_string()) {
    const std::string& name = value_->get_ref<const std::string&>();
    if (name == "Infinity") return std::numeric_limits<double>::infinity();
    if (name == "-Infinity") return -std::numeric_limits<double>::infinity();
    if (name == "NaN") return std::numeric_limits<double>::quiet_NaN();
  }
  fail("is not a number");
}

bool JsonPlace::boolean() const {
  if (!value_->is_boolean()) fail("is not a boolean");
  return value_->get<bool>();
}

}  // namespace shadowgraph
