#include <ATen/TensorOperators.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/lerp.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "ir/analysis/module_tree.h"
#include "ir/operators/operator_name.h"
#include "passes/decompose/decompositions.h"
#include "profiler/program_costs.h"
#include "shadowgraph/error.h"
#include "sharding/ranks/ranks.h"

namespace shadowgraph {
namespace {

using at::Tensor;

constexpr const char* kContextGroup = "context";
constexpr std::array kForward{
    "aten::_scaled_dot_product_flash_attention", "aten::_scaled_dot_product_efficient_attention",
    "aten::_scaled_dot_product_cudnn_attention", "aten::_scaled_dot_product_flash_attention_for_cpu"};
constexpr std::array kBackward{
    "aten::_scaled_dot_product_flash_attention_backward", "aten::_scaled_dot_product_efficient_attention_backward",
    "aten::_scaled_dot_product_cudnn_attention_backward", "aten::_scaled_dot_product_flash_attention_for_cpu_backward"};

template <class Names>
bool is_one_of(const Names& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

std::string place_of(const Graph& graph, NodeId node) {
  const std::string module = module_path(graph, node);
  return module.empty() ? "the model" : module;
}

class AttentionCall {
 public:
  AttentionCall(const c10::OperatorHandle& op, const torch::jit::Stack& arguments) : op_(op), arguments_(arguments) {}

  const Tensor& tensor(const char* name) const { return arguments_[place(name)].toTensor(); }
  const Tensor& gradient() const { return arguments_[0].toTensor(); }  // of the output, under any argument name
  bool causal() const { return arguments_[place("is_causal")].toBool(); }
  // Returns true for kernels that support grouped queries.
  bool takes_groups() const {
    const std::string& name = op_.operator_name().name;
    return name.find("_cpu") == std::string::npos && name.find("efficient") == std::string::npos;
  }

  AttentionCall with(const char* name, c10::IValue value) const {
    AttentionCall changed = *this;
    changed.arguments_[place(name)] = std::move(value);
    return changed;
  }
  AttentionCall with_gradient(const Tensor& gradient) const {
    AttentionCall changed = *this;
    changed.arguments_[0] = gradient;
    return changed;
  }
  torch::jit::Stack results() const {
    AttentionCall sized = *this;
    for (const auto& [name, of] : {std::pair("max_q", "query"), std::pair("max_k", "key")}) {
      if (const auto at = op_.schema().argumentIndexWithName(name)) {
        sized.arguments_[static_cast<size_t>(*at)] = sized.tensor(of).size(2);
      }
    }
    op_.callBoxed(sized.arguments_);
    return std::move(sized.arguments_);
  }

 private:
  size_t place(const char* name) const {
    const auto at = op_.schema().argumentIndexWithName(name);
    if (!at) throw Error(fmt::format("{} has no argument {}", toString(op_.operator_name()), name));
    return static_cast<size_t>(*at);
  }

  c10::OperatorHandle op_;
  torch::jit::Stack arguments_;
};

// Returns how often a model repeats each key head for grouped queries (by views of stride 0).
int64_t times_repeated(const Graph& graph, ValueId keys) {
  const auto producer = [&](ValueId of) { return graph.value(of).producer; };
  const auto first = [&](NodeId node) { return graph.arguments(node)[0].ref.value; };
  const NodeId view = producer(keys);
  if (graph.is_placeholder(view) || !graph.facts(view).is_view || graph.sizes(first(view)).size() != 5) return 1;
  const NodeId copy = producer(first(view));
  if (graph.is_placeholder(copy) || graph.target(copy).name() != "aten::clone") return 1;
  const ValueId spread = first(copy);
  return graph.sizes(keys).size() == 4 && graph.strides(spread)[2] == 0 ? graph.sizes(spread)[2] : 1;
}

Tensor of_group(const char* name, const Tensor& tensor, std::vector<c10::IValue> more) {
  static c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  torch::jit::Stack stack{tensor};
  stack.insert(stack.end(), more.begin(), more.end());
  dispatcher.findSchemaOrThrow(name, "").callBoxed(stack);
  return stack[0].toTensor();
}
Tensor waited(const Tensor& sent) { return of_group("_c10d_functional::wait_tensor", sent, {}); }

// Returns one of the copies of each repeated head.
Tensor once(const Tensor& heads, int64_t times) {
  return times == 1 ? heads : heads.unflatten(1, {-1, times}).select(2, 0);
}
Tensor repeated(const Tensor& heads, int64_t times) {
  if (times == 1) return heads;
  c10::DimVector sizes(heads.sizes());
  sizes.insert(sizes.begin() + 2, times);
  return heads.unsqueeze(2).expand(sizes).clone(at::MemoryFormat::Contiguous).flatten(1, 2);
}

// Merges the attention to further keys into the previous result, by log-sum-exp.
void add_found(const Tensor& out, const Tensor& statistics, const Tensor& more, const Tensor& of_more) {
  const auto with_width = [](const Tensor& of) { return of.dim() == 3 ? of.unsqueeze(-1) : of; };
  const auto wide = c10::isReducedFloatingType(out.scalar_type()) ? at::kFloat : out.scalar_type();
  const Tensor share = at::sigmoid(with_width(of_more) - with_width(statistics)).to(wide);
  out.copy_(at::lerp(out.to(wide), more.to(wide), share));
  statistics.copy_(at::logaddexp(statistics, of_more));
}

class ContextExchange {
 public:
  ContextExchange(Graph& graph, const ContextRanks& over) : graph_(graph), over_(over) {}

  void run() {
    const std::vector<NodeId> calls = calls_of_attention();
    add_group_note(graph_, {.name = kContextGroup,
                            .size = over_.ranks,
                            .rank = over_.rank,
                            .ranks = ranks_of_group(over_.ranks, over_.apart),
                            .axis = kContextGroup});
    const GroupsOfGraph groups(graph_);
    ExpansionTable table;
    for (const char* name : kForward) table.add_boxed(name, of(&ContextExchange::forward));
    for (const char* name : kBackward) table.add_boxed(name, of(&ContextExchange::backward));
    for (const char* name : {"aten::arange", "aten::arange.start"})
      table.add_boxed(name, of(&ContextExchange::positions));
    Expander expander(graph_, table);
    for (const NodeId node : calls) {
      const Argument* key = graph_.find_argument(node, "key");
      times_ = key != nullptr ? times_repeated(graph_, key->ref.value) : 1;
      const std::string module = place_of(graph_, node), name = graph_.target(node).name();
      try {
        if (const auto why = expander.expand(node)) throw Error(*why);
      } catch (const Error& error) {
        throw Error(fmt::format("context parallelism cannot split {} in {}: {}", name, module, error.what()));
      }
    }
    expander.relink();
  }

 private:
  // Attention of some queries to some keys of other ranks.
  struct Part {
    bool last_chunk = false;  // queries of the last chunk only; otherwise all
    enum class Keys : uint8_t { kFirstChunksBefore, kBehind, kAll } keys = Keys::kAll;
  };

  // Backward calls first, since their operands are results of forward; then positions.
  std::vector<NodeId> calls_of_attention() {
    std::vector<NodeId> calls, positions;
    for (NodeId node = graph_.last(); node.valid(); node = graph_.node(node).previous) {
      if (graph_.target(node).kind() != TargetKind::kOperator) continue;
      const std::string& name = graph_.target(node).name();
      const bool known = is_one_of(kForward, name) || is_one_of(kBackward, name);
      if (known) calls.push_back(node);
      if (is_one_of(kForward, name)) read_token_count(node);
      if (name == "aten::arange" || name == "aten::arange.start") positions.push_back(node);
      if (!known && name.find("attention") != std::string::npos)
        refuse(node, "this attention operator is not supported");
    }
    if (tokens_ == 0) {
      throw Error("context parallelism found no attention; call torch.nn.functional.scaled_dot_product_attention");
    }
    for (const NodeId node : graph_.nodes()) {
      const std::string_view name = without_overload(graph_.target(node).name());
      if (name != "aten::_softmax" && name != "aten::_safe_softmax") continue;
      const auto sizes = graph_.sizes(graph_.results(node)[0].ref.value);
      if (sizes.size() > 2 && sizes.back() == tokens_)
        refuse(node, "attention written out as softmax is not supported");
    }
    for (const NodeId node : positions) {
      const auto sizes = graph_.sizes(graph_.results(node)[0].ref.value);
      if (sizes[0] == tokens_) calls.push_back(node);
    }
    return calls;
  }

  [[noreturn]] void refuse(NodeId node, const char* why) const {
    throw Error(fmt::format(
        "context parallelism cannot split {} in {}: {}; call torch.nn.functional.scaled_dot_product_attention "
        "without a mask",
        graph_.target(node).name(), place_of(graph_, node), why));
  }

  void read_token_count(NodeId node) {
    const int64_t queries = graph_.sizes(graph_.find_argument(node, "query")->ref.value)[2];
    const Argument* causal = graph_.find_argument(node, "is_causal");
    const bool is_causal = causal != nullptr && causal->kind == ArgumentKind::kBool && causal->b;
    if (is_causal && graph_.sizes(graph_.find_argument(node, "key")->ref.value)[2] != queries) {
      refuse(node, "causal attention must have as many keys as queries");
    }
    if (queries % 2 != 0) refuse(node, "the number of tokens per rank must be even");
    tokens_ = queries;
  }

  ExpansionTable::Boxed of(void (ContextExchange::*expand)(const c10::OperatorHandle&, torch::jit::Stack*)
                               const) const {
    return [this, expand](const c10::OperatorHandle& op, torch::jit::Stack* stack) { (this->*expand)(op, stack); };
  }

  std::vector<Part> parts_of(const AttentionCall& call) const {
    if (!call.causal()) return {{}};
    std::vector<Part> parts;
    if (over_.rank > 0) parts.push_back({.keys = Part::Keys::kFirstChunksBefore});
    if (over_.rank + 1 < over_.ranks) parts.push_back({.last_chunk = true, .keys = Part::Keys::kBehind});
    return parts;
  }
  static Tensor rows_of(const Part& part, const Tensor& of) {
    const int64_t chunk = of.size(2) / 2;
    return part.last_chunk ? of.narrow(2, chunk, chunk) : of;
  }
  // Returns a view of the keys of a part among those of all ranks: [batch, heads, ranks * tokens, width], or before it
  // with ranks and tokens as separate dimensions.
  Tensor keys_of(const Part& part, const Tensor& whole) const {
    const int64_t tokens = whole.size(2) / over_.ranks;
    if (part.keys == Part::Keys::kAll) return whole;
    if (part.keys == Part::Keys::kBehind) {
      return whole.narrow(2, (over_.rank + 1) * tokens, (over_.ranks - over_.rank - 1) * tokens);
    }
    return whole.unflatten(2, {over_.ranks, 2, -1}).narrow(2, 0, over_.rank).select(3, 0);
  }

  // Tokens come first in the transferred tensor, so that those of a rank are contiguous.
  Tensor sent(const Tensor& heads) const {
    return of_group("_c10d_functional::all_gather_into_tensor", once(heads, times_).permute({2, 0, 1, 3}).contiguous(),
                    {over_.ranks, kContextGroup});
  }
  static Tensor arrived(const Tensor& sent) { return waited(sent).permute({1, 2, 0, 3}); }

  AttentionCall on(const AttentionCall& call, const Part& part, const Tensor& keys, const Tensor& values) const {
    const auto taken = [&](const Tensor& whole) {
      Tensor heads = keys_of(part, whole);
      if (heads.dim() == 5) heads = heads.flatten(2, 3);
      return call.takes_groups() ? heads : repeated(heads, times_);
    };
    return call.with("query", rows_of(part, call.tensor("query")))
        .with("key", taken(keys))
        .with("value", taken(values))
        .with("is_causal", false);
  }

  // The local causal attention overlaps with the gather of remote keys.
  struct Gathered {
    torch::jit::Stack own;
    Tensor keys, values;
  };
  Gathered among_own_keys(const AttentionCall& call) const {
    const Tensor keys = sent(call.tensor("key")), values = sent(call.tensor("value"));
    torch::jit::Stack own;
    if (call.causal()) own = call.results();
    return {std::move(own), arrived(keys), arrived(values)};
  }

  void forward(const c10::OperatorHandle& op, torch::jit::Stack* stack) const {
    const AttentionCall call(op, *stack);
    check_call(op, *stack);
    auto [found, all_keys, all_values] = among_own_keys(call);
    const bool causal = call.causal();
    for (const Part& part : parts_of(call)) {
      torch::jit::Stack more = on(call, part, all_keys, all_values).results();
      if (!causal) {
        found = std::move(more);
        break;
      }
      const Tensor out = found[0].toTensor(), statistics = found[1].toTensor();
      if (statistics.size(2) != out.size(2) || more[1].toTensor().size(2) != more[0].toTensor().size(2)) {
        throw Error(
            "the number of tokens per chunk must be a multiple of 32, since this kernel pads to it; change the "
            "sequence length or the context-parallel degree");
      }
      add_found(rows_of(part, out), rows_of(part, statistics), more[0].toTensor(), more[1].toTensor());
    }
    *stack = std::move(found);
  }

  void backward(const c10::OperatorHandle& op, torch::jit::Stack* stack) const {
    const AttentionCall call(op, *stack);
    check_call(op, *stack);
    auto [found, all_keys, all_values] = among_own_keys(call);
    const bool causal = call.causal();
    const auto nothing = [](const Tensor& all) { return at::zeros_like(all.permute({2, 0, 1, 3})); };
    const Tensor of_keys = nothing(all_keys), of_values = nothing(all_values);
    for (const Part& part : parts_of(call)) {
      torch::jit::Stack more = on(call, part, all_keys, all_values)
                                   .with_gradient(rows_of(part, call.gradient()))
                                   .with("out", rows_of(part, call.tensor("out")))
                                   .with("logsumexp", rows_of(part, call.tensor("logsumexp")).contiguous())
                                   .results();
      put(part, more[1].toTensor(), of_keys);
      put(part, more[2].toTensor(), of_values);
      if (causal) {
        rows_of(part, found[0].toTensor()).add_(more[0].toTensor());
      } else {
        found = {more[0], at::zeros_like(call.tensor("key")), at::zeros_like(call.tensor("value"))};
        found.insert(found.end(), more.begin() + 3, more.end());
      }
    }
    const Tensor sum_of_keys = summed(of_keys), sum_of_values = summed(of_values);
    once(found[1].toTensor(), times_).add_(arrived(sum_of_keys));
    once(found[2].toTensor(), times_).add_(arrived(sum_of_values));
    *stack = std::move(found);
  }

  void put(const Part& part, const Tensor& gradient, const Tensor& all) const {
    const Tensor place = keys_of(part, all.permute({1, 2, 0, 3}));
    const bool apart = gradient.size(1) != all.size(2);  // one gradient per repeated key head
    Tensor of = apart ? gradient.unflatten(1, {-1, times_}).sum(2) : gradient;
    if (place.dim() == 5) of = of.unflatten(2, {over_.rank, -1});
    place.copy_(of);
  }
  Tensor summed(const Tensor& gradients) const {
    return of_group("_c10d_functional::reduce_scatter_tensor", gradients, {"sum", over_.ranks, kContextGroup});
  }

  static void check_call(const c10::OperatorHandle& op, const torch::jit::Stack& arguments) {
    const auto argument = [&](const char* name) {
      const auto at = op.schema().argumentIndexWithName(name);
      return at ? arguments[static_cast<size_t>(*at)] : c10::IValue();
    };
    for (const char* mask : {"attn_bias", "attn_mask"}) {
      const c10::IValue given = argument(mask);
      if (given.isTensor() && given.toTensor().defined()) {
        throw Error("the call has a mask; only is_causal=True is supported");
      }
    }
    if (argument("dropout_p").toDouble() != 0) {
      throw Error("the call has dropout, which is not reproducible across ranks; set the attention's dropout to 0");
    }
  }

  void positions(const c10::OperatorHandle& op, torch::jit::Stack* stack) const {
    const bool has_start = op.operator_name().overload_name == "start";
    const auto argument = [&](const char* name) {
      return (*stack)[static_cast<size_t>(*op.schema().argumentIndexWithName(name))];
    };
    if (has_start && argument("start").toScalar().toDouble() != 0) decline("it does not start at 0");
    const auto options = at::TensorOptions()
                             .dtype(argument("dtype").toOptional<c10::ScalarType>())
                             .device(argument("device").toOptional<c10::Device>());
    const int64_t chunk = tokens_ / 2, last = 2 * over_.ranks - 1 - over_.rank;
    const auto of_chunk = [&](int64_t index) { return at::arange(index * chunk, (index + 1) * chunk, options); };
    *stack = {at::cat({of_chunk(over_.rank), of_chunk(last)})};
  }

  Graph& graph_;
  const ContextRanks& over_;
  int64_t tokens_ = 0;  // per rank
  int64_t times_ = 1;   // repetitions of key heads in the current call
};

// FLOPs of products outside attention, and the number of keys of attention, in program order.
struct WorkOfTokens {
  std::vector<NodeId> nodes;
  std::vector<int64_t> work;
};
WorkOfTokens work_of_tokens(const Graph& step) {
  const ProgramCosts costs(step);
  WorkOfTokens all;
  for (const NodeId node : costs.nodes) {
    const bool attends =
        is_one_of(kForward, step.target(node).name()) || is_one_of(kBackward, step.target(node).name());
    const int64_t work =
        attends ? step.sizes(step.find_argument(node, "key")->ref.value)[2] : costs.flops().of(node).matmul;
    if (work == 0) continue;
    all.nodes.push_back(node);
    all.work.push_back(work);
  }
  return all;
}

}  // namespace

void check_tokens_are_independent(const Graph& whole, const Graph& part, int64_t ranks) {
  const WorkOfTokens of_whole = work_of_tokens(whole), of_part = work_of_tokens(part);
  if (of_whole.work.size() != of_part.work.size()) {
    throw Error(
        fmt::format("context parallelism cannot split the sequence: with {} times as many tokens the step has {} "
                    "products instead of {}, so the model's code depends on the number of tokens",
                    ranks, of_whole.work.size(), of_part.work.size()));
  }
  for (size_t i = 0; i < of_part.work.size(); ++i) {
    if (of_whole.work[i] == of_part.work[i] * ranks) continue;
    throw Error(
        fmt::format("context parallelism cannot split the sequence: {} in {} takes {} times the work for {} "
                    "times as many tokens, so it mixes tokens",
                    part.target(of_part.nodes[i]).name(), place_of(part, of_part.nodes[i]),
                    static_cast<double>(of_whole.work[i]) / static_cast<double>(of_part.work[i]), ranks));
  }
}

Graph shard_sequence_over(Graph step, const ContextRanks& over) {
  if (over.ranks == 1) return step;
  if (over.rank < 0 || over.rank >= over.ranks) {
    throw Error(fmt::format("rank {} is not among {} context parallel ranks", over.rank, over.ranks));
  }
  ContextExchange(step, over).run();
  return step;
}

}  // namespace shadowgraph
