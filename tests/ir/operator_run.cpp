// Runs calls for tests of operator facts and records their effects.
#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "tests/ir/operator_calls.h"

namespace shadowgraph::operator_facts_test {
namespace {

// Returns memory filled with `byte`. Never destroyed, because storages keep their allocator and use it again when they
// grow.
class PoisonAllocator final : public c10::Allocator {
 public:
  explicit PoisonAllocator(int byte) : byte_(byte) {}
  c10::DataPtr allocate(size_t bytes) override {
    c10::DataPtr data = c10::GetDefaultCPUAllocator()->allocate(bytes);
    if (bytes != 0) std::memset(data.get(), byte_, bytes);
    return data;
  }
  c10::DeleterFnPtr raw_deleter() const override { return c10::GetDefaultCPUAllocator()->raw_deleter(); }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }

 private:
  int byte_;
};

class PoisonedMemory {
 public:
  explicit PoisonedMemory(int byte) : before_(c10::GetCPUAllocator()) {
    static std::map<int, c10::Allocator*> known;
    c10::Allocator*& allocator = known[byte];
    if (allocator == nullptr) allocator = new PoisonAllocator(byte);
    c10::SetCPUAllocator(allocator, kPriority);
  }
  ~PoisonedMemory() { c10::SetCPUAllocator(before_, kPriority); }
  PoisonedMemory(const PoisonedMemory&) = delete;
  PoisonedMemory& operator=(const PoisonedMemory&) = delete;

 private:
  static constexpr uint8_t kPriority = 100;
  c10::Allocator* before_;
};

struct Geometry {
  std::vector<int64_t> sizes, strides;
  const void* storage = nullptr;
  friend bool operator==(const Geometry&, const Geometry&) = default;
};
Geometry geometry_now(const at::Tensor& t) {
  return {t.sizes().vec(), t.strides().vec(), t.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl()};
}

constexpr uint64_t kArgumentSeed = 11;

}  // namespace

c10::OperatorHandle operator_of(const std::string& name) { return find_operator(name).value(); }
Target target_of_name(const std::string& name) { return Target(TargetKind::kOperator, operator_of(name).schema()); }

std::vector<at::Tensor> tensors_in(const IValue& value) {
  if (value.isTensor()) return value.toTensor().defined() ? std::vector{value.toTensor()} : std::vector<at::Tensor>();
  std::vector<at::Tensor> found;
  if (value.isList()) {
    for (const IValue& element : value.toListRef()) {
      for (const at::Tensor& t : tensors_in(element)) found.push_back(t);
    }
  }
  return found;
}

bool same_bytes(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes()) return false;
  const at::Tensor p = a.resolve_conj().resolve_neg().contiguous();
  const at::Tensor q = b.resolve_conj().resolve_neg().contiguous();
  return p.numel() == 0 || std::memcmp(p.const_data_ptr(), q.const_data_ptr(), p.numel() * p.itemsize()) == 0;
}
bool same_contents(const IValue& a, const IValue& b) {
  const auto p = tensors_in(a);
  const auto q = tensors_in(b);
  if (!p.empty() || !q.empty()) return std::equal(p.begin(), p.end(), q.begin(), q.end(), same_bytes);
  if (a.isTensor() || a.isNone() || a.isList()) return a.tagKind() == b.tagKind();
  if (a.isDouble()) return a.toDouble() == b.toDouble();
  if (a.isBool()) return a.toBool() == b.toBool();
  return a.toScalar().toLong() == b.toScalar().toLong();
}
bool same_contents(const std::vector<IValue>& a, const std::vector<IValue>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const IValue& p, const IValue& q) { return same_contents(p, q); });
}

void change(const at::Tensor& tensor, bool only_first) {
  if (tensor.numel() == 0 || tensor.is_quantized()) return;
  const at::Tensor part = only_first ? tensor.flatten().narrow(0, 0, 1) : tensor;
  if (part.scalar_type() == at::kBool) {
    part.logical_not_();
  } else {
    part.add_(1);
  }
}

Arguments made_arguments(const c10::FunctionSchema& schema, const std::function<Arguments()>& make, int poison) {
  const PoisonedMemory poisoned(poison);
  at::manual_seed(kArgumentSeed);
  Arguments arguments = make();
  for (size_t i = arguments.size(); i < schema.arguments().size(); ++i) {
    arguments.push_back(schema.arguments()[i].default_value().value());
  }
  return arguments;
}

Outcome run_call(const std::string& name, const std::function<Arguments()>& make, int poison, const Prepare& prepare,
                 uint64_t seed) {
  const c10::OperatorHandle op = operator_of(name);
  Outcome run;
  run.arguments = made_arguments(op.schema(), make, poison);
  if (prepare) prepare(run.arguments);
  std::vector<std::vector<at::Tensor>> before;
  std::vector<Geometry> geometry;
  for (const IValue& argument : run.arguments) {
    before.emplace_back();
    for (const at::Tensor& t : tensors_in(argument)) {
      before.back().push_back(t.clone());
      geometry.push_back(geometry_now(t));
    }
  }
  at::manual_seed(seed);
  const at::Tensor state = at::detail::getDefaultCPUGenerator().get_state();
  run.results = run.arguments;
  {
    const PoisonedMemory poisoned(poison);
    op.callBoxed(run.results);
  }
  run.drew = !at::equal(state, at::detail::getDefaultCPUGenerator().get_state());
  size_t k = 0;
  for (size_t i = 0; i < run.arguments.size(); ++i) {
    const auto tensors = tensors_in(run.arguments[i]);
    for (size_t t = 0; t < tensors.size(); ++t, ++k) {
      if (!same_bytes(tensors[t], before[i][t])) run.written.insert(i);
      const Geometry now = geometry_now(tensors[t]);
      run.moved_objects |= !(now == geometry[k]);
      run.moved_storage |= now.storage != geometry[k].storage;
      run.moved_sizes |= now.sizes != geometry[k].sizes;
      for (size_t r = 0; r < run.results.size(); ++r) {
        for (const at::Tensor& out : tensors_in(run.results[r])) {
          if (out.is_alias_of(tensors[t]) && out.nbytes() != 0) run.aliases.insert({r, i});
        }
      }
    }
  }
  for (const IValue& result : run.results) {
    for (const at::Tensor& out : tensors_in(result)) {
      run.moved_sizes |= !geometry.empty() && out.sizes().vec() != geometry[0].sizes;
    }
  }
  return run;
}

std::vector<IValue> left_by(const Outcome& run, const OperatorFacts& facts) {
  std::vector<IValue> all = run.results;
  for (const uint16_t position : facts.written) all.push_back(run.arguments[position]);
  return all;
}

std::vector<IValue> run_on(const c10::OperatorHandle& op, Arguments arguments) {
  at::manual_seed(kCallSeed);
  const PoisonedMemory poisoned(kPoison);
  op.callBoxed(arguments);
  return arguments;
}

}  // namespace shadowgraph::operator_facts_test
