// Decides for one level of a checkpoint what can be made again, and what of that is needed. Reasons against spread
// first; what is left is accepted, and of that only what the demands need is computed again.
#include <algorithm>

#include "core/calls/generator_note.h"
#include "passes/checkpoint/checkpoint_plan.h"

namespace shadowgraph {
namespace {

// Gives its self another storage or geometry in a way that is not redone.
bool changes_storage(const OperatorFacts& facts) {
  return !facts.written.empty() && (facts.resizes || facts.takes_storage);
}

}  // namespace

class CheckpointPlan::Decision {
 public:
  Decision(CheckpointPlan& plan, int32_t index)
      : plan_(plan), graph_(plan.graph_), effects_(plan.effects_), index_(index), level_(plan.levels_[size_t(index)]) {
    // What backward needs before the segment has ended would be computed twice at once.
    std::erase_if(level_.demands, [&](const CheckpointDemand& demand) {
      // A gradient taken within forward; nothing is gained there.
      const bool early = graph_.is_before(demand.at, level_.nodes.back());
      if (early) ++plan_.kept_, ++plan_.obstacles_["needed before its segment ends"];
      return early;
    });
    for (const CheckpointDemand& demand : level_.demands) {
      if (!end_.valid() || graph_.is_before(end_, demand.at)) end_ = demand.at;
    }
  }

  void run() {
    if (level_.demands.empty()) return;
    find_obstacles();
    accept();
    if (level_.accepted.empty()) return;
    select();
    find_random_runs();
    ask_outer_levels();
  }

 private:
  struct StorageUse {
    std::vector<std::pair<NodeId, uint32_t>> readers;  // of contents, with the version
    std::vector<NodeId> writers;
    bool kept = false;
  };

  bool born_here(StorageId s) const {
    return s.index < graph_.storage_count() && plan_.is_within(plan_.level_of_birth(s), index_);
  }

  bool is_here(NodeId n) const { return plan_.is_within(plan_.level_of(n), index_); }

  // Whether the storage has a copy in the second run, from which nodes there take it.
  bool is_made_again(StorageId s) const {
    const auto found = storages_.find(s);
    return found != storages_.end() && !found->second.kept;
  }

  // Says whether the contents that a node read are still there when they are needed again. end_ is the last node that
  // may need something of this level.
  bool still_there(StorageId s, uint32_t version) const {
    const NodeId writer = plan_.next_writer(s, version);
    return !writer.valid() || !graph_.is_before(writer, end_);
  }

  // Returns the first reason why this node cannot run again, whatever others do; "" if there is none. The reason goes
  // into the report, so it names the operator.
  std::string obstacle(NodeId n) const {
    const std::string& name = graph_.target(n).name();
    if (effects_.unknown(n)) return name + ": nothing is known of it";
    if (effects_.host_read(n)) return name + ": reads on the host";
    if (effects_.collective(n) && !level_.segment->collectives) return name + ": a collective";
    if (changes_storage(graph_.facts(n))) return name + ": changes a tensor's storage";
    if (!graph_.note(n, kGeneratorNote).empty()) return name + ": draws from a generator of the program's own";
    std::string reason;
    graph_.for_each_output(n, [&](ValueId v) {
      const StorageId s = graph_.value(v).storage;
      if (graph_.value(v).kind == ValueKind::kTensor && !s.valid()) reason = name + ": a result without storage";
      // A second one of it would stand beside the one that is kept.
      if (level_.keeps.contains(s) && graph_.storage(s).born == n) reason = name + ": makes what is to be kept";
    });
    graph_.for_each_input(n, [&](ValueId v) {
      const StorageId s = graph_.value(v).storage;
      if (s.valid() && born_here(s) && !is_here(graph_.value(v).producer))
        reason = name + ": an operand from elsewhere";
    });
    for (const StorageWrite& write : effects_.writes(n)) {
      if (level_.keeps.contains(write.storage)) reason = name + ": writes to what is to be kept";
      if (effects_.is_generator(write.storage) || born_here(write.storage)) continue;
      // A second write to what others see would be seen.
      if (!is_statistic(n, write.storage)) reason = name + ": writes to what is made outside";
    }
    return reason;
  }

  // Statistics are the one write that a copy may leave out.
  bool is_statistic(NodeId n, StorageId s) const {
    const auto positions = statistics_to_leave_out(graph_, n);
    return std::any_of(positions.begin(), positions.end(), [&](size_t position) {
      return graph_.value(graph_.arguments(n)[position].ref.value).storage == s;
    });
  }

  // Finds all that cannot run again. Reasons spread: what cannot run again keeps what it makes, and what is kept may
  // block those that wrote to it.
  void find_obstacles() {
    blocked_.reserve(level_.nodes.size() / 8);
    for (const NodeId n : level_.nodes) {
      graph_.for_each_output(n, [&](ValueId v) {
        const StorageId s = graph_.value(v).storage;
        if (s.valid() && graph_.storage(s).born == n && !level_.keeps.contains(s)) storages_.try_emplace(s);
      });
      if (!effects_.geometry_only(n)) {
        for (const StorageVersion& read : effects_.reads(n)) {
          if (const auto found = storages_.find(read.storage); found != storages_.end()) {
            found->second.readers.emplace_back(n, read.version);
          }
        }
      }
      for (const StorageWrite& write : effects_.writes(n)) {
        if (const auto found = storages_.find(write.storage); found != storages_.end()) {
          found->second.writers.push_back(n);
        }
      }
    }
    for (auto& [storage, use] : storages_) {
      // Some writer is not in the segment: a copy would miss its write.
      if (use.writers.size() != effects_.final_version(storage)) keep(storage, "written to outside its segment");
    }
    for (const NodeId n : level_.nodes) {
      if (const std::string reason = obstacle(n); !reason.empty()) block(n, reason);
      if (effects_.geometry_only(n)) continue;
      for (const StorageVersion& read : effects_.reads(n)) {
        if (read.storage.index >= graph_.storage_count() || storages_.contains(read.storage)) continue;
        if (!still_there(read.storage, read.version) && !is_statistic(n, read.storage)) {
          // A copy would read what is there now, not what was there.
          block(n, graph_.target(n).name() + ": an operand is written to before backward");
        }
      }
    }
    // What cannot run again keeps what it makes and writes; who reads that at a version that is gone cannot run either.
    while (!pending_.empty()) {
      const NodeId n = pending_.back();
      pending_.pop_back();
      const std::string& reason = blocked_.at(n);
      // Views that it makes, too.
      graph_.for_each_output(n, [&](ValueId v) { keep(graph_.value(v).storage, reason); });
      for (const StorageWrite& write : effects_.writes(n)) keep(write.storage, reason);
    }
  }

  void block(NodeId n, const std::string& reason) {
    if (blocked_.try_emplace(n, reason).second) pending_.push_back(n);
  }

  // All writers of a kept storage must stay, too: their copies would write to the original a second time.
  void keep(StorageId s, const std::string& reason) {
    const auto found = storages_.find(s);
    if (found == storages_.end() || found->second.kept) return;
    found->second.kept = true;
    reasons_.try_emplace(s, reason);
    for (const NodeId writer : found->second.writers) block(writer, reason);
    for (const auto& [reader, version] : found->second.readers) {
      if (!still_there(s, version)) block(reader, reason);
    }
  }

  // Demands that nothing speaks against. The first of them says where the copies go: just before that backward node.
  void accept() {
    std::unordered_set<StorageId> counted;
    for (const CheckpointDemand& demand : level_.demands) {
      const StorageId s = graph_.value(demand.value).storage;
      if (is_made_again(s) && !blocked_.contains(graph_.value(demand.value).producer)) {
        level_.accepted.push_back(demand);
        if (!level_.position.valid() || graph_.is_before(demand.at, level_.position)) level_.position = demand.at;
      } else if (counted.insert(s).second) {
        ++plan_.kept_;
        const auto reason = reasons_.find(s);
        ++plan_.obstacles_[reason == reasons_.end() ? std::string("made outside its segment") : reason->second];
      }
    }
  }

  // Walks backwards from what is needed to all that it takes, so that only that is computed again. A node whose results
  // are only looked at needs no contents.
  void select() {
    std::unordered_set<ValueId> values;
    std::unordered_set<StorageId> contents;
    for (const CheckpointDemand& demand : level_.accepted) {
      values.insert(demand.value);
      contents.insert(graph_.value(demand.value).storage);
    }
    for (size_t i = level_.nodes.size(); i-- > 0;) {
      const NodeId n = level_.nodes[i];
      bool needed = false;
      graph_.for_each_output(n, [&](ValueId v) { needed = needed || values.contains(v); });
      for (const StorageWrite& write : effects_.writes(n)) needed = needed || contents.contains(write.storage);
      if (!needed) continue;
      level_.recomputed.push_back(n);
      graph_.for_each_input(n, [&](ValueId v) {
        const StorageId s = graph_.value(v).storage;
        if (!s.valid() || !is_made_again(s)) return;
        values.insert(v);
        if (!effects_.geometry_only(n)) contents.insert(s);
      });
      graph_.for_each_output(n, [&](ValueId v) {
        const StorageId s = graph_.value(v).storage;
        if (s.valid() && is_made_again(s)) level_.made_again.insert(s);
      });
    }
    std::reverse(level_.recomputed.begin(), level_.recomputed.end());
  }

  // Copies that draw must find the generator as it was. Draws that follow one another without a gap share one saved
  // state: putting a state back costs a copy of 5 KB.
  void find_random_runs() {
    std::unordered_map<StorageId, uint32_t> last_draw;
    std::unordered_map<StorageId, size_t> run_of;
    for (const NodeId n : level_.recomputed) {
      const uint32_t draw = std::as_const(plan_.draw_order_)[n];
      if (draw == 0) continue;
      for (const StorageWrite& write : effects_.writes(n)) {
        if (!effects_.is_generator(write.storage)) continue;
        const auto last = last_draw.find(write.storage);
        if (last == last_draw.end() || last->second + 1 != draw) {
          run_of[write.storage] = level_.random_runs.size();
          level_.random_runs.push_back({.first = n, .last = n, .device = device_of(write.storage)});
        }
        level_.random_runs[run_of[write.storage]].last = n;
        last_draw[write.storage] = draw;
      }
    }
  }

  c10::Device device_of(StorageId generator) const {
    for (const Effects::Generator& g : effects_.generators()) {
      if (g.storage == generator) return g.device;
    }
    return c10::Device(c10::DeviceType::CPU);
  }

  // An operand may be born in an outer segment, which drops it as well. Then the outer level must make it again before
  // this one runs.
  void ask_outer_levels() {
    for (const NodeId n : level_.recomputed) {
      graph_.for_each_input(n, [&](ValueId v) {
        const StorageId s = graph_.value(v).storage;
        if (s.valid() && is_made_again(s)) return;
        const int32_t outer = plan_.candidate_level(level_.outer, v);
        if (outer >= 0) plan_.levels_[size_t(outer)].demands.push_back({level_.position, v, false});
      });
    }
  }

  CheckpointPlan& plan_;
  const Graph& graph_;
  const Effects& effects_;
  const int32_t index_;
  CheckpointLevel& level_;
  NodeId end_;                                          // the last node that may need something
  std::unordered_map<StorageId, StorageUse> storages_;  // made in this level
  std::unordered_map<NodeId, std::string> blocked_;
  std::unordered_map<StorageId, std::string> reasons_;
  std::vector<NodeId> pending_;
};

void CheckpointPlan::decide(int32_t level) {
  if (!levels_[size_t(level)].demands.empty()) Decision(*this, level).run();
}

}  // namespace shadowgraph
