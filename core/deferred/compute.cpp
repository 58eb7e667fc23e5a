// Runs parts of a recording on real tensors.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <c10/core/DefaultDtype.h>

#include <algorithm>

#include "core/deferred/mt19937_jump.h"
#include "core/deferred/record.h"
#include "core/fake/known_contents.h"
#include "core/libtorch/error_text.h"
#include "core/replay/replay_program.h"
#include "shadowgraph/deferred/deferred.h"
#include "shadowgraph/error.h"
#include "shadowgraph/graph/libtorch.h"
#include "shadowgraph/graph/text.h"

namespace shadowgraph {
namespace {

// Restores the default dtype that was active during recording, for operators whose result dtype depends on it.
class DefaultDtype {
 public:
  explicit DefaultDtype(at::ScalarType dtype) : before_(c10::get_default_dtype_as_scalartype()) { set(dtype); }
  ~DefaultDtype() { set(before_); }
  C10_DISABLE_COPY_AND_ASSIGN(DefaultDtype);

 private:
  static void set(at::ScalarType dtype) {
    if (dtype != c10::get_default_dtype_as_scalartype()) c10::set_default_dtype(c10::scalarTypeToTypeMeta(dtype));
  }
  const at::ScalarType before_;
};

// Finds the overload of `op` with an additional generator argument (aten::rand -> aten::rand.generator); nullopt if
// there is none.
struct WithGenerator {
  c10::OperatorHandle op;
  size_t position;
};
std::optional<WithGenerator> overload_with_generator(const c10::OperatorHandle& op) {
  const auto& schema = op.schema();
  const std::string& overload = schema.overload_name();
  const std::string name = overload.empty() ? "generator" : overload + "_generator";
  const auto found = c10::Dispatcher::singleton().findSchema({schema.name(), name});
  if (!found || found->schema().arguments().size() != schema.arguments().size() + 1) return std::nullopt;
  const auto position = found->schema().argumentIndexWithName("generator");
  return position ? std::optional(WithGenerator{*found, static_cast<size_t>(*position)}) : std::nullopt;
}

class Replay final : public Interpreter {
 public:
  // Actions after nodes; node and value ids are those of the piece.
  struct Hooks {
    struct Kept {
      StorageId storage;  // in the record
      ValueId through;
      uint32_t position = 0;
      bool stays = false;
    };
    std::unordered_map<NodeId, std::vector<Kept>> snapshots;
    // Storages of the record, by the node that uses them last, and their first values.
    std::unordered_map<NodeId, std::vector<StorageId>> finished;
    std::unordered_map<StorageId, ValueId> roots;
  };

  Replay(const RecipeGraph& piece, InterpreterOptions options, Hooks hooks, Snapshots& snapshots,
         RandomStreams& streams, std::optional<uint64_t> seed,
         const std::function<void(DeferredRecord::Computed)>& done)
      : Interpreter(piece.graph(), std::move(options)),
        piece_(piece),
        hooks_(std::move(hooks)),
        snapshots_(snapshots),
        streams_(streams),
        seed_(seed),
        done_(done) {}

  // Overrides the state before a draw (a node of the record), and receives the state after it.
  std::optional<NodeId> given_draw;
  RandomState given_state;

 protected:
  void run_node(NodeId node) override {
    const auto kept = hooks_.snapshots.find(node);
    if (kept == hooks_.snapshots.end()) {
      Interpreter::run_node(node);
    } else {
      std::vector<c10::Storage> written;  // read before the node, because set_ replaces the storage
      for (const Hooks::Kept& one : kept->second) written.push_back(value(one.through).toTensor().storage());
      Interpreter::run_node(node);
      for (size_t i = 0; i < written.size(); ++i) {
        const Hooks::Kept& one = kept->second[i];
        snapshots_.keep(one.storage, one.position, written[i], one.stays);
      }
    }
    const auto finished = hooks_.finished.find(node);
    if (finished == hooks_.finished.end()) return;
    for (const StorageId storage : finished->second) {
      const ValueId root = hooks_.roots.at(storage);
      at::Tensor tensor = value(root).toTensor();
      set_value(root, c10::IValue());
      done_({storage, std::move(tensor)});
    }
  }

  void call_operator(NodeId here, const c10::OperatorHandle& op, torch::jit::Stack& stack) override {
    const NodeId node = piece_.of_record(here);
    if (!piece_.is_copy(here) || !streams_.is_draw(node)) {
      op.callBoxed(stack);
      return;
    }
    const RandomStreams::Place place = streams_.place_of(node);
    const bool given = given_draw == node;
    const RandomState before = given   ? given_state
                               : seed_ ? independent_state(*seed_, place)
                                       : streams_.state_before(place);
    if (!generator_.defined()) generator_ = at::detail::createCPUGenerator();
    before.put_into(generator_);
    draw(op, stack);
    if (given) {
      given_state = RandomState::of(generator_);
    } else if (!seed_) {
      streams_.note_state_after(place, RandomState::of(generator_));
    }
  }

 private:
  void draw(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
    const size_t arguments = op.schema().arguments().size();
    if (const auto position = op.schema().argumentIndexWithName("generator")) {
      stack[stack.size() - arguments + static_cast<size_t>(*position)] = generator_;
      op.callBoxed(stack);
      return;
    }
    if (const auto other = overload_with_generator(op)) {
      const auto begin = stack.end() - static_cast<std::ptrdiff_t>(arguments);
      stack.insert(begin + static_cast<std::ptrdiff_t>(other->position), c10::IValue(generator_));
      other->op.callBoxed(stack);
      return;
    }
    static std::mutex of_process;
    const std::lock_guard lock(of_process);
    const DefaultGeneratorOverride scope(generator_);
    op.callBoxed(stack);
  }

  const RecipeGraph& piece_;
  Hooks hooks_;
  Snapshots& snapshots_;
  RandomStreams& streams_;
  std::optional<uint64_t> seed_;
  const std::function<void(DeferredRecord::Computed)>& done_;
  at::Generator generator_;
};

// Rewrites errors to refer to nodes of the record.
void run_nodes(Replay& replay, const RecipeGraph& piece, const Graph& record) {
  try {
    replay.run({});
  } catch (const ReplayError& error) {
    const NodeId node = error.node().valid() ? piece.of_record(error.node()) : NodeId();
    std::string what = error.what();
    if (const auto* nested = dynamic_cast<const std::nested_exception*>(&error)) {
      try {
        nested->rethrow_nested();
      } catch (const DeferredError&) {
        throw;  // errors from `done` pass through unchanged
      } catch (const std::exception& cause) {
        what = "while running " + to_text(record, node) + "\n  " + message_of(cause);
      }
    }
    std::throw_with_nested(DeferredError(what, node));
  }
}

// Writes of a run to one storage.
struct WritesOfRun {
  uint32_t count = 0;
  NodeId last;
  Replay::Hooks::Kept kept;
};

ValueId first_output(const Graph& graph, NodeId node) {
  ValueId first;
  graph.for_each_output(node, [&](ValueId value) {
    if (!first.valid()) first = value;
  });
  return first;
}

constexpr int64_t kShardWindow = int64_t{1} << 18;  // elements

// Returns whether a factory's results are the same for every element, with a size given by its arguments.
bool is_uniform_factory(const Target& target) {
  const OperatorFacts& facts = target.facts();
  if (!facts.written.empty() || !(facts.uninitialized || facts.fills)) return false;
  return facts.geometry_only || target.signature().position_of("size").has_value();
}

bool is_whole(const Graph& graph, ValueId value, int64_t numel) {
  return graph.value(value).kind == ValueKind::kTensor && graph.value(value).offset == 0 &&
         graph.numel(value) == numel && is_whole(graph, value);
}

// Returns why `step` cannot run window by window; empty if it can.
std::string obstacle(const Graph& graph, const Recipe::Step& step, int64_t numel) {
  if (step.role != Recipe::Role::kRun) return "";
  const Target& target = graph.target(step.node);
  if (target.kind() != TargetKind::kOperator) return target.name() + " is not an operator";
  const auto results = graph.results(step.node);
  if (results.size() != 1 || results[0].kind != ArgumentKind::kValue) {
    return target.name() + " does not return a single tensor";
  }
  bool whole = is_whole(graph, results[0].ref.value, numel);
  graph.for_each_input(step.node, [&](ValueId value) { whole = whole && is_whole(graph, value, numel); });
  if (!whole) return target.name() + " uses part of a tensor, or tensors of different sizes";
  const OperatorFacts& facts = target.facts();
  if (facts.random) {
    return random_fill_of(graph, step.node).kind != FillKind::kNone
               ? ""
               : target.name() + " draws random numbers that cannot be attributed to elements";
  }
  return facts.is_view || facts.pointwise || is_uniform_factory(target) ? "" : target.name() + " is not elementwise";
}

class WindowReplay final : public Interpreter {
 public:
  WindowReplay(const RecipeGraph& piece, InterpreterOptions options, DeferredRecord& record,
               std::optional<uint64_t> seed, int64_t numel)
      : Interpreter(piece.graph(), std::move(options)), piece_(piece), record_(record), seed_(seed), numel_(numel) {}

  // Returns elements [begin, end) as a 1-D tensor; begin must be a multiple of 16.
  at::Tensor window(int64_t begin, int64_t end) {
    begin_ = begin;
    count_ = end - begin;
    return run({}).outputs.at(0);
  }

 protected:
  void run_node(NodeId node) override {
    if (facts_of(node).is_view) {
      set_value(graph().results(node)[0].ref.value, value(graph().arguments(node)[0].ref.value));
    } else {
      Interpreter::run_node(node);
    }
  }

  void call_operator(NodeId node, const c10::OperatorHandle& op, torch::jit::Stack& stack) override {
    if (piece_.is_copy(node) && record_.streams().is_draw(piece_.of_record(node))) {
      draw(node, stack);
      return;
    }
    if (is_uniform_factory(graph().target(node))) {
      const auto& arguments = op.schema().arguments();
      for (size_t i = 0; i < arguments.size(); ++i) {
        if (arguments[i].name() == "size") stack[i] = std::vector<int64_t>{count_};
        if (arguments[i].name() == "stride") stack[i] = std::vector<int64_t>{1};
        if (arguments[i].name() == "physical_layout") stack[i] = std::vector<int64_t>{0};
        if (arguments[i].name() == "memory_format") stack[i] = c10::IValue();
      }
    }
    op.callBoxed(stack);
  }

 private:
  struct Position {
    RandomState state;
    uint64_t words = 0;  // skipped since the start of the draw
  };

  // Returns a generator positioned `words` words into the draw. Calls are mostly in ascending order.
  const at::Generator& generator_at(NodeId node, uint64_t words) {
    auto entry = positions_.find(node);
    if (entry == positions_.end() || entry->second.words > words) {
      const RandomStreams::Place place = record_.streams().place_of(piece_.of_record(node));
      Position first{seed_ ? independent_state(*seed_, place) : record_.streams().state_before(place), 0};
      entry = positions_.insert_or_assign(node, std::move(first)).first;
    }
    Position& position = entry->second;
    advance(position.state.engine, words - std::exchange(position.words, words));
    if (!generator_.defined()) generator_ = at::detail::createCPUGenerator();
    position.state.put_into(generator_);
    return generator_;
  }

  // Runs the fill for the next `count` elements: in place if the node is, as a factory otherwise.
  at::Tensor filled(NodeId node, const torch::jit::Stack& arguments, int64_t count, const at::Generator& generator) {
    const Value& result = graph().value(graph().results(node)[0].ref.value);
    at::Tensor piece = at::empty({count}, at::TensorOptions().dtype(result.dtype));
    const Target& target = graph().target(node);
    const Signature& signature = target.signature();
    const auto number = [&](std::string_view name, double otherwise) {
      const auto position = signature.position_of(name);
      return position && arguments[*position].isScalar() ? arguments[*position].toScalar().toDouble() : otherwise;
    };
    if (facts_of(node).is_in_place) {
      torch::jit::Stack stack = arguments;
      stack[0] = piece;
      if (const auto position = signature.position_of("generator")) stack[*position] = generator;
      find_operator(target)->callBoxed(stack);
      return piece;
    }
    const std::string& name = signature.name;
    if (name == "aten::rand" || name == "aten::rand_like") return piece.uniform_(0, 1, generator);
    if (name.starts_with("aten::randint")) {
      const auto integer = [&](std::string_view argument) {
        const auto position = signature.position_of(argument);
        return position ? arguments[*position].toInt() : 0;
      };
      return piece.random_(integer("low"), integer("high"), generator);
    }
    return piece.normal_(number("mean", 0), number("std", 1), generator);
  }

  void draw(NodeId node, torch::jit::Stack& stack) {
    const RandomFill fill = random_fill_of(graph(), node);
    const auto word_offset_of = [&](int64_t element) { return static_cast<uint64_t>(element) * fill.words_each; };
    at::Tensor piece;
    if (fill.kind == FillKind::kSerial) {
      piece = filled(node, stack, count_, generator_at(node, word_offset_of(begin_)));
    } else {
      const int64_t padded = (count_ + 15) / 16 * 16;
      piece = filled(node, stack, padded, generator_at(node, word_offset_of(begin_))).narrow(0, 0, count_);
      const int64_t remainder = numel_ % 16;
      const int64_t tail = numel_ - 16;
      if (remainder != 0 && begin_ + count_ > tail) {
        const at::ScalarType dtype = piece.scalar_type();
        const bool whole = dtype == at::kFloat || dtype == at::kDouble;
        const at::Tensor last =
            filled(node, stack, 16, generator_at(node, word_offset_of(whole ? numel_ : numel_ - remainder)));
        const int64_t from = std::max(begin_, tail);
        const int64_t length = begin_ + count_ - from;
        piece.narrow(0, from - begin_, length).copy_(last.narrow(0, from - tail, length));
      }
    }
    if (facts_of(node).is_in_place) {
      at::Tensor self = stack[0].toTensor();
      self.copy_(piece);
      piece = std::move(self);
    } else {
      piece = piece.clone();
    }
    stack.clear();
    stack.emplace_back(std::move(piece));
  }

  const OperatorFacts& facts_of(NodeId node) { return record_.graph().facts(piece_.of_record(node)); }

  const RecipeGraph& piece_;
  DeferredRecord& record_;
  std::optional<uint64_t> seed_;
  int64_t numel_, begin_ = 0, count_ = 0;
  std::unordered_map<NodeId, Position> positions_;
  at::Generator generator_;
};

void check_range(const at::Tensor& tensor, int64_t& dim, int64_t start, int64_t length) {
  const int64_t rank = tensor.dim();
  if (rank == 0 || dim < -rank || dim >= rank) {
    throw DeferredError(c10::str("dimension ", dim, " is out of range for a tensor with sizes ", tensor.sizes()));
  }
  if (dim < 0) dim += rank;
  if (start < 0 || length < 0 || start > tensor.size(dim) - length) {
    throw DeferredError(
        c10::str("range [", start, ", ", start + length, ") exceeds dimension ", dim, " of sizes ", tensor.sizes()));
  }
}

// Fills `result`: elements from `start` on of dimension `dim`, whose full size is `size`.
void fill_part(const at::Tensor& result, int64_t dim, int64_t start, int64_t size, WindowReplay& windows) {
  const at::Tensor flat = result.view({-1});
  const int64_t length = result.size(dim);
  int64_t inner = 1;
  for (int64_t d = dim + 1; d < result.dim(); ++d) inner *= result.size(d);
  const int64_t row = size * inner;  // elements per row of the whole tensor
  const int64_t part = length * inner;
  const int64_t rows = result.numel() / part;
  const int64_t numel = rows * row;
  // `done`: number of filled elements.
  for (int64_t done = 0; done < result.numel();) {
    const int64_t first = done / part * row + start * inner + done % part;
    const int64_t begin = first / 16 * 16;
    const int64_t end = std::min(numel, begin + kShardWindow);
    // Rounds the window up to the last element needed within the maximum window size.
    const int64_t last_row = std::min(rows - 1, (end - 1) / row);
    int64_t needed = first + 1;
    for (int64_t r = done / part; r <= last_row; ++r) {
      const int64_t to = std::min(end, r * row + start * inner + part);
      if (r * row + start * inner < end) needed = std::max(needed, to);
    }
    const at::Tensor window = windows.window(begin, std::min(numel, (needed + 15) / 16 * 16));
    while (done < result.numel()) {
      const int64_t from = done / part * row + start * inner + done % part;
      if (from >= needed) break;
      const int64_t count = std::min(part - done % part, needed - from);
      flat.narrow(0, done, count).copy_(window.narrow(0, from - begin, count));
      done += count;
    }
  }
}

}  // namespace

void DeferredRecord::check_constants(const std::vector<Recipe::Step>& steps) const {
  for (const Recipe::Step& step : steps) {
    for (const Argument& argument : graph().arguments(step.node)) {
      if (argument.kind != ArgumentKind::kConstant || argument.constant.index >= constant_contents_.size()) continue;
      const Contents& then = constant_contents_[argument.constant.index];
      const at::Tensor& tensor = graph().constant(argument.constant);
      const Contents now = Contents::of(tensor);
      if (now == then) continue;
      const std::string how =
          now.version != then.version
              ? c10::str(": version ", then.version, " then, ", now.version, " now")
              : std::string(now.sample ? ", through `.data`, NumPy or its storage" : ": its storage was freed");
      throw DeferredError(
          c10::str("a tensor created outside of deferred_init (", tensor.scalar_type(), " ", tensor.sizes(),
                   ", in the record: ", to_text(graph(), step.node), ") was modified since it was recorded", how,
                   ". Keep it unchanged until everything is materialized, or pass a clone to deferred_init"),
          step.node);
    }
  }
}

void DeferredRecord::run(Recipe::Group group, const ComputeOptions& options,
                         const std::function<void(Computed)>& done) {
  check_constants(group.steps);
  nodes_run_ += group.steps.size();
  const RecipeGraph piece(graph(), recipe_, group);
  Replay::Hooks hooks;
  InterpreterOptions replay;
  replay.device = options.device;
  replay.nodes = piece.nodes();
  std::unordered_map<StorageId, NodeId> last_touch;
  for (const StorageId storage : group.wanted) {
    const ValueId root = piece.value(first_value(graph(), storage));
    replay.only.push_back(root);
    hooks.roots[storage] = root;
    last_touch[storage] = NodeId();
  }
  // Contents computed with independent streams must not become snapshots.
  const bool keep = !options.independent_streams;
  std::unordered_map<StorageId, WritesOfRun> writes;
  for (const Recipe::Step& step : group.steps) {
    if (step.role == Recipe::Role::kIdentity) continue;
    const NodeId here = step.role == Recipe::Role::kSnapshot
                            ? piece.graph().value(piece.value(first_output(graph(), step.node))).producer
                            : piece.node(step.node);
    const auto touch = [&](ValueId value) {
      const auto wanted = last_touch.find(graph().value(value).storage);
      if (wanted != last_touch.end()) wanted->second = here;
    };
    graph().for_each_output(step.node, touch);
    if (step.role != Recipe::Role::kRun) continue;
    graph().for_each_input(step.node, touch);
    // A check may throw, so storages are handed over after it.
    if (graph().results(step.node).empty()) {
      for (auto& [storage, last] : last_touch) {
        if (last.valid()) last = here;
      }
    }
    if (!keep) continue;
    recipe_.for_each_written(step.node, [&](ValueId value) {
      const StorageId storage = graph().value(value).storage;
      if (!storage.valid()) return;
      WritesOfRun& of = writes[storage];
      if (of.last == here) return;
      of.last = here;
      of.kept = {storage, piece.value(value), step.node.index + 1, false};
      if (++of.count % snapshots_.spacing(storage) == 0) {
        of.kept.stays = true;
        hooks.snapshots[here].push_back(of.kept);
      }
    });
  }
  for (const auto& [storage, of] : writes) {
    if (of.kept.stays || (of.count < Snapshots::kLongHistory && !group.snapshots.contains(storage))) continue;
    hooks.snapshots[of.last].push_back(of.kept);
  }
  for (const StorageId storage : group.wanted) hooks.finished[last_touch.at(storage)].push_back(storage);
  const DefaultDtype dtype(default_dtype_);
  const RealCalls real;
  Replay interpreter(piece, std::move(replay), std::move(hooks), snapshots_, streams_, options.independent_streams,
                     done);
  run_nodes(interpreter, piece, graph());
}

void DeferredRecord::compute(const std::vector<StorageId>& storages, const ComputeOptions& options,
                             const std::function<void(Computed)>& done) {
  const Snapshots* snapshots = options.independent_streams ? nullptr : &snapshots_;
  for (Recipe::Group& group : recipe_.groups_for(storages, snapshots)) run(std::move(group), options, done);
}

at::Tensor DeferredRecord::value_of(const FakeTensorImpl& fake, const ComputeOptions& options) {
  at::Tensor first;
  compute({storage_of(fake)}, options, [&](Computed computed) { first = std::move(computed.tensor); });
  const RealCalls real;
  auto impl = first.unsafeGetTensorImpl()->shallow_copy_and_detach(c10::VariableVersion(0), true);
  impl->set_storage_and_dtype(first.storage(), fake.dtype());
  impl->set_sizes_and_strides(fake.sizes(), fake.strides(), fake.storage_offset());
  at::Tensor tensor(std::move(impl));
  tensor._set_conj(fake.is_conj());
  tensor._set_neg(fake.is_neg());
  return tensor;
}

RandomState DeferredRecord::run_draw(NodeId node, const RandomState& before) {
  const Recipe::Group group = recipe_.group_for_node(node, &snapshots_);
  check_constants(group.steps);
  nodes_run_ += group.steps.size();
  const RecipeGraph piece(graph(), recipe_, group);
  InterpreterOptions replay;
  replay.device = c10::Device(c10::kCPU);
  replay.nodes = piece.nodes();
  const DefaultDtype dtype(default_dtype_);
  const RealCalls real;
  const std::function<void(Computed)> none = [](Computed) {};
  Replay interpreter(piece, std::move(replay), {}, snapshots_, streams_, std::nullopt, none);
  interpreter.given_draw = node;
  interpreter.given_state = before;
  run_nodes(interpreter, piece, graph());
  return interpreter.given_state;
}

c10::Storage DeferredRecord::real_storage(StorageId id) {
  if (!id.valid() || real.empty()) return {};
  const auto entry = real.find(id);
  if (entry == real.end()) return {};
  auto alive = entry->second.storage.lock();
  if (!alive) {
    real.erase(entry);
    return {};
  }
  return c10::Storage(std::move(alive));
}

// Computes a shard of a tensor by running its recipe window by window, on 1-D pieces. This requires that element i of
// the result depends only on element i of earlier tensors, and on random numbers whose position in the generator's
// sequence is known for each element.
at::Tensor materialize_shard(const at::Tensor& tensor, int64_t dim, int64_t start, int64_t length,
                             const MaterializeOptions& options, bool never_whole) {
  check_range(tensor, dim, start, length);
  const FakeTensorImpl* fake = as_fake(tensor);
  const at::ScalarType dtype = options.dtype && tensor.is_floating_point() ? *options.dtype : tensor.scalar_type();
  std::vector<int64_t> sizes = tensor.sizes().vec();
  sizes[static_cast<size_t>(dim)] = length;
  if (fake == nullptr) {
    const at::Tensor part = tensor.detach().narrow(dim, start, length);
    return part.to(options.device.value_or(tensor.device()), dtype).clone(at::MemoryFormat::Contiguous);
  }
  const std::shared_ptr<DeferredRecord> record = DeferredRecord::of(*fake);
  if (!record) {
    throw DeferredError(c10::str("the fake tensor with sizes ", tensor.sizes(),
                                 " was not created by deferred_init, so it cannot be materialized"));
  }
  const std::lock_guard lock(record->mutex());
  show_host_writes(tensor, *record);
  const Graph& graph = record->graph();
  const StorageId storage = record->storage_of(*fake);
  const int64_t numel = tensor.numel();
  const c10::Device device = options.device.value_or(fake->simulated_device());

  const Recipe::Group group = std::move(record->recipe().groups_for({&storage, 1}).at(0));
  const ValueId root = first_value(graph, storage);
  std::string why;
  if (!tensor.is_contiguous() || fake->storage_offset() != 0 || tensor.is_conj() || tensor.is_neg() ||
      graph.value(root).dtype != tensor.scalar_type() || !is_whole(graph, root, numel)) {
    why = "it is a view of another tensor";
  }
  if (record->real_storage(storage)) why = "its storage is already materialized";
  for (const Recipe::Step& step : group.steps) {
    if (why.empty()) why = obstacle(graph, step, numel);
  }
  if (!why.empty()) {
    if (never_whole) {
      throw DeferredError(c10::str("cannot compute a shard of the tensor with sizes ", tensor.sizes(),
                                   " without the whole tensor: ", why));
    }
    if (record->real_storage(storage)) {
      throw DeferredError(c10::str("the tensor with sizes ", tensor.sizes(),
                                   " shares a materialized storage; materialize the tensor and take a slice"));
    }
    const at::Tensor whole = record->value_of(*fake, {c10::Device(c10::kCPU), options.independent_streams});
    const RealCalls real;
    return whole.narrow(dim, start, length).to(device, dtype).clone(at::MemoryFormat::Contiguous);
  }

  const RealCalls real;
  at::Tensor result = at::empty(sizes, at::TensorOptions().dtype(dtype).device(device));
  if (result.numel() == 0) return result;
  const RecipeGraph piece(graph, record->recipe(), group);
  InterpreterOptions replay;
  replay.only = {piece.value(root)};
  replay.device = c10::Device(c10::kCPU);
  replay.nodes = piece.nodes();
  WindowReplay windows(piece, std::move(replay), *record, options.independent_streams, numel);
  fill_part(result, dim, start, fake->sizes()[static_cast<size_t>(dim)], windows);
  return result;
}

}  // namespace shadowgraph
