#include "core/dispatch/fast_paths.h"

#include <mutex>
#include <unordered_map>

namespace shadowgraph {
namespace {

struct FastPaths {
  std::mutex mutex;
  std::unordered_map<std::string, std::source_location> by_name;

  static FastPaths& global() {
    static auto* places = new FastPaths;
    return *places;
  }
};

}  // namespace

void note_fast_path(const std::string& operator_name, std::source_location place) {
  FastPaths& places = FastPaths::global();
  const std::lock_guard lock(places.mutex);
  places.by_name.insert_or_assign(operator_name, place);
}

std::source_location fast_path_place(const std::string& operator_name) {
  FastPaths& places = FastPaths::global();
  const std::lock_guard lock(places.mutex);
  const auto found = places.by_name.find(operator_name);
  return found == places.by_name.end() ? std::source_location() : found->second;
}

}  // namespace shadowgraph
