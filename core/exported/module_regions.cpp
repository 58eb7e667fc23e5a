#include "core/exported/module_regions.h"

namespace shadowgraph {

void ModuleRegions::move_to(const std::vector<SavedModuleCall>& stack) {
  size_t common = 0;
  while (common < stack.size() && common < open_.size() && stack[common].key == open_[common].key) ++common;
  leave_to(std::max(common, around_));
  for (size_t i = common; i < stack.size(); ++i) {
    if (i < around_) continue;  // another module than what is around it: that one cannot be left here
    if (recorder_ != nullptr) recorder_->enter_region(RegionKind::kModule, stack[i].path, stack[i].class_name);
    open_.push_back(stack[i]);
  }
}

void ModuleRegions::leave_to(size_t depth) {
  while (open_.size() > depth) {
    open_.pop_back();
    if (recorder_ != nullptr) recorder_->leave_region();
  }
}

}  // namespace shadowgraph
