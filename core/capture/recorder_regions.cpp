// Keeps the recorder's regions: module scopes, composite calls, and modules inferred from who owns the parameters.
//
// Regions are entered eagerly but become part of the graph only when a node is recorded inside. So composites that
// compute nothing leave no trace, such as reshape of a contiguous tensor to its own shape.
#include "core/capture/recorder.h"
#include "core/dispatch/operator_info.h"
#include "core/fake/converter.h"
#include "core/fake/kernel_depth.h"
#include "ir/records.h"
#include "shadowgraph/analysis/recompute_regions.h"
#include "shadowgraph/error.h"

namespace shadowgraph {
namespace {

bool is_inside(std::string_view path, std::string_view module) {
  return module.empty() || (path.size() > module.size() && path.starts_with(module) && path[module.size()] == '.');
}

// "layer1.0.conv1", "layer1.0.bn2" -> "layer1.0"
std::string_view common_module(std::string_view a, std::string_view b) {
  size_t end = 0;
  for (size_t i = 0;; ++i) {
    const bool a_ends = i == a.size() || a[i] == '.';
    const bool b_ends = i == b.size() || b[i] == '.';
    if (a_ends && b_ends) end = i;
    if (i == a.size() || i == b.size() || a[i] != b[i]) break;
  }
  return a.substr(0, end);
}

}  // namespace

void Recorder::enter_region(RegionKind kind, const std::string& name, const std::string& class_name) {
  OpenRegion open;
  open.region.kind = kind;
  open.region.name = graph_.intern(name);
  open.region.class_name = graph_.intern(class_name);
  regions_.push_back(open);
  if (kind == RegionKind::kModule && !std::exchange(modules_named_, true)) entered_ = last_;
}

void Recorder::enter_module(const void* module, const std::string& class_name) {
  const auto path = module_paths_.find(module);
  enter_region(RegionKind::kModule, path == module_paths_.end() ? class_name : path->second, class_name);
}

void Recorder::leave_region() noexcept { regions_.pop_back(); }

uint32_t Recorder::enter_checkpoint(const std::string& name) {
  enter_region(RegionKind::kCheckpoint, name, "");
  const auto checkpoint = static_cast<uint32_t>(checkpoints_.size());
  checkpoints_.emplace_back();
  open_checkpoints_.push_back(checkpoint);
  return checkpoint;
}

void Recorder::leave_checkpoint() noexcept {
  open_checkpoints_.pop_back();
  leave_region();
}

void Recorder::enter_recomputation(uint32_t checkpoint, const std::string& name) {
  enter_region(RegionKind::kCheckpoint, name, std::string(kRecomputeClass));
  recomputations_.push_back({checkpoint});
}

void Recorder::leave_recomputation() noexcept {
  recomputations_.pop_back();
  leave_region();
}

bool Recorder::is_recomputed(NodeId node) const {
  for (RegionId region = graph_.node(node).region; region.valid(); region = graph_.region(region).parent) {
    if (is_recompute_region(graph_, region)) return true;
  }
  return false;
}

void Recorder::enter_composite(const OperatorInfo& info, std::span<const CallArgument> arguments) {
  OpenRegion open;
  open.region.kind = RegionKind::kComposite;
  open.region.target = target_of_operator(info);
  open.arguments.offset = static_cast<uint32_t>(composite_arguments_.size());
  {
    const KernelDepth depth;
    for (const CallArgument& argument : arguments) {
      try {
        composite_arguments_.push_back(argument_of(argument));
      } catch (const Error&) {  // a tensor without memory: the operator inside that uses it says so
        composite_arguments_.push_back(Argument::none());
      }
    }
  }
  open.arguments.size = static_cast<uint32_t>(composite_arguments_.size()) - open.arguments.offset;
  regions_.push_back(open);
}

void Recorder::leave_composite() noexcept {
  composite_arguments_.resize(regions_.back().arguments.offset);
  regions_.pop_back();
}

RegionId Recorder::current_region(std::span<const Argument> arguments) {
  const size_t depth = regions_.size() - 1;
  if (regions_[depth].region.kind == RegionKind::kComposite) return materialise(depth);
  return inferred_region(depth, arguments);
}

RegionId Recorder::materialise(size_t depth) {
  OpenRegion& open = regions_[depth];
  if (open.id.valid()) return open.id;
  const std::span<const Argument> arguments(composite_arguments_.data() + open.arguments.offset, open.arguments.size);
  const bool outermost_composite =
      open.region.kind == RegionKind::kComposite && regions_[depth - 1].region.kind != RegionKind::kComposite;
  open.region.parent = outermost_composite ? inferred_region(depth - 1, arguments) : materialise(depth - 1);
  if (open.region.kind == RegionKind::kComposite) {
    open.region.name = graph_.intern(graph_.target(open.region.target).name());
    open.region.class_name = graph_.intern("");
  } else {
    open.region.call = calls_[(uint64_t{open.region.parent.index} << 32) | open.region.name.index]++;
  }
  open.id = graph_.add_region(open.region);
  graph_.set_region_arguments(open.id, arguments);
  return open.id;
}

StringId Recorder::owner_path(std::span<const Argument> arguments) const {
  StringId owner;
  // The search goes by storage, so that views count: a matmul with weight.t() belongs to the weight's module.
  graph_.for_each_value(arguments, [&](ValueId value) {
    const StorageId storage = graph_.value(value).storage;
    if (!owner.valid() && storage.index < owners_.size()) owner = owners_[storage.index];
  });
  return owner;
}

// Returns the module inside the open region `depth` whose parameters are among `arguments`, or that region itself.
RegionId Recorder::inferred_region(size_t depth, std::span<const Argument> arguments) {
  const RegionId outer = materialise(depth);
  const StringId path = owner_path(arguments);
  if (!path.valid()) return outer;
  std::string_view module;
  for (size_t i = depth + 1; i-- > 0;) {
    if (regions_[i].region.kind == RegionKind::kModule) {
      module = graph_.text(regions_[i].region.name);
      break;
    }
  }
  if (!is_inside(graph_.text(path), module)) return outer;
  OpenRegion& open = regions_[depth];
  if (open.inferred_path == path) return open.inferred;
  Region region;
  region.kind = RegionKind::kModule;
  region.inferred = true;
  region.parent = outer;
  region.name = path;
  region.class_name = graph_.intern("");
  region.call = calls_[(uint64_t{outer.index} << 32) | path.index]++;
  open.inferred = graph_.add_region(region);
  open.inferred_path = path;
  return open.inferred;
}

// Infers modules for programs without a ModuleScope. A node that uses no parameter belongs to the smallest module that
// holds the operators before and after it.
void Recorder::infer_modules_from_neighbours() {
  struct Unit {
    NodeId node;
    RegionId top;  // the child of the root that holds the node, invalid if it is in the root itself
  };
  std::vector<Unit> pending;
  StringId before;
  const auto settle = [&](StringId after) {
    if (before.valid() && after.valid() && !pending.empty()) {
      const std::string module(common_module(graph_.text(before), graph_.text(after)));
      if (!module.empty()) {
        Region region;
        region.kind = RegionKind::kModule;
        region.inferred = true;
        region.parent = Graph::kRootRegion;
        region.name = graph_.intern(module);
        region.class_name = graph_.intern("");
        region.call = calls_[region.name.index]++;
        const RegionId id = graph_.add_region(region);
        for (const Unit& unit : pending) {
          if (unit.top.valid()) {
            mutable_region(graph_, unit.top).parent = id;
          } else {
            mutable_node(graph_, unit.node).region = id;
          }
        }
      }
    }
    pending.clear();
    before = after;
  };
  for (const NodeId node : graph_.nodes()) {
    if (graph_.node(node).phase != Graph::kForward || graph_.target(node).kind() != TargetKind::kOperator) continue;
    RegionId top = graph_.node(node).region;
    while (top != Graph::kRootRegion && graph_.region(top).parent != Graph::kRootRegion)
      top = graph_.region(top).parent;
    if (top != Graph::kRootRegion && graph_.region(top).kind == RegionKind::kModule) {
      settle(graph_.region(top).name);
    } else {
      pending.push_back({node, top == Graph::kRootRegion ? RegionId() : top});
    }
  }
  for (const NodeId node : graph_.nodes()) {
    const NodeId forward = graph_.node(node).forward;
    if (forward.valid() && !is_recomputed(node)) mutable_node(graph_, node).region = graph_.node(forward).region;
  }
  put_parents_first();
}

// Reorders regions: those inferred at the end were appended after what they hold, and a graph wants parents before
// children.
void Recorder::put_parents_first() {
  std::vector<Region> ordered;
  std::vector<RegionId> moved(graph_.region_count());
  std::vector<RegionId> chain;
  for (uint32_t i = 0; i < graph_.region_count(); ++i) {
    for (RegionId id(i); id.valid() && !moved[id.index].valid(); id = graph_.region(id).parent) chain.push_back(id);
    for (; !chain.empty(); chain.pop_back()) {
      Region region = graph_.region(chain.back());
      if (region.parent.valid()) region.parent = moved[region.parent.index];
      moved[chain.back().index] = RegionId(static_cast<uint32_t>(ordered.size()));
      ordered.push_back(region);
    }
  }
  for (uint32_t i = 0; i < ordered.size(); ++i) mutable_region(graph_, RegionId(i)) = ordered[i];
  for (const NodeId node : graph_.nodes()) mutable_node(graph_, node).region = moved[graph_.node(node).region.index];
}

}  // namespace shadowgraph
