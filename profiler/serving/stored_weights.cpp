#include "profiler/serving/stored_weights.h"

#include <algorithm>

#include "ir/analysis/module_tree.h"
#include "profiler/time/kernel_classes.h"

namespace shadowgraph {
namespace {

// By storage, whether something reads it, and whether something that is no matrix product does.
struct Readers {
  bool product = false;
  bool other = false;
};

IdMap<StorageId, Readers> readers_of(const Graph& graph) {
  IdMap<StorageId, Readers> readers;
  KernelClasses classes(graph);
  for (const NodeId node : graph.nodes()) {
    if (graph.target(node).kind() == TargetKind::kBuiltin || graph.facts(node).is_view) continue;
    const bool product = classes.of(node) == KernelClass::kMatmul;
    graph.for_each_input(node, [&](ValueId value) {
      const StorageId storage = graph.value(value).storage;
      if (!storage.valid()) return;
      (product && graph.sizes(value).size() >= 2 ? readers[storage].product : readers[storage].other) = true;
    });
  }
  return readers;
}

}  // namespace

StoredWeights::StoredWeights(const Graph& graph, const std::optional<WeightFormat>& format,
                             const std::vector<std::string>& kept)
    : graph_(graph) {
  const IdMap<StorageId, Readers> readers = readers_of(graph);
  IdMap<StorageId, uint8_t> seen;
  for (const NodeId node : graph.nodes()) {
    const TargetId target = graph.node(node).target;
    if (target != target_of(Builtin::kParameter) && target != target_of(Builtin::kBuffer)) continue;
    graph.for_each_output(node, [&](ValueId value) {
      const StorageId storage = graph.value(value).storage;
      if (!storage.valid() || seen[storage] != 0) return;
      seen[storage] = 1;
      const int64_t made = graph.storage(storage).bytes;
      bytes_ += made;
      bytes_made_ += made;
      const auto sizes = graph.sizes(value);
      const bool matrix = sizes.size() == 2 || sizes.size() == 3;
      const Readers& by = readers[storage];
      if (!by.product || by.other || !matrix || !c10::isFloatingType(graph.value(value).dtype)) return;
      Weight weight{.experts = sizes.size() == 3 ? sizes[0] : 0};
      const std::string name = placeholder_name(graph, node);
      const bool stays =
          std::ranges::any_of(kept, [&](const std::string& part) { return name.find(part) != name.npos; });
      if (format && !stays) {
        const int64_t one = format->bytes(sizes[sizes.size() - 2], sizes[sizes.size() - 1]);
        const int64_t stored = one * std::max<int64_t>(1, weight.experts);
        weight.share = made > 0 ? static_cast<double>(stored) / static_cast<double>(made) : 1;
        bytes_ += stored - made;
        quantised_ += graph.numel(value);
      }
      by_storage_[storage] = weight;
    });
  }
}

StoredWeights::Weight StoredWeights::weight_of(ValueId value) const {
  const StorageId storage = graph_.value(value).storage;
  return storage.valid() ? by_storage_[storage] : Weight();
}

double StoredWeights::share(ValueId value) const { return weight_of(value).share; }
int64_t StoredWeights::experts(ValueId value) const { return weight_of(value).experts; }

}  // namespace shadowgraph
