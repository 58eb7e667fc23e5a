// Axes of a mesh by name: {{"dp", 8}, {"tp", 4}} is a mesh of 32. As in torch's DeviceMesh, the last varies fastest.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shadowgraph/export.h"
#include "shadowgraph/graph/graph.h"

namespace c10d {
class ProcessGroup;  // torch/csrc/distributed/c10d/ProcessGroup.hpp
}

namespace SHADOWGRAPH_API shadowgraph {

struct MeshAxis {
  std::string name;
  int64_t size = 1;
};

// Parses "dp=8,tp=4". Throws Error.
std::vector<MeshAxis> parse_mesh(std::string_view text);

// A mesh of processes as seen from one of its ranks: runs one rank of a distributed program on fake tensors, without a
// network. Nothing is sent, so a collective costs as much as any call on fakes.
//
//     FakeMesh mesh({{"dp", 8}, {"tp", 4}}, /*rank=*/5);      // 32 processes; this one is dp 1, tp 1
//     FakeTensorMode mode({.device = at::kCUDA});
//     std::vector<at::Tensor> gradients{at::empty({1024})};
//     mesh.group("dp")->allreduce(gradients)->wait();         // recorded by a capture; sends nothing
//
// Each axis is a process group named after it; the whole mesh is a group named "world". During the lifetime of the mesh
// they are registered in c10d, so that operators with a group name (`_c10d_functional::all_reduce(x, "sum", "tp")`)
// find them. The last axis varies fastest, as in torch's DeviceMesh: its neighbors have consecutive ranks.
//
// On fake tensors, collectives apply their shape rule: results have the sizes, dtype and aliasing of NCCL's, and the
// Work is complete at once. Real tensors, and sizes that do not match the group, throw c10::Error.

class FakeMesh {
 public:
  // Throws Error for no axes, a size below 1, `rank` out of range, and a name that is empty or already registered.
  explicit FakeMesh(std::vector<MeshAxis> axes, int64_t rank = 0);
  ~FakeMesh();  // unregisters the names; groups still referenced by the program remain usable
  C10_DISABLE_COPY_AND_ASSIGN(FakeMesh);

  int64_t size() const { return size_; }
  int64_t rank() const { return rank_; }
  const std::vector<MeshAxis>& axes() const { return axes_; }
  // Returns this process's coordinate on an axis, from 0. Throws Error if there is no such axis.
  int64_t coordinate(std::string_view axis) const;
  const c10::intrusive_ptr<c10d::ProcessGroup>& world() const { return groups_.back(); }
  // Returns the group of processes that differ from this one only in that axis. Throws Error if there is no such axis.
  const c10::intrusive_ptr<c10d::ProcessGroup>& group(std::string_view axis) const;

 private:
  size_t index_of(std::string_view axis) const;

  std::vector<MeshAxis> axes_;
  int64_t size_ = 1;
  int64_t rank_ = 0;
  std::vector<c10::intrusive_ptr<c10d::ProcessGroup>> groups_;  // by axis, then the world
};

// A single group, registered under `name` until unregister_fake_process_group. Throws Error if `rank` is not in
// [0, size), if the name is empty or already registered, or if `ranks` is neither empty nor of length `size`.

struct ProcessGroupInfo {
  std::string name;
  int64_t size = 1;
  int64_t rank = 0;            // of this process in the group
  std::vector<int64_t> ranks;  // global ranks by rank in the group; empty: unknown
  std::string axis;            // mesh axis; empty: none, or unknown
  friend bool operator==(const ProcessGroupInfo&, const ProcessGroupInfo&) = default;
};

c10::intrusive_ptr<c10d::ProcessGroup> fake_process_group(const ProcessGroupInfo& info);
void unregister_fake_process_group(const std::string& name);

// Returns the group registered under a name by shadowgraph or c10d; std::nullopt if there is none.
std::optional<ProcessGroupInfo> find_process_group(const std::string& name);
// For language bindings: completes the ranks and axis of groups that torch.distributed keeps in Python. nullptr: none.
using DescribeProcessGroup = bool (*)(ProcessGroupInfo& info);
void set_describe_process_group(DescribeProcessGroup describe);

// Process groups of a graph. A capture records each group before its first collective:
//
//     sg_c10d::process_group(group_name="dp", size=8, rank=1, ranks=[1, 5, 9, 13, 17, 21, 25, 29], axis="dp")
//
// Replay throws Error there if this process has no group of that name and size.

// Returns the process groups in the order of their nodes.
std::vector<ProcessGroupInfo> process_groups(const Graph& graph);
// Returns the name of the group in which a collective communicates; "" for other nodes.
std::string process_group_of(const Graph& graph, NodeId node);

}  // namespace shadowgraph
