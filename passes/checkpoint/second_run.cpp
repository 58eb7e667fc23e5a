#include "passes/checkpoint/second_run.h"

#include <unordered_map>

#include "passes/checkpoint/checkpoint_plan.h"

namespace shadowgraph {
namespace {

class SecondRunCheck {
 public:
  SecondRunCheck(const Graph& graph, const Effects& effects, std::span<const NodeId> nodes)
      : graph_(graph), effects_(effects), nodes_(nodes), inside_(nodes.begin(), nodes.end()) {}

  SecondRun run() {
    find_statistics();
    for (const NodeId n : nodes_) {
      check_writes(n);
      check_reads(n);
      check_numbers(n);
      if (!found_.obstacle.empty()) break;
    }
    return std::move(found_);
  }

 private:
  bool is_made_here(StorageId s) const {
    const NodeId born = graph_.storage(s).born;
    return born.valid() && inside_.contains(born);
  }
  bool is_outside(StorageId s) const { return !effects_.is_generator(s) && !is_made_here(s); }

  // Storages of the arguments of a batch norm that its results do not depend on.
  std::unordered_set<StorageId> left_out(NodeId n) const {
    std::unordered_set<StorageId> storages;
    for (const size_t position : statistics_to_leave_out(graph_, n)) {
      storages.insert(graph_.value(graph_.arguments(n)[position].ref.value).storage);
    }
    return storages;
  }

  // What is written here is a statistic as long as all who read it do nothing but write it: `count.add_(1)`.
  void find_statistics() {
    for (const NodeId n : nodes_) {
      for (const StorageWrite& write : effects_.writes(n)) {
        if (is_outside(write.storage)) found_.statistics.insert(write.storage);
      }
    }
    if (found_.statistics.empty()) return;
    for (const NodeId n : nodes_) {
      const std::unordered_set<StorageId> unread = left_out(n);
      for (const StorageVersion& read : effects_.reads(n)) {
        if (!found_.statistics.contains(read.storage) || unread.contains(read.storage)) continue;
        const auto writes = effects_.writes(n);
        if (writes.size() != 1 || writes[0].storage != read.storage || makes_more(n, read.storage)) {
          found_.statistics.erase(read.storage);
        }
      }
    }
  }

  bool makes_more(NodeId n, StorageId than) const {
    bool more = false;
    graph_.for_each_output(n, [&](ValueId v) { more = more || graph_.value(v).storage != than; });
    return more;
  }

  void check_writes(NodeId n) {
    for (const StorageWrite& write : effects_.writes(n)) {
      if (is_outside(write.storage) && !found_.statistics.contains(write.storage)) {
        refuse(n, "writes to what is made outside");
      }
    }
  }

  // What is read must still be there, and unchanged, when backward comes.
  void check_reads(NodeId n) {
    if (effects_.geometry_only(n)) return;
    for (const StorageVersion& read : effects_.reads(n)) {
      if (!is_outside(read.storage) || found_.statistics.contains(read.storage)) continue;
      if (left_out(n).contains(read.storage)) continue;
      if (effects_.final_version(read.storage) != read.version) refuse(n, "an operand is written to before backward");
    }
  }

  // A number that the host reads goes out of the function as what it was, and no checkpoint hands on numbers.
  void check_numbers(NodeId n) {
    graph_.for_each_output(n, [&](ValueId v) {
      if (graph_.value(v).kind == ValueKind::kTensor) return;
      graph_.for_each_use(v, [&](NodeId user) {
        if (!inside_.contains(user)) refuse(n, "a number that is read here is used outside");
      });
    });
  }

  void refuse(NodeId n, const std::string& what) {
    if (!found_.obstacle.empty()) return;
    found_.obstacle = graph_.target(n).name() + ": " + what;
    found_.at = n;
  }

  const Graph& graph_;
  const Effects& effects_;
  const std::span<const NodeId> nodes_;
  const std::unordered_set<NodeId> inside_;
  SecondRun found_;
};

}  // namespace

SecondRun second_run(const Graph& graph, const Effects& effects, std::span<const NodeId> nodes) {
  return SecondRunCheck(graph, effects, nodes).run();
}

}  // namespace shadowgraph
