#include "core/fake/process_groups.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <set>

#include "core/fake/thread_state.h"
#include "shadowgraph/error.h"
#include "support/text.h"

namespace shadowgraph {
namespace {

using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

constexpr const char* kProcessGroupType = "__torch__.torch.classes.c10d.ProcessGroup";
constexpr const char* kReduceOpType = "__torch__.torch.classes.c10d.ReduceOp";

constexpr std::pair<std::string_view, c10d::ReduceOp::RedOpType> kReductions[] = {
    {"sum", c10d::ReduceOp::SUM}, {"avg", c10d::ReduceOp::AVG},  {"product", c10d::ReduceOp::PRODUCT},
    {"min", c10d::ReduceOp::MIN}, {"max", c10d::ReduceOp::MAX},  {"band", c10d::ReduceOp::BAND},
    {"bor", c10d::ReduceOp::BOR}, {"bxor", c10d::ReduceOp::BXOR}};

bool is_class(const c10::Type& type, const char* name) {
  return type.kind() == c10::TypeKind::ClassType && type.str() == name;
}

// Groups created by FakeMesh and fake_process_group, by name.
struct KnownGroups {
  std::mutex mutex;
  struct Known {
    ProcessGroupInfo info;
    Group group;  // c10d's registry does not own it
  };
  std::map<std::string, Known> by_name;
  std::atomic<DescribeProcessGroup> describe{nullptr};

  static KnownGroups& global() {
    static auto* groups = new KnownGroups;
    return *groups;
  }
};

// c10d's registry throws for unknown names.
Group find_group(const std::string& name) {
  try {
    return c10d::resolve_process_group(name);
  } catch (const c10::Error&) {
    return nullptr;
  }
}

// The backend of fake groups. Backend's methods throw with this name for real tensors.
class FakeBackend final : public c10d::Backend {
 public:
  using Backend::Backend;
  const std::string getBackendName() const override { return "fake (shadowgraph; supports fake tensors only)"; }
};

class CompletedWork final : public c10d::Work {
 public:
  CompletedWork(std::vector<at::Tensor> tensors, bool asynchronous, std::vector<at::Tensor> sent)
      : tensors_(std::move(tensors)), sent_(std::move(sent)), unwaited_(asynchronous) {}

  bool isCompleted() override { return true; }
  bool isSuccess() const override { return true; }
  std::vector<at::Tensor> result() override { return tensors_; }
  void synchronize() override { join(); }
  void blockCurrentStream() override { join(); }
  bool wait(std::chrono::milliseconds /*timeout*/) override {
    join();
    // NCCL releases them here, gloo with the Work.
    std::erase_if(sent_, [](const at::Tensor& tensor) { return !tensor.device().is_cpu(); });
    return true;
  }
  // Waiting for the future is not observed: the first read of the tensors counts as the wait.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    auto future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::ofTensors());
    future->markCompleted(c10::IValue(tensors_));
    return future;
  }

 private:
  void join() {
    if (!unwaited_ || thread_state.kernel_depth != 0) return;
    unwaited_ = false;
    static const auto wait = c10::Dispatcher::singleton()
                                 .findSchemaOrThrow("_c10d_functional::wait_tensor", "")
                                 .typed<at::Tensor(const at::Tensor&)>();
    const at::AutoDispatchBelowADInplaceOrView no_autograd;
    for (const at::Tensor& tensor : tensors_) wait.call(tensor);
  }

  std::vector<at::Tensor> tensors_;
  std::vector<at::Tensor> sent_;
  bool unwaited_;
};

void check(const ProcessGroupInfo& info) {
  if (info.name.empty()) throw Error("a process group needs a name");
  const auto refuse = [&](const std::string& why) { throw Error("process group '" + info.name + "': " + why); };
  if (info.size < 1) refuse(fmt::format("size must be at least 1, not {}", info.size));
  if (info.rank < 0 || info.rank >= info.size) {
    refuse(fmt::format("rank must be 0 to {}, not {}", info.size - 1, info.rank));
  }
  if (!info.ranks.empty() && static_cast<int64_t>(info.ranks.size()) != info.size) {
    refuse(fmt::format("expected {} ranks, got {}", info.size, info.ranks.size()));
  }
  if (find_group(info.name)) {
    throw Error("a process group named '" + info.name +
                "' already exists in this process; destroy it first (FakeMesh, destroy_process_group) or use another "
                "name");
  }
}

}  // namespace

Group fake_process_group(const ProcessGroupInfo& info) {
  check(info);
  auto group = c10::make_intrusive<c10d::ProcessGroup>(static_cast<int>(info.rank), static_cast<int>(info.size));
  const c10::intrusive_ptr<c10d::Backend> backend =
      c10::make_intrusive<FakeBackend>(static_cast<int>(info.rank), static_cast<int>(info.size));
  for (const auto device : {c10::kCPU, c10::kCUDA, c10::kMeta, c10::kXPU, c10::kPrivateUse1}) {
    group->setBackend(device, c10d::ProcessGroup::CUSTOM, backend);
  }
  group->setDefaultBackend(c10d::ProcessGroup::CUSTOM);
  group->setGroupName(info.name);
  group->setGroupDesc(info.axis.empty() ? info.name : "mesh_" + info.axis);
  c10d::register_process_group(info.name, group);
  KnownGroups& known = KnownGroups::global();
  const std::lock_guard lock(known.mutex);
  known.by_name[info.name] = {info, group};
  return group;
}

void unregister_fake_process_group(const std::string& name) {
  KnownGroups& known = KnownGroups::global();
  Group last;  // released without the lock
  {
    const std::lock_guard lock(known.mutex);
    const auto found = known.by_name.find(name);
    if (found == known.by_name.end()) return;
    last = std::move(found->second.group);
    known.by_name.erase(found);
  }
  c10d::unregister_process_group(name);
}

static ProcessGroupInfo describe(const Group& group) {
  ProcessGroupInfo info{.name = group->getGroupName(), .size = group->getSize(), .rank = group->getRank()};
  KnownGroups& known = KnownGroups::global();
  {
    const std::lock_guard lock(known.mutex);
    const auto found = known.by_name.find(info.name);
    if (found != known.by_name.end() && found->second.info.size == info.size) return found->second.info;
  }
  // DeviceMesh describes the groups of its axes with this prefix.
  constexpr std::string_view kMesh = "mesh_";
  if (const std::string& words = group->getGroupDesc(); words.starts_with(kMesh))
    info.axis = words.substr(kMesh.size());
  if (const DescribeProcessGroup ask = known.describe.load(); ask != nullptr) ask(info);
  return info;
}

std::optional<ProcessGroupInfo> describe_group(const c10::IValue& argument) {
  const Group group = group_of_argument(argument);
  return group ? std::optional(describe(group)) : std::nullopt;
}

std::optional<ProcessGroupInfo> find_process_group(const std::string& name) {
  const Group group = find_group(name);
  return group ? std::optional(describe(group)) : std::nullopt;
}

void set_describe_process_group(DescribeProcessGroup ask) { KnownGroups::global().describe = ask; }

FakeMesh::FakeMesh(std::vector<MeshAxis> axes, int64_t rank) : axes_(std::move(axes)), rank_(rank) {
  if (axes_.empty()) throw Error("a mesh needs at least one axis, for example FakeMesh({{\"dp\", 8}, {\"tp\", 4}})");
  std::set<std::string> names{"world"};
  for (const MeshAxis& axis : axes_) {
    if (axis.size < 1) {
      throw Error(fmt::format("mesh axis '{}' must have a size of at least 1, not {}", axis.name, axis.size));
    }
    if (axis.name.empty()) throw Error("a mesh axis needs a name");
    if (!names.insert(axis.name).second) {
      throw Error("mesh axis '" + axis.name +
                  "' is already in use; axis names must be unique, and \"world\" is reserved for the whole mesh");
    }
    if (size_ > INT32_MAX / axis.size) throw Error("the mesh has more than 2^31 - 1 processes");
    size_ *= axis.size;
  }
  if (rank < 0 || rank >= size_) {
    throw Error(fmt::format("rank {} is not in the mesh of {} processes; it must be 0 to {}", rank, size_, size_ - 1));
  }
  try {
    int64_t stride = size_;
    for (const MeshAxis& axis : axes_) {
      stride /= axis.size;
      const int64_t place = rank_ / stride % axis.size;
      ProcessGroupInfo info{.name = axis.name, .size = axis.size, .rank = place, .ranks = {}, .axis = axis.name};
      for (int64_t i = 0; i < axis.size; ++i) info.ranks.push_back(rank_ + (i - place) * stride);
      groups_.push_back(fake_process_group(info));
    }
    ProcessGroupInfo world{.name = "world", .size = size_, .rank = rank_};
    for (int64_t i = 0; i < size_; ++i) world.ranks.push_back(i);
    groups_.push_back(fake_process_group(world));
  } catch (...) {
    for (const Group& group : groups_) unregister_fake_process_group(group->getGroupName());
    throw;
  }
}

FakeMesh::~FakeMesh() {
  for (const Group& group : groups_) unregister_fake_process_group(group->getGroupName());
}

size_t FakeMesh::index_of(std::string_view axis) const {
  const auto found = std::ranges::find(axes_, axis, &MeshAxis::name);
  if (found != axes_.end()) return static_cast<size_t>(found - axes_.begin());
  std::string names;
  for (const MeshAxis& known : axes_) names += (names.empty() ? "" : ", ") + known.name;
  throw Error("the mesh has no axis '" + std::string(axis) + "'; its axes are " + names);
}

int64_t FakeMesh::coordinate(std::string_view axis) const { return groups_[index_of(axis)]->getRank(); }
const Group& FakeMesh::group(std::string_view axis) const { return groups_[index_of(axis)]; }

std::vector<MeshAxis> parse_mesh(std::string_view text) {
  std::vector<MeshAxis> axes;
  const auto refuse = [&] {
    throw Error(fmt::format(R"(invalid mesh "{}": expected a form such as "dp=8,tp=4")", text));
  };
  for (std::string_view rest = text;;) {
    const std::string_view part = rest.substr(0, rest.find(','));
    const size_t equals = part.find('=');
    if (equals == part.npos || equals == 0) refuse();
    MeshAxis axis{.name = std::string(part.substr(0, equals))};
    axis.size = parse_number<int64_t>(part.substr(equals + 1)).value_or(0);
    if (axis.size < 1) refuse();
    axes.push_back(std::move(axis));
    if (part.size() == rest.size()) break;
    rest.remove_prefix(part.size() + 1);
  }
  return axes;
}

std::optional<std::string> name_of_object(const c10::IValue& object) {
  if (!object.isObject()) return std::nullopt;
  const c10::Type& type = *object.type();
  if (is_class(type, kProcessGroupType)) return object.toCustomClass<c10d::ProcessGroup>()->getGroupName();
  if (!is_class(type, kReduceOpType)) return std::nullopt;
  const auto reduction = object.toCustomClass<c10d::ReduceOp>();
  for (const auto& [name, kind] : kReductions) {
    if (reduction->op_ == kind) return std::string(name);
  }
  return std::nullopt;
}

bool is_named_object(const c10::Type& type) {
  return is_class(type, kProcessGroupType) || is_class(type, kReduceOpType);
}

c10::IValue object_named(const c10::Type& type, const std::string& name, std::string& problem) {
  if (is_class(type, kProcessGroupType)) {
    if (Group group = find_group(name)) return group;
    problem = "this process has no process group named '" + name +
              "'; create it first (init_process_group and new_group, or FakeMesh to run on fake tensors)";
    return {};
  }
  for (const auto& [known, kind] : kReductions) {
    if (known == name) return c10::make_intrusive<c10d::ReduceOp>(kind);
  }
  problem = "unknown reduction '" + name + "'; supported are sum, avg, product, min, max, band, bor, bxor";
  return {};
}

Group group_of_argument(const c10::IValue& argument) {
  if (argument.isString()) return find_group(argument.toStringRef());
  if (!argument.isObject() || !is_class(*argument.type(), kProcessGroupType)) return nullptr;
  return argument.toCustomClass<c10d::ProcessGroup>();
}

c10::intrusive_ptr<c10d::Work> completed_work(std::vector<at::Tensor> tensors, bool asynchronous,
                                              std::vector<at::Tensor> sent) {
  return c10::make_intrusive<CompletedWork>(std::move(tensors), asynchronous, std::move(sent));
}

void wait_for_work(std::span<const c10::IValue> results) {
  for (const c10::IValue& result : results) {
    if (result.isObject() && is_class(*result.type(), "__torch__.torch.classes.c10d.Work")) {
      result.toCustomClass<c10d::Work>()->wait();
    }
  }
}

const Target& process_group_target() {
  static const Target target(TargetKind::kFunction,
                             "sg_c10d::process_group(str group_name, int size, int rank, int[] ranks, str axis) -> ()");
  return target;
}

std::vector<c10::IValue> process_group_arguments(const ProcessGroupInfo& info) {
  return {info.name, info.size, info.rank, c10::IValue(c10::IntArrayRef(info.ranks)), info.axis};
}

void check_process_group(std::span<const c10::IValue> arguments) {
  const std::string& name = arguments[0].toStringRef();
  const int64_t size = arguments[1].toInt();
  const auto found = find_process_group(name);
  if (found && found->size == size) return;
  throw Error("the graph uses process group '" + name + "' of size " + std::to_string(size) +
              ", but in this process it " +
              (found ? "has size " + std::to_string(found->size) : std::string("does not exist")) +
              "; create it first (init_process_group and new_group, or FakeMesh to run on fake tensors)");
}

static std::string text_of(const Graph& graph, const Argument& argument) {
  return argument.kind == ArgumentKind::kString ? graph.text(argument.string) : std::string();
}

std::vector<ProcessGroupInfo> process_groups(const Graph& graph) {
  std::vector<ProcessGroupInfo> groups;
  for (const NodeId node : graph.nodes()) {
    if (graph.target(node).name() != process_group_target().name()) continue;
    const auto arguments = graph.arguments(node);
    if (arguments.size() != 5) continue;
    ProcessGroupInfo info{.name = text_of(graph, arguments[0]), .axis = text_of(graph, arguments[4])};
    if (arguments[1].kind == ArgumentKind::kInt) info.size = arguments[1].i;
    if (arguments[2].kind == ArgumentKind::kInt) info.rank = arguments[2].i;
    if (arguments[3].kind == ArgumentKind::kIntList) {
      const auto ranks = graph.ints(arguments[3]);
      info.ranks.assign(ranks.begin(), ranks.end());
    }
    groups.push_back(std::move(info));
  }
  return groups;
}

std::string process_group_of(const Graph& graph, NodeId node) {
  const Target& target = graph.target(node);
  if (target.kind() == TargetKind::kBuiltin || !target.facts().collective) return {};
  if (target.name() == process_group_target().name()) return {};
  for (const char* name : {"group_name", "process_group"}) {
    if (const Argument* group = graph.find_argument(node, name)) return text_of(graph, *group);
  }
  return {};
}

}  // namespace shadowgraph
