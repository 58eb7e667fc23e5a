#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ir/analysis/operand_source.h"
#include "ir/edit/bulk_edits.h"
#include "shadowgraph/graph/analysis.h"
#include "shadowgraph/graph/edit.h"
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/shard/apply.h"
#include "sharding/overlap/hidden_collectives.h"

namespace shadowgraph {

// A sum of input gradients over ranks, and the weight gradients computed from the same output gradients.
struct InputGradientSum {
  NodeId collective;                     // reduce_scatter or all_reduce
  std::vector<NodeId> products;          // dX = dY W, the summed products
  std::vector<NodeId> weight_gradients;  // dW = dY^T X
};

// A collective and the product that is pipelined with it in pieces: the first product that reads gathered rows, or the
// one whose rows are scattered. `others` also read the gathered tensor, as a whole.
struct ProductInPieces {
  NodeId collective, product;
  int64_t pieces = 0;
  std::vector<NodeId> others;
};

struct DelayedNode {
  NodeId node;
  NodeId behind;  // later in the program; `node` and its inputs are issued right after it
};

namespace {

constexpr std::string_view kGather = "_c10d_functional::all_gather_into_tensor";
constexpr std::string_view kScatter = "_c10d_functional::reduce_scatter_tensor";
constexpr std::string_view kReduce = "_c10d_functional::all_reduce";

bool calls(const Graph& graph, NodeId node, std::string_view name) { return graph.target(node).name() == name; }

ValueId operand(const Graph& graph, NodeId node, std::string_view name) {
  const Argument* found = graph.find_argument(node, name);
  return found != nullptr && found->kind == ArgumentKind::kValue ? found->ref.value : ValueId();
}

bool is_product(const Graph& graph, NodeId node) { return calls(graph, node, "aten::mm"); }

// wait_tensor returns its operand; it counts as a collective, not as a view.
bool is_plain_view(const Graph& graph, NodeId node) {
  return graph.facts(node).is_view && !graph.facts(node).collective && !graph.is_placeholder(node);
}

ValueId behind_views(const Graph& graph, ValueId value) { return source_of(graph, value, LookThrough::kViews); }

bool is_weight(const Graph& graph, ValueId value) {
  return parameter_of_operand(graph, value, LookThrough::kCasts).valid();
}

// Returns true if neither operand of a backward product is a weight.
bool is_weight_gradient(const Graph& graph, NodeId product) {
  return graph.node(product).phase == Graph::kBackward && !is_weight(graph, operand(graph, product, "self")) &&
         !is_weight(graph, operand(graph, product, "mat2"));
}

// Returns the operand of a product with a weight that is not the weight; invalid for other nodes.
ValueId activation_operand(const Graph& graph, NodeId product) {
  const ValueId left = operand(graph, product, "self"), right = operand(graph, product, "mat2");
  if (is_weight(graph, left) == is_weight(graph, right)) return {};
  return is_weight(graph, left) ? right : left;
}

// Returns the all_gather that produced an operand of a product, looking through views; invalid without one.
NodeId gather_behind(const Graph& graph, ValueId operand_of_product) {
  const NodeId wait = graph.value(behind_views(graph, operand_of_product)).producer;
  if (!calls(graph, wait, "_c10d_functional::wait_tensor")) return {};
  const NodeId gather = graph.value(operand(graph, wait, "tensor")).producer;
  return calls(graph, gather, kGather) ? gather : NodeId();
}

std::vector<NodeId> products_of(const Graph& graph, ValueId value, std::vector<NodeId>* others = nullptr) {
  std::vector<NodeId> products;
  std::vector<ValueId> open{value};
  while (!open.empty()) {
    const ValueId v = open.back();
    open.pop_back();
    graph.for_each_use(v, [&](NodeId user) {
      if (is_product(graph, user)) {
        if (std::ranges::find(products, user) == products.end()) products.push_back(user);
      } else if (is_plain_view(graph, user)) {
        graph.for_each_output(user, [&](ValueId made) { open.push_back(made); });
      } else if (others != nullptr) {
        others->push_back(user);
      }
    });
  }
  std::ranges::sort(products, [&](NodeId a, NodeId b) { return graph.is_before(a, b); });
  return products;
}

// Returns the products with a weight that are summed into a value; empty if anything else is.
std::vector<NodeId> summed(const Graph& graph, ValueId value) {
  std::vector<NodeId> products;
  std::vector<ValueId> open{value};
  while (!open.empty()) {
    const ValueId v = behind_views(graph, open.back());
    open.pop_back();
    const NodeId producer = graph.value(v).producer;
    if (is_product(graph, producer) && activation_operand(graph, producer).valid()) {
      products.push_back(producer);
    } else if (calls(graph, producer, "aten::add.Tensor") || calls(graph, producer, "aten::add_.Tensor")) {
      for (const char* name : {"self", "other"}) {
        const ValueId part = operand(graph, producer, name);
        if (!part.valid()) return {};
        open.push_back(part);
      }
    } else if (calls(graph, producer, "aten::clone")) {  // makes the pieces of each rank contiguous
      open.push_back(operand(graph, producer, "self"));
    } else {
      return {};
    }
  }
  return products;
}

// Gathers inputs again in backward, for the weight gradients of each sum: collective and wait are placed before the
// first of them and of the summed products. Returns the number of inputs gathered again.
class GatherAgain {
 public:
  explicit GatherAgain(Graph& graph) : graph_(graph), effects_(Effects::of(graph)) {}

  int64_t run(std::span<const InputGradientSum> sums) {
    int64_t count = 0;
    for (const InputGradientSum& sum : sums) count += again(sum);
    if (count > 0) {
      keep_parts();
      free_storages_after_last_use(graph_, changed_);
    }
    return count;
  }

 private:
  int64_t again(const InputGradientSum& sum) {
    NodeId first = sum.products.front();
    for (const auto* of : {&sum.products, &sum.weight_gradients}) {
      for (const NodeId product : *of) first = graph_.is_before(product, first) ? product : first;
    }
    std::map<NodeId, std::vector<NodeId>> readers;  // by gather
    for (const NodeId weights : sum.weight_gradients) {
      graph_.for_each_input(weights, [&](ValueId v) {
        const NodeId gather = gather_behind(graph_, v);
        // Gathers in backward are of the gradient, or of an input that has just been recomputed.
        if (gather.valid() && graph_.node(gather).phase == Graph::kForward && is_unchanged(gather)) {
          readers[gather].push_back(weights);
        }
      });
    }
    const auto before = std::ssize(made_);
    for (const auto& [gather, users] : readers) gather_for(gather, first, users);
    return std::ssize(made_) - before;
  }

  // Returns true if the gathered shard has not been written to since.
  bool is_unchanged(NodeId gather) const {
    return std::ranges::all_of(effects_.reads(gather), [&](const StorageVersion& read) {
      return effects_.is_generator(read.storage) || effects_.final_version(read.storage) == read.version;
    });
  }

  // Repeats a call: in new memory, or as a view of `source`.
  ValueId repeat(InsertionPoint& at, NodeId node, ValueId source, bool is_view) {
    const auto old = graph_.arguments(node);
    std::vector<Argument> arguments(old.begin(), old.end());
    arguments[0] = Argument::of_value(source);
    const ValueId like = graph_.results(node)[0].ref.value;
    const NodeId made = at.insert(graph_.node(node).target, arguments);
    StorageId storage = graph_.value(source).storage;
    if (!is_view) {
      const Storage before = graph_.storage(graph_.value(like).storage);
      storage = graph_.add_storage({.bytes = before.bytes,
                                    .device_type = before.device_type,
                                    .device_index = before.device_index,
                                    .born = made});
      changed_.insert(storage);
    }
    const std::vector<int64_t> sizes(graph_.sizes(like).begin(), graph_.sizes(like).end());
    const std::vector<int64_t> strides(graph_.strides(like).begin(), graph_.strides(like).end());
    const Value value = graph_.value(like);
    return graph_.add_tensor_result(made, {.dtype = value.dtype,
                                           .sizes = sizes,
                                           .strides = strides,
                                           .storage = storage,
                                           .offset = value.offset,
                                           .device = value.device()});
  }

  void gather_for(NodeId gather, NodeId first, const std::vector<NodeId>& users) {
    InsertionPoint at(graph_, first);
    const ValueId part = graph_.arguments(gather)[0].ref.value;
    const ValueId whole = graph_.results(gather)[0].ref.value;
    changed_.insert(graph_.value(whole).storage);
    // Consecutive sums, as of queries and keys, share one gather.
    std::map<ValueId, ValueId>& made = made_[gather];
    if (made.empty()) made[whole] = repeat(at, gather, part, /*is_view=*/false);
    for (const NodeId user : users) {
      std::vector<ValueId> operands;
      graph_.for_each_input(user, [&](ValueId v) { operands.push_back(v); });
      for (const ValueId operand : operands) {
        if (gather_behind(graph_, operand) != gather) continue;
        std::vector<ValueId> chain;  // from the operand back to the gather
        for (ValueId v = operand; !made.contains(v); v = graph_.arguments(graph_.value(v).producer)[0].ref.value) {
          chain.push_back(v);
        }
        for (auto v = chain.rbegin(); v != chain.rend(); ++v) {
          const NodeId producer = graph_.value(*v).producer;
          made[*v] = repeat(at, producer, made.at(graph_.arguments(producer)[0].ref.value), /*is_view=*/true);
        }
        graph_.replace_uses_if(operand, made.at(operand), [&](NodeId n, const Argument&) { return n == user; });
      }
    }
  }

  // Saves the shard for backward instead of the gathered tensor.
  void keep_parts() {
    std::set<StorageId> wholes;
    for (const auto& [gather, made] : made_) {
      const ValueId part = graph_.arguments(gather)[0].ref.value;
      wholes.insert(graph_.value(graph_.results(gather)[0].ref.value).storage);
      const SavedTensor saved{.value = part, .role = SavedRole::kArgument, .index = 0};
      graph_.set_saved(gather, {&saved, 1});
    }
    std::set<StorageId> still_read;
    for (const NodeId node : graph_.nodes()) {
      if (graph_.node(node).phase == Graph::kForward) continue;
      graph_.for_each_input(node, [&](ValueId v) { still_read.insert(graph_.value(v).storage); });
    }
    for (const NodeId node : graph_.nodes()) {
      std::vector<SavedTensor> kept;
      for (const SavedTensor& saved : graph_.saved(node)) {
        const StorageId storage = graph_.value(saved.value).storage;
        if (!wholes.contains(storage) || still_read.contains(storage)) kept.push_back(saved);
      }
      if (kept.size() != graph_.saved(node).size()) graph_.set_saved(node, kept);
    }
  }

  Graph& graph_;
  const Effects effects_;
  std::set<StorageId> changed_;                        // gathered in forward and again
  std::map<NodeId, std::map<ValueId, ValueId>> made_;  // by gather: repeated results and views
};

// Program order, except for held-back nodes and for waits of collectives: these, and views of their results, are issued
// right before their first use. Inputs of a node always precede it. Memory is freed where it was, or after the last
// use. Linear.
class IssueOrder {
 public:
  IssueOrder(Graph& graph, std::span<const DelayedNode> held) : graph_(graph), needs_(Dependences::of(graph)) {
    for (const DelayedNode& one : held) behind_[one.node] = one.behind;
    NodeId before;
    for (const NodeId node : graph.nodes()) {
      if (!graph.facts(node).collective || waits(node)) continue;
      collective_before_[node] = std::exchange(before, node);
    }
  }

  void run() {
    for (const NodeId node : graph_.nodes()) {
      if (state_[node] == kIssued) continue;
      if (ends(node)) {
        issue_rest();
        issue(node);
        continue;
      }
      if (graph_.facts(node).collective && !waits(node)) issue_waits_like(node);
      NodeId behind = std::as_const(behind_)[node];
      bool needs_lazy = false;
      for_each_need(node, [&](NodeId need) {
        if (state_[need] == kHeld) behind = std::as_const(behind_)[need];
        needs_lazy |= state_[need] == kLazy;
      });
      const bool is_view = graph_.facts(node).is_view && !graph_.is_placeholder(node);
      if (behind.valid() && behind != node && state_[behind] != kIssued) {
        behind_[node] = behind;
        state_[node] = kHeld;
        of_[behind].push_back(node);
        transfer_frees(node);
      } else if (waits(node) || (is_view && needs_lazy)) {
        state_[node] = kLazy;
        lazy_.push_back(node);
        if (waits(node)) lazy_waits_[graph_.node(waited_by(node)).target].push_back(node);
        transfer_frees(node);
      } else {
        issue(node);
        if (!graph_.is_placeholder(node)) stays_ = node;
      }
    }
    issue_rest();
    for (const auto& [node, storages] : transferred_frees_) {
      std::vector<StorageId> all(graph_.frees(node).begin(), graph_.frees(node).end());
      all.insert(all.end(), storages.begin(), storages.end());
      graph_.set_frees(node, all);
    }
    graph_.reorder(order_);
  }

 private:
  enum State : uint8_t { kAhead, kHeld, kLazy, kIssued };

  bool waits(NodeId node) const { return graph_.target(node).name() == "_c10d_functional::wait_tensor"; }

  NodeId waited_by(NodeId wait) const { return graph_.value(graph_.arguments(wait)[0].ref.value).producer; }

  bool ends(NodeId node) const {
    return graph_.node(node).target == target_of(Builtin::kOutput) ||
           graph_.node(node).target == target_of(Builtin::kGradient);
  }
  // Returns true if no node in its phase reads its results, except views.
  bool leaves_phase(NodeId node) const {
    bool leaves = true;
    graph_.for_each_output(node, [&](ValueId made) {
      graph_.for_each_use(made, [&](NodeId user) {
        const bool here = graph_.node(user).phase == graph_.node(node).phase && !ends(user);
        leaves &= !here || (state_[user] == kLazy && leaves_phase(user));
      });
    });
    return leaves;
  }

  // Waits for results that leave the phase before its next collective of the kind, since a sum keeps sent memory alive.
  void issue_waits_like(NodeId collective) {
    std::vector<NodeId>& lazy = lazy_waits_[graph_.node(collective).target];
    std::vector<NodeId> stay;
    for (const NodeId node : lazy) {
      if (state_[node] != kLazy) continue;
      if (leaves_phase(node)) {
        issue(node);
      } else {
        stay.push_back(node);
      }
    }
    lazy = std::move(stay);
  }

  // Collectives keep their order. A wait is ordered only with its collective and with readers of its result.
  template <class F>
  void for_each_need(NodeId node, F&& f) const {
    const bool in_order = graph_.facts(node).collective;
    for (const NodeId need : needs_.before(node)) {
      if (in_order && graph_.facts(need).collective && (waits(node) || waits(need)) && !reads(node, need)) continue;
      f(need);
    }
    if (const NodeId before = collective_before_[node]; before.valid()) f(before);
  }
  bool reads(NodeId node, NodeId need) const {
    bool found = false;
    graph_.for_each_output(need, [&](ValueId made) {
      const StorageId storage = graph_.value(made).storage;
      graph_.for_each_input(node, [&](ValueId v) { found |= graph_.value(v).storage == storage; });
    });
    return found;
  }

  // Storages freed at a node that moves are freed at the previous node, or after their last use.
  void transfer_frees(NodeId node) {
    if (!stays_.valid() || graph_.frees(node).empty()) return;
    std::vector<StorageId>& left = transferred_frees_[stays_];
    left.insert(left.end(), graph_.frees(node).begin(), graph_.frees(node).end());
    graph_.set_frees(node, {});
  }

  // Issues the inputs first, in program order unless constrained otherwise.
  void issue(NodeId node) {
    std::vector<NodeId> open{node};
    while (!open.empty()) {
      const NodeId next = open.back();
      if (state_[next] == kIssued) {
        open.pop_back();
        continue;
      }
      const size_t before = open.size();
      for_each_need(next, [&](NodeId need) {
        if (state_[need] != kIssued) open.push_back(need);
      });
      if (open.size() != before) {
        std::sort(open.begin() + static_cast<ptrdiff_t>(before), open.end(),
                  [&](NodeId a, NodeId b) { return graph_.is_before(b, a); });
        continue;
      }
      open.pop_back();
      state_[next] = kIssued;
      order_.push_back(next);
      const auto waiting = of_.find(next);
      if (waiting == of_.end()) continue;
      std::vector<NodeId> now = std::move(waiting->second);
      of_.erase(waiting);
      open.insert(open.end(), now.rbegin(), now.rend());
    }
  }

  void issue_rest() {
    for (const NodeId node : lazy_) issue(node);
    lazy_.clear();
    while (!of_.empty()) issue(of_.begin()->first);
  }

  Graph& graph_;
  const Dependences needs_;
  IdMap<NodeId, uint8_t> state_{kAhead};
  IdMap<NodeId, NodeId> behind_, collective_before_;
  std::unordered_map<NodeId, std::vector<NodeId>> of_;
  std::vector<NodeId> lazy_;
  std::map<TargetId, std::vector<NodeId>> lazy_waits_;  // by the operator of their collective
  std::vector<NodeId> order_;
  NodeId stays_;  // last node issued at its original position
  std::unordered_map<NodeId, std::vector<StorageId>> transferred_frees_;
};

// Keeps sent memory alive until the wait.
void keep_sent_memory(Graph& graph) {
  for (const NodeId wait : nodes_calling(graph, "_c10d_functional::wait_tensor")) {
    const NodeId collective = graph.value(graph.arguments(wait)[0].ref.value).producer;
    if (graph.is_placeholder(collective)) continue;
    std::vector<StorageId> sent;
    graph.for_each_input(collective, [&](ValueId v) { sent.push_back(graph.value(v).storage); });
    for (const StorageId storage : sent) graph.extend_lifetime(storage, wait);
  }
}

// Returns true for views that keep rows, as in linear layers; transposed ones, as for attention heads, do not.
bool keeps_rows(const Graph& graph, NodeId node) {
  const std::string_view name = graph.target(node).name();
  return name == "aten::view" || name == "aten::_unsafe_view";
}

}  // namespace

std::vector<InputGradientSum> input_gradient_sums(const Graph& graph) {
  std::vector<InputGradientSum> sums;
  for (const NodeId node : graph.nodes()) {
    if (graph.node(node).phase != Graph::kBackward) continue;
    if (!calls(graph, node, kScatter) && !calls(graph, node, kReduce)) continue;
    InputGradientSum sum{.collective = node, .products = summed(graph, operand(graph, node, "input"))};
    for (const NodeId product : sum.products) {
      const ValueId gradient = behind_views(graph, activation_operand(graph, product));
      for (const NodeId other : products_of(graph, gradient)) {
        if (other != product && is_weight_gradient(graph, other)) sum.weight_gradients.push_back(other);
      }
    }
    if (!sum.weight_gradients.empty()) sums.push_back(std::move(sum));
  }
  return sums;
}

std::vector<ProductInPieces> products_in_pieces(const Graph& graph, const std::vector<InputGradientSum>& hidden) {
  std::set<NodeId> is_hidden;
  for (const InputGradientSum& sum : hidden) is_hidden.insert(sum.collective);
  std::vector<ProductInPieces> found;
  std::set<NodeId> taken;
  for (const NodeId node : graph.nodes()) {
    const bool gathers = calls(graph, node, kGather);
    if (!gathers && !calls(graph, node, kScatter)) continue;
    const Argument* size = graph.find_argument(node, "group_size");
    if (size == nullptr || size->kind != ArgumentKind::kInt || size->i < 2) continue;
    ProductInPieces one{.collective = node, .pieces = size->i};
    if (gathers) {
      const NodeId wait = graph.node(node).next;
      if (!calls(graph, wait, "_c10d_functional::wait_tensor")) continue;
      std::vector<NodeId> readers = products_of(graph, graph.results(wait)[0].ref.value, &one.others);
      for (const NodeId reader : readers) {
        const bool by_rows = is_weight(graph, operand(graph, reader, "mat2")) &&
                             gather_behind(graph, operand(graph, reader, "self")) == node;
        if (by_rows && !one.product.valid()) {
          one.product = reader;
        } else if (!by_rows) {
          one.others.push_back(reader);
        }
      }
      if (!one.product.valid()) continue;
    } else {
      if (is_hidden.contains(node)) continue;
      const ValueId made = behind_views(graph, operand(graph, node, "input"));
      const NodeId product = graph.value(made).producer;
      if (!is_product(graph, product) || !is_weight(graph, operand(graph, product, "mat2"))) continue;
      one.product = product;
    }
    if (taken.insert(one.product).second) found.push_back(std::move(one));  // one collective per product
  }
  return found;
}

OverlapResult overlap_collectives(Graph& rank, CollectiveOverlap overlap) {
  OverlapResult result;
  if (overlap == CollectiveOverlap::kNone) return result;
  const std::vector<InputGradientSum> sums = input_gradient_sums(rank);
  result.overlapped_reductions = std::ssize(sums);
  result.regathered = GatherAgain(rank).run(sums);
  std::vector<DelayedNode> held;
  for (const InputGradientSum& sum : sums) {
    for (const NodeId weights : sum.weight_gradients) held.push_back({weights, sum.collective});
  }
  if (overlap == CollectiveOverlap::kPieces) {
    for (const ProductInPieces& one : products_in_pieces(rank, sums)) {
      const std::string pieces = std::to_string(one.pieces);
      rank.set_note(one.collective, "pieces", pieces);
      rank.set_note(one.product, "pieces", pieces);
      ++result.in_pieces;
      // Readers of the whole gathered tensor come after other nodes.
      for (const NodeId other : one.others) {
        if (rank.is_before(other, one.product)) held.push_back({other, one.product});
      }
    }
  }
  IssueOrder(rank, held).run();
  keep_sent_memory(rank);
  return result;
}

HiddenCollectives::HiddenCollectives(const Graph& graph, const StepTime& time, CollectiveOverlap overlap, int64_t ranks)
    : graph_(graph),
      time_(time),
      in_pieces_(overlap == CollectiveOverlap::kPieces),
      ranks_(static_cast<double>(ranks)) {
  if (overlap == CollectiveOverlap::kNone) return;
  find_weight_gradients();
  find_sums();
  find_gathers();
}

void HiddenCollectives::find_weight_gradients() {
  for (const NodeId node : graph_.nodes()) {
    if (!is_product(graph_, node) || !is_weight_gradient(graph_, node)) continue;
    for (const char* factor : {"self", "mat2"})
      of_weights_[behind_views(graph_, operand(graph_, node, factor))] += seconds(node);
  }
}

// An input gradient overlaps with the weight gradients of the same outputs. Sums in forward are pipelined in pieces.
void HiddenCollectives::find_sums() {
  for (const NodeId node : graph_.nodes()) {
    Products found;
    const std::string_view name = graph_.target(node).name();
    if (is_product(graph_, node)) {
      const ValueId beside = activation_operand(graph_, node);
      const bool backward = graph_.node(node).phase == Graph::kBackward;
      if (backward && beside.valid()) {
        found.reduce = std::as_const(of_weights_)[source_of(graph_, beside, LookThrough::kViews)];
        found.scatter = found.reduce;
      } else if (backward) {
        found.weight_gradient = 2 * seconds(node);  // until the next sum: the weight gradient and the input gradient
      } else if (beside.valid() && in_pieces_) {
        found.scatter = seconds_in_pieces(node);
      }
    } else if (name == "aten::add.Tensor" || name == "aten::add_.Tensor") {  // a sum of products that is reduced once
      const Argument* other = graph_.find_argument(node, "other");
      if (other->kind != ArgumentKind::kValue) continue;
      const Products& left = beside(operand(graph_, node, "self"));
      const Products& right = beside(other->ref.value);
      if (left.reduce > 0 && right.reduce > 0) found.reduce = found.scatter = left.reduce + right.reduce;
    } else if (keeps_rows(graph_, node) || name == "aten::clone") {
      found = beside(operand(graph_, node, "self"));
    } else if (name == "aten::t") {
      found.weight_gradient = beside(operand(graph_, node, "self")).weight_gradient;
    }
    if (found.scatter == 0 && found.weight_gradient == 0) continue;
    graph_.for_each_output(node, [&](ValueId v) { beside_[v] = found; });
  }
}

// If products run in pieces, rows are gathered during the previous rows' product; one piece is exposed. Rows gathered
// in forward are gathered again while the gradients of the products' inputs are computed, which takes as long.
void HiddenCollectives::find_gathers() {
  std::vector<NodeId> nodes;
  for (const NodeId node : graph_.nodes()) nodes.push_back(node);
  for (auto node = nodes.rbegin(); node != nodes.rend(); ++node) {
    Products found;
    if (is_product(graph_, *node) && is_weight(graph_, operand(graph_, *node, "mat2"))) {
      if (in_pieces_) found.gather = seconds_in_pieces(*node);
      if (graph_.node(*node).phase == Graph::kForward) found.gather_again = seconds(*node);
    } else if (keeps_rows(graph_, *node)) {
      graph_.for_each_output(*node, [&](ValueId v) {
        found.gather = std::max(found.gather, beside(v).gather);
        found.gather_again += beside(v).gather_again;
      });
    }
    if (found.gather == 0 && found.gather_again == 0) continue;
    Products& read = beside_[operand(graph_, *node, "self")];
    read.gather = std::max(read.gather, found.gather);
    read.gather_again += found.gather_again;
  }
}

}  // namespace shadowgraph
