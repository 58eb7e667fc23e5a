// merge-constants: keeps one of all constants with the same contents.
//
//     %1 = sg::constant(data=c0) : f32[8,8] @s1        a mask that every layer made anew, before the capture or by const-fold
//     %2 = sg::constant(data=c1) : f32[8,8] @s2        goes, if c1 has the bytes of c0: uses of %2 are uses of %1
//
// Why. cse cannot: constants have no operands to agree. With one constant instead of twelve, what is computed from them
// is computed once (run cse afterwards), and files and emitted code hold it once.
//
// Legality. Type, offset and all bytes of the storage agree to the bit (NaN is NaN, -0.0 is not 0.0). Neither is
// written, no tensor object changes its geometry, and no lazy conjugate is among its views. Neither is what somebody
// outside gets: two outputs that were two tensors would be one. Constants that share a storage with another placeholder
// stay.
//
// Cost. One walk over the nodes; the bytes of constants are read once or twice. (ONNX optimizers:
// deduplicate_initializers.)
#include <functional>

#include "ir/analysis/identity.h"
#include "ir/analysis/node_hashes.h"
#include "ir/edit/replacements.h"
#include "ir/text/tensor_bytes.h"
#include "shadowgraph/graph/libtorch.h"
#include "shadowgraph/passes/simplify.h"

namespace shadowgraph {
namespace {

class ConstantMerging {
 public:
  explicit ConstantMerging(Graph& graph)
      : graph_(graph),
        effects_(Effects::of(graph)),
        identity_(Identity::of(graph, effects_)),
        placeholders_(graph.storage_count(), 0),
        given_(graph.storage_count(), false),
        doomed_(graph.node_capacity(), false) {
    for (NodeId n : graph.nodes()) {
      const auto give = [&](ValueId v) {
        if (const StorageId s = graph.value(v).storage; s.valid()) given_[s.index] = true;
      };
      if (graph.is_placeholder(n)) {
        graph.for_each_output(n, [&](ValueId v) {
          if (const StorageId s = graph.value(v).storage; s.valid()) ++placeholders_[s.index];
        });
      } else if (is_end(graph.node(n).target) || effects_.unknown(n)) {
        graph.for_each_input(n, give);
      }
    }
  }

  MergeConstantsResult run() {
    MergeConstantsResult result;
    HashIndex known(64);
    for (NodeId n : graph_.nodes()) {
      const ValueId v = mergeable(n);
      if (!v.valid()) continue;
      const auto bytes = tensor_bytes(tensor_of(n));
      if (!bytes) continue;
      const uint64_t contents = std::hash<std::string_view>()(text(bytes->bytes));
      const uint32_t earlier = known.find_or_add(hash_of_type(graph_, v, contents), n.index, [&](uint32_t other) {
        const ValueId w = only_result(graph_, NodeId(other));
        return same_type_and_offset(graph_, v, w) &&
               graph_.storage(graph_.value(v).storage).bytes == graph_.storage(graph_.value(w).storage).bytes &&
               text(tensor_bytes(tensor_of(NodeId(other)))->bytes) == text(bytes->bytes);
      });
      if (earlier == n.index) continue;
      const ValueId kept = only_result(graph_, NodeId(earlier));
      graph_.replace_all_uses_with(v, kept);
      replacements_.add(v, kept);
      replacements_.add(n, NodeId(earlier));
      doomed_[n.index] = true;
      ++result.merged;
      result.bytes += graph_.storage(graph_.value(kept).storage).bytes;
    }
    replacements_.finish(graph_);
    erase_nodes(graph_, doomed_);
    return result;
  }

 private:
  static std::string_view text(const std::vector<uint8_t>& bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  const at::Tensor& tensor_of(NodeId n) const { return graph_.constant(graph_.arguments(n)[0].constant); }

  // The value of a constant that another may stand for, or that may stand for another; invalid if there is none.
  ValueId mergeable(NodeId n) const {
    if (graph_.node(n).target != target_of(Builtin::kConstant)) return {};
    const ValueId v = only_result(graph_, n);
    if (!v.valid() || graph_.arguments(n)[0].kind != ArgumentKind::kConstant) return {};
    const StorageId s = graph_.value(v).storage;
    if (!s.valid() || placeholders_[s.index] != 1 || given_[s.index] || effects_.final_version(s) != 0) return {};
    if (identity_.object_changes(v) || identity_.has_lazy_views(s) || graph_.value(v).requires_grad) return {};
    const at::Tensor& tensor = tensor_of(n);
    // All of its storage: a view of a larger tensor shows only a part of what it may be read as.
    if (!tensor.defined() || tensor.is_conj() || tensor.is_neg() || graph_.value(v).offset != 0 ||
        graph_.storage(s).bytes != graph_.logical_bytes(v)) {
      return {};
    }
    return v;
  }

  Graph& graph_;
  const Effects effects_;
  const Identity identity_;
  std::vector<uint32_t> placeholders_;  // by storage
  std::vector<bool> given_;             // by storage: to sg::output, sg::gradient or something unknown
  std::vector<bool> doomed_;
  Replacements replacements_;
};

}  // namespace

MergeConstantsResult merge_constants(Graph& graph) { return ConstantMerging(graph).run(); }

PassResult MergeConstantsResult::summary() const {
  return PassResult::of_changes({{"merged", merged}, {"bytes", bytes}});
}

}  // namespace shadowgraph
