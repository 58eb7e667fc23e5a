// Runs parts of a record on real tensors: Recipe says what, RandomStreams with which numbers, Interpreter how.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/DefaultDtype.h>

#include <algorithm>

#include "core/deferred/piece.h"
#include "core/deferred/record.h"
#include "core/fake/known_contents.h"
#include "shadowgraph/error.h"
#include "shadowgraph/replay.h"
#include "shadowgraph/text.h"

namespace shadowgraph {
namespace {

// Sets the default dtype to what it was when the program was described, for operators that take their result's dtype
// from it.
class DefaultDtype {
 public:
  explicit DefaultDtype(at::ScalarType dtype) : before_(c10::get_default_dtype_as_scalartype()) {
    if (dtype != before_) c10::set_default_dtype(caffe2::TypeMeta::fromScalarType(dtype));
    changed_ = dtype != before_;
  }
  ~DefaultDtype() {
    if (changed_) c10::set_default_dtype(caffe2::TypeMeta::fromScalarType(before_));
  }
  DefaultDtype(const DefaultDtype&) = delete;
  DefaultDtype& operator=(const DefaultDtype&) = delete;

 private:
  at::ScalarType before_;
  bool changed_ = false;
};

// Replaces the default CPU generator for a while, for random operators that take no generator.
class DefaultGeneratorAs {
 public:
  explicit DefaultGeneratorAs(const at::Generator& given) : lock_(mutex()), given_(given) {
    const at::Generator& process = at::detail::getDefaultCPUGenerator();
    before_ = RandomState::of(process);
    RandomState::of(given_).put_into(process);
  }
  ~DefaultGeneratorAs() {
    const at::Generator& process = at::detail::getDefaultCPUGenerator();
    RandomState::of(process).put_into(given_);
    before_.put_into(process);
  }
  DefaultGeneratorAs(const DefaultGeneratorAs&) = delete;
  DefaultGeneratorAs& operator=(const DefaultGeneratorAs&) = delete;

 private:
  static std::mutex& mutex() {
    static std::mutex mutex;
    return mutex;
  }
  std::unique_lock<std::mutex> lock_;
  at::Generator given_;
  RandomState before_;
};

// Finds the same operator with a generator after what `op` has (aten::rand -> aten::rand.generator); nullopt if there
// is none.
struct WithGenerator {
  c10::OperatorHandle op;
  size_t position;
};
std::optional<WithGenerator> overload_with_generator(const c10::OperatorHandle& op) {
  const auto& schema = op.schema();
  const std::string& overload = schema.overload_name();
  for (const std::string& name : {overload.empty() ? std::string("generator") : overload + "_generator"}) {
    const auto found = c10::Dispatcher::singleton().findSchema({schema.name(), name});
    if (!found || found->schema().arguments().size() != schema.arguments().size() + 1) continue;
    for (size_t i = 0; i < found->schema().arguments().size(); ++i) {
      if (found->schema().arguments()[i].name() == "generator") return WithGenerator{*found, i};
    }
  }
  return std::nullopt;
}

class Replay final : public Interpreter {
 public:
  // Says what happens after a node; all ids are the piece's.
  struct Hooks {
    struct Kept {
      StorageId storage;  // of the record
      ValueId through;
      uint32_t position = 0;
      bool stays = false;
    };
    std::unordered_map<NodeId, std::vector<Kept>> snapshots;
    std::unordered_map<NodeId, std::vector<StorageId>> finished;  // of the record: nothing touches them any more
    std::unordered_map<StorageId, ValueId> roots;                 // of those
  };

  Replay(const Piece& piece, InterpreterOptions options, Hooks hooks, Snapshots& snapshots, RandomStreams& streams,
         std::optional<uint64_t> seed, const std::function<void(DeferredRecord::Computed)>& done)
      : Interpreter(piece.graph(), std::move(options)),
        piece_(piece),
        hooks_(std::move(hooks)),
        snapshots_(snapshots),
        streams_(streams),
        seed_(seed),
        done_(done) {}

  // where the draw that is asked for (a node of the record) begins and ends, rather than where it is in the record
  std::optional<NodeId> given_draw;
  RandomState given_state;

 protected:
  void run_node(NodeId node) override {
    const auto kept = hooks_.snapshots.find(node);
    if (kept == hooks_.snapshots.end()) {
      Interpreter::run_node(node);
    } else {
      std::vector<c10::Storage> written;  // set_ gives the tensor another one
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
    const auto& arguments = op.schema().arguments();
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (arguments[i].name() != "generator") continue;
      stack[stack.size() - arguments.size() + i] = generator_;
      op.callBoxed(stack);
      return;
    }
    if (const auto other = overload_with_generator(op)) {
      const auto begin = stack.end() - static_cast<std::ptrdiff_t>(arguments.size());
      stack.insert(begin + static_cast<std::ptrdiff_t>(other->position), c10::IValue(generator_));
      other->op.callBoxed(stack);
      return;
    }
    const DefaultGeneratorAs scope(generator_);
    op.callBoxed(stack);
  }

  const Piece& piece_;
  Hooks hooks_;
  Snapshots& snapshots_;
  RandomStreams& streams_;
  std::optional<uint64_t> seed_;
  const std::function<void(DeferredRecord::Computed)>& done_;
  at::Generator generator_;
};

// Errors name the node of the record.
void run_nodes(Replay& replay, const Piece& piece, const Graph& record) {
  try {
    replay.run({});
  } catch (const ReplayError& error) {
    const NodeId node = error.node().valid() ? piece.of_record(error.node()) : NodeId();
    std::string what = error.what();
    if (const auto* nested = dynamic_cast<const std::nested_exception*>(&error)) {
      try {
        nested->rethrow_nested();
      } catch (const DeferredError&) {
        throw;  // what `done` throws passes through as it is
      } catch (const c10::Error& cause) {
        what = "while running " + to_text(record, node) + "\n  " + cause.what_without_backtrace();
      } catch (const std::exception& cause) {
        what = "while running " + to_text(record, node) + "\n  " + cause.what();
      }
    }
    std::throw_with_nested(MaterializeError(what, node));
  }
}

// Keeps what a run writes to a storage.
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

ValueId first_value(const Graph& graph, StorageId storage) {
  ValueId first;
  graph.for_each_output(graph.storage(storage).born, [&](ValueId value) {
    if (!first.valid() && graph.value(value).storage == storage) first = value;
  });
  return first;
}

}  // namespace

void DeferredRecord::check_constants(const std::vector<Recipe::Step>& steps) const {
  for (const Recipe::Step& step : steps) {
    for (const Argument& argument : graph().arguments(step.node)) {
      if (argument.kind != ArgumentKind::kConstant || argument.constant.index >= constant_versions_.size()) continue;
      const auto [version, counted] = constant_versions_[argument.constant.index];
      const at::Tensor& tensor = graph().constant(argument.constant);
      if (!counted || static_cast<uint32_t>(tensor._version()) == version) continue;
      throw ExternalTensorChangedError(
          c10::str("the tensor from outside that the recipe uses (", tensor.scalar_type(), " ", tensor.sizes(),
                   ", in the record: ", to_text(graph(), step.node), ") has been written since: it was at version ",
                   version, " and is at version ", tensor._version(),
                   ". Keep it unchanged until everything is materialised, or give deferred_init a clone"),
          step.node);
    }
  }
}

void DeferredRecord::run(Recipe::Group group, const ComputeOptions& options,
                         const std::function<void(Computed)>& done) {
  check_constants(group.steps);
  nodes_run_ += group.steps.size();
  const Piece piece(graph(), recipe_, group);
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
  // Contents from other random numbers are no snapshots.
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
    // A check may throw, so what it is about is handed over afterwards.
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
  const Piece piece(graph(), recipe_, group);
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

}  // namespace shadowgraph
