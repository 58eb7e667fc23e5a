// Each field of Metadata once, with its name and its text both ways.
#include "shadowgraph/graph/metadata.h"

#include <algorithm>
#include <array>

#include "ir/text/words.h"
#include "shadowgraph/error.h"
#include "shadowgraph/text.h"

namespace shadowgraph {
namespace {

std::string word_of(const std::string& text) { return text; }
std::string word_of(ProgramMode mode) { return std::string(to_string(mode)); }
std::string word_of(TrainingStep step) { return std::string(to_string(step)); }
std::string word_of(c10::ScalarType dtype) { return std::string(dtype_word(dtype)); }
std::string word_of(int64_t number) { return std::to_string(number); }
std::string word_of(c10::Device device) { return device_text(device); }

template <class T, size_t count>
// Fields of a few words share this: the words are those that to_string gives, so reading and writing cannot drift
// apart.
bool read_word(std::string_view text, std::optional<T>& field, const std::array<T, count>& words) {
  const auto found = std::find_if(words.begin(), words.end(), [&](T word) { return to_string(word) == text; });
  if (found == words.end()) return false;
  field = *found;
  return true;
}

bool read(std::string_view text, std::optional<std::string>& field) {
  field = std::string(text);
  return true;
}
bool read(std::string_view text, std::optional<ProgramMode>& field) {
  return read_word(text, field, std::array{ProgramMode::kInfer, ProgramMode::kTrain});
}
bool read(std::string_view text, std::optional<TrainingStep>& field) {
  return read_word(text, field, std::array{TrainingStep::kFirst, TrainingStep::kSteady});
}
bool read(std::string_view text, std::optional<c10::ScalarType>& field) {
  return (field = parse_dtype(text)).has_value();
}
bool read(std::string_view text, std::optional<int64_t>& field) { return (field = parse_int(text)).has_value(); }
bool read(std::string_view text, std::optional<c10::Device>& field) { return (field = parse_device(text)).has_value(); }

// visit(name, field, what a text of it is), in the order of names.
template <class Of, class Visit>
void each_field(Of& metadata, Visit&& visit) {
  visit("batch", metadata.batch, "a number");
  visit("device", metadata.device, "a device such as cuda:0");
  visit("dtype", metadata.dtype, "a dtype such as f32");
  visit("mode", metadata.mode, "infer or train");
  visit("model", metadata.model, "a name");
  visit("optimizer", metadata.optimizer, "a name");
  visit("seq", metadata.seq, "a number");
  visit("step", metadata.step, "first or steady");
}

}  // namespace

std::string_view to_string(ProgramMode mode) { return mode == ProgramMode::kTrain ? "train" : "infer"; }
std::string_view to_string(TrainingStep step) { return step == TrainingStep::kSteady ? "steady" : "first"; }

std::vector<std::pair<std::string, std::string>> Metadata::lines() const {
  std::map<std::string, std::string> sorted = other;
  each_field(*this, [&](const char* name, const auto& field, const char*) {
    if (field) sorted[name] = word_of(*field);
  });
  return {sorted.begin(), sorted.end()};
}

// Whatever is no field is kept as it is, so that a program's own metadata comes back from a file.
void Metadata::set(const std::string& key, std::string text) {
  bool is_field = false;
  each_field(*this, [&](const char* name, auto& field, const char* expected) {
    if (key != name) return;
    is_field = true;
    std::remove_reference_t<decltype(field)> value;
    // Only what is printed as it was read: nothing is lost on the way.
    if (!read(text, value) || word_of(*value) != text) {
      throw Error("metadata \"" + key + "\": \"" + text + "\" is not " + expected);
    }
    field = std::move(value);
  });
  if (!is_field) other[key] = std::move(text);
}

bool Metadata::has(const std::string& key) const {
  bool found = other.contains(key);
  each_field(*this, [&](const char* name, const auto& field, const char*) { found = found || (key == name && field); });
  return found;
}

}  // namespace shadowgraph
