// Opens the modules that nodes were called in as regions of the capture under way. Internal to core/exported.
#pragma once

#include <vector>

#include "core/capture/recorder.h"
#include "core/exported/program.h"

namespace shadowgraph {

class ModuleRegions {
 public:
  // `around` are modules that are entered already.
  explicit ModuleRegions(const std::vector<SavedModuleCall>* around = nullptr)
      : recorder_(current_recorder()), around_(around != nullptr ? around->size() : 0), open_(copy_of(around)) {}
  ~ModuleRegions() { leave_to(around_); }
  ModuleRegions(const ModuleRegions&) = delete;
  ModuleRegions& operator=(const ModuleRegions&) = delete;

  // Leaves the modules that the next node is not in, and enters those that it is in.
  void move_to(const std::vector<SavedModuleCall>& stack);
  const std::vector<SavedModuleCall>& open() const { return open_; }

 private:
  static std::vector<SavedModuleCall> copy_of(const std::vector<SavedModuleCall>* stack) {
    return stack != nullptr ? *stack : std::vector<SavedModuleCall>();
  }
  void leave_to(size_t depth);

  Recorder* recorder_;
  size_t around_;  // how many of the open ones are somebody else's to leave
  std::vector<SavedModuleCall> open_;
};

}  // namespace shadowgraph
