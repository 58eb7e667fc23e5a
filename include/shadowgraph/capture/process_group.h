// The axes of a mesh of devices or processes, by name: {{"dp", 8}, {"tp", 4}} is 32 of them. The last axis varies
// fastest, as in torch's DeviceMesh.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shadowgraph/export.h"
#include "shadowgraph/graph/graph.h"

namespace SHADOWGRAPH_API shadowgraph {

struct MeshAxis {
  std::string name;
  int64_t size = 1;
};

// Axes as people write them, "dp=8,tp=4". Throws Error.
std::vector<MeshAxis> parse_mesh(std::string_view text);

}  // namespace shadowgraph

// Process groups of any size without a network: one process's share of a distributed program, run on fake tensors.
//
// For one process's part of a program of many. Nothing is sent, so a collective costs a call on fakes.

namespace c10d {
class ProcessGroup;  // torch/csrc/distributed/c10d/ProcessGroup.hpp
}

namespace SHADOWGRAPH_API shadowgraph {

// ---------------------------------------------------------------------------------------------------------------------
// A mesh of processes, seen from one of them.
//
//     FakeMesh mesh({{"dp", 8}, {"tp", 4}}, /*rank=*/5);      // 32 processes; this one is dp 1, tp 1
//     FakeTensorMode mode({.device = at::kCUDA});
//     std::vector<at::Tensor> gradients{at::empty({1024})};
//     mesh.group("dp")->allreduce(gradients)->wait();         // recorded by a capture, sends nothing
//
// Each axis is a process group of its name, the whole mesh one named "world". While the mesh lives they are registered
// under these names in c10d, so that operators which take a name (`_c10d_functional::all_reduce(x, "sum", "tp")`) find
// them. The last axis varies fastest, as in torch's DeviceMesh: neighbours in it are neighbours in rank.
//
// On fake tensors a collective is its shape rule: results have the sizes, dtype and aliasing that NCCL would give. A
// Work is complete at once. Real tensors are refused: there is nobody to send them to. Sizes that do not fit the group
// are refused as c10d refuses them (both c10::Error).

class FakeMesh {
 public:
  // Throws Error if there is no axis, a size is below 1, or `rank` is not in the mesh. Throws it, too, if a name is
  // empty, given twice or taken by a group that is registered in this process.
  explicit FakeMesh(std::vector<MeshAxis> axes, int64_t rank = 0);
  ~FakeMesh();  // the names are free again; groups that the program still holds go on working
  FakeMesh(const FakeMesh&) = delete;
  FakeMesh& operator=(const FakeMesh&) = delete;

  int64_t size() const { return size_; }
  int64_t rank() const { return rank_; }
  const std::vector<MeshAxis>& axes() const { return axes_; }
  // This process's place on an axis, from 0. Throws Error for a name that is no axis.
  int64_t coordinate(std::string_view axis) const;
  const c10::intrusive_ptr<c10d::ProcessGroup>& world() const { return groups_.back(); }
  // The processes that differ from this one in that axis alone. Throws Error for a name that is no axis.
  const c10::intrusive_ptr<c10d::ProcessGroup>& group(std::string_view axis) const;

 private:
  size_t index_of(std::string_view axis) const;

  std::vector<MeshAxis> axes_;
  int64_t size_ = 1;
  int64_t rank_ = 0;
  std::vector<c10::intrusive_ptr<c10d::ProcessGroup>> groups_;  // of the axes, then the world
};

// ---------------------------------------------------------------------------------------------------------------------
// One group, registered under `name` until unregister_fake_process_group. Throws Error if `rank` is not in 0 ... size -
// 1, or if the name is empty or taken. Throws it, too, if `ranks` is neither empty nor as long as the group.

struct ProcessGroupInfo {
  std::string name;
  int64_t size = 1;
  int64_t rank = 0;            // of this process, in the group
  std::vector<int64_t> ranks;  // in the whole program, by rank in the group; empty: not known
  std::string axis;            // of a mesh; empty: none, or not known
  friend bool operator==(const ProcessGroupInfo&, const ProcessGroupInfo&) = default;
};

c10::intrusive_ptr<c10d::ProcessGroup> fake_process_group(const ProcessGroupInfo& info);
void unregister_fake_process_group(const std::string& name);

// What is known of the group registered under a name, whoever made it; nothing if there is none.
std::optional<ProcessGroupInfo> find_process_group(const std::string& name);
// Tells the ranks and axes of groups that others made (torch.distributed keeps them in Python). It is asked about
// groups that were not made here. nullptr: nobody.
using DescribeProcessGroup = bool (*)(ProcessGroupInfo& info);
void set_describe_process_group(DescribeProcessGroup describe);

// ---------------------------------------------------------------------------------------------------------------------
// The groups of a graph. A capture records, before the first collective on a group, what the group is:
//
//     sg_c10d::process_group(group_name="dp", size=8, rank=1, ranks=[1, 5, 9, 13, 17, 21, 25, 29], axis="dp")
//
// so a graph needs no process group to be read, printed or profiled. A replay refuses to go on there (Error) if this
// process has no group of that name or one of another size.

// In the order of their nodes.
std::vector<ProcessGroupInfo> process_groups(const Graph& graph);
// The name of the group that a collective communicates in; empty for other nodes.
std::string process_group_of(const Graph& graph, NodeId node);

}  // namespace shadowgraph
