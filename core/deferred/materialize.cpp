#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <ranges>

#include "core/deferred/record.h"
#include "core/fake/known_contents.h"
#include "core/fake/thread_state.h"
#include "shadowgraph/deferred/deferred.h"
#include "shadowgraph/error.h"
#include "shadowgraph/graph/text.h"

namespace shadowgraph {
namespace {

// Stored with a materialized tensor to turn it back into a deferred one.
struct RecipeOfTensor final : c10::intrusive_ptr_target {
  c10::intrusive_ptr<DeferredLink> link;
  StorageId storage;
  caffe2::TypeMeta dtype;
  std::vector<int64_t> sizes, strides;
  int64_t offset = 0;
  c10::Device device = c10::Device(c10::kCPU);
  bool conj = false, neg = false;
};

struct Named {
  at::Tensor tensor;
  std::string name;  // may be empty
};

std::string label(const Named& named) {
  const FakeTensorImpl* fake = as_fake(named.tensor);
  const std::string what =
      fake != nullptr ? c10::str(fake->dtype(), " ", fake->sizes()) : c10::str("tensor ", named.tensor.sizes());
  return named.name.empty() ? "a tensor " + what : "'" + named.name + "' (" + what + ")";
}

std::shared_ptr<DeferredRecord> record_of(const Named& named) {
  const FakeTensorImpl* fake = as_fake(named.tensor);
  if (fake != nullptr) {
    if (auto record = DeferredRecord::of(*fake)) return record;
  }
  throw DeferredError(label(named) +
                      " is a fake tensor that was not created by deferred_init, so it cannot be materialized: it was "
                      "created under a FakeTensorMode, or assigned from such a tensor (`.data = `)");
}

c10::Device with_any_index(c10::Device device) {
  return device.is_cuda() && !device.has_index() ? c10::Device(c10::kCUDA, 0) : device;
}

at::Tensor on_storage(c10::Storage storage, FakeTensorImpl& fake, caffe2::TypeMeta dtype) {
  const c10::InferenceMode inference(fake.is_inference());
  const c10::DispatchKey key = c10::computeDispatchKey(dtype.toScalarType(), std::nullopt, storage.device());
  auto impl = c10::make_intrusive<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), dtype);
  impl->set_sizes_and_strides(fake.sizes(), fake.strides(), fake.storage_offset());
  at::Tensor tensor(std::move(impl));
  if (fake.is_conj()) tensor._set_conj(true);
  if (fake.is_neg()) tensor._set_neg(true);
  return tensor;
}

// Returns the whole storage converted to another device and dtype.
c10::Storage converted(const c10::Storage& storage, caffe2::TypeMeta from, c10::Device device, at::ScalarType to) {
  const RealCalls real;
  at::Tensor flat = at::empty({0}, at::TensorOptions().dtype(from).device(storage.device()));
  const auto count = static_cast<int64_t>(storage.nbytes() / from.itemsize());
  flat.unsafeGetTensorImpl()->set_storage_keep_dtype(storage);
  flat.unsafeGetTensorImpl()->set_sizes_contiguous({count});
  return flat.to(device, to).storage();
}

// The tensors of one record to materialize, by storage.
class Batch {
 public:
  Batch(std::shared_ptr<DeferredRecord> record, const MaterializeOptions& options)
      : record_(std::move(record)), options_(options) {}

  void add(Named named) {
    show_host_writes(named.tensor, *record_);
    const FakeTensorImpl& fake = *as_fake(named.tensor);
    const StorageId storage = record_->storage_of(fake);
    auto& entry = storages_[storage];
    if (entry.empty()) order_.push_back(storage);
    if (named.tensor.is_view()) {
      // Autograd's base of the view shares the storage, so it is materialized too.
      const at::Tensor base(named.tensor._base());
      const FakeTensorImpl* fake_base = as_fake(base);
      if (fake_base != nullptr && DeferredRecord::of(*fake_base) == record_ &&
          record_->storage_of(*fake_base) == storage) {
        entry.push_back({base, named.name});
      }
    }
    entry.push_back(std::move(named));
  }

  void run() {
    std::vector<StorageId> missing;
    for (const StorageId id : order_) {
      check(id);
      if (const c10::Storage storage = record_->real_storage(id)) {
        share(id, storage);
      } else {
        missing.push_back(id);
      }
    }
    if (missing.empty()) return;
    DeferredRecord::ComputeOptions compute{c10::Device(c10::kCPU), options_.independent_streams};
    try {
      record_->compute(missing, compute,
                       [&](DeferredRecord::Computed computed) { place(computed.id, computed.tensor.storage()); });
    } catch (const DeferredError& error) {
      // Other errors do not concern an operator or constant of the record.
      if (!error.node().valid() && dynamic_cast<const std::nested_exception*>(&error) == nullptr) throw;
      throw DeferredError("cannot materialize " + name_near(error.node()) + ": " + error.what(), error.node());
    }
  }

 private:
  c10::Device device_for(const FakeTensorImpl& fake) const {
    return with_any_index(options_.device.value_or(fake.simulated_device()));
  }
  at::ScalarType dtype_for(const FakeTensorImpl& fake) const {
    const at::ScalarType own = fake.dtype().toScalarType();
    return options_.dtype && at::isFloatingType(own) ? *options_.dtype : own;
  }

  void check(StorageId id) const {
    const auto& tensors = storages_.at(id);
    const FakeTensorImpl& first = *as_fake(tensors.front().tensor);
    for (const Named& named : tensors) {
      const FakeTensorImpl& fake = *as_fake(named.tensor);
      if (dtype_for(fake) != fake.dtype().toScalarType() && fake.dtype() != first.dtype()) {
        throw DeferredError(label(named) +
                            " shares its storage with a tensor of another dtype, so it cannot be "
                            "converted; materialize both without MaterializeOptions::dtype");
      }
      const c10::Device device = device_for(fake);
      if (device.is_cuda() && !at::globalContext().hasCUDA()) {
        throw DeferredError(label(named) + " was created on " + device.str() +
                            ", which is not available in this process; "
                            "set MaterializeOptions::device, for example to cpu");
      }
    }
  }

  // Uses a storage that was materialized earlier.
  void share(StorageId id, const c10::Storage& storage) {
    const auto& known = record_->real.at(id);
    for (const Named& named : storages_.at(id)) {
      FakeTensorImpl* fake = as_fake(named.tensor);
      if (fake == nullptr) continue;  // already materialized as the base of another one
      const at::ScalarType made = known.dtype.value_or(fake->dtype().toScalarType());
      if ((options_.dtype && dtype_for(*fake) != made) || (options_.device && device_for(*fake) != storage.device())) {
        throw DeferredError(label(named) + " shares its storage with a tensor that was materialized as " +
                            c10::str(made) + " on " + storage.device().str() +
                            "; materialize it with the same dtype and device");
      }
      make(*fake, id, storage, caffe2::TypeMeta::fromScalarType(made));
    }
  }

  void place(StorageId id, c10::Storage storage) {
    const auto& tensors = storages_.at(id);
    const FakeTensorImpl& first = *as_fake(tensors.front().tensor);
    const c10::Device device = device_for(first);
    const at::ScalarType dtype = dtype_for(first);
    DeferredRecord::RealStorage& real = record_->real[id];
    real.dtype.reset();
    if (device != storage.device() || dtype != first.dtype().toScalarType()) {
      storage = converted(storage, first.dtype(), device, dtype);
      if (dtype != first.dtype().toScalarType()) real.dtype = dtype;
    }
    real.storage = storage.getWeakStorageImpl();
    real.device = device;
    // Keeps it alive while other fakes use the storage.
    attach_to_storage(*first.unsafe_storage().unsafeGetStorageImpl(), record_->session(), storage);
    for (const Named& named : tensors) {
      if (FakeTensorImpl* fake = as_fake(named.tensor)) {
        make(*fake, id, storage, real.dtype ? caffe2::TypeMeta::fromScalarType(*real.dtype) : fake->dtype());
      }
    }
  }

  void make(FakeTensorImpl& fake, StorageId id, const c10::Storage& storage, caffe2::TypeMeta dtype) {
    c10::intrusive_ptr<RecipeOfTensor> recipe;
    if (options_.keep_recipe) {
      recipe = c10::make_intrusive<RecipeOfTensor>();
      recipe->link = record_->link();
      recipe->storage = id;
      recipe->dtype = fake.dtype();
      recipe->sizes = fake.sizes().vec();
      recipe->strides = fake.strides().vec();
      recipe->offset = fake.storage_offset();
      recipe->device = fake.simulated_device();
      recipe->conj = fake.is_conj();
      recipe->neg = fake.is_neg();
    }
    const at::Tensor real = on_storage(storage, fake, dtype);
    const std::unique_lock lock(DeferredRecord::storage_swap_mutex());
    fake.become_real(real.getIntrusivePtr(), std::move(recipe));
  }

  std::string name_near(NodeId node) const {
    // Groups run in order, so it is the first one that is still fake.
    for (const StorageId id : order_) {
      const auto& tensors = storages_.at(id);
      for (const Named& named : tensors) {
        if (as_fake(named.tensor) == nullptr) continue;
        for (const auto& group : record_->recipe().groups_for({&id, 1})) {
          for (const Recipe::Step& step : group.steps) {
            if (step.node == node) return label(named);
          }
        }
      }
    }
    return "a tensor";
  }

  std::shared_ptr<DeferredRecord> record_;
  const MaterializeOptions& options_;
  std::vector<StorageId> order_;
  std::unordered_map<StorageId, std::vector<Named>> storages_;
};

void materialize(const std::vector<Named>& tensors, const MaterializeOptions& options) {
  if (options.dtype && !at::isFloatingType(*options.dtype)) {
    throw DeferredError(std::string("dtype must be a floating-point type, not ") + c10::toString(*options.dtype));
  }
  // One batch per record; mostly there is only one.
  std::vector<std::shared_ptr<DeferredRecord>> records;
  for (const Named& named : tensors) {
    if (!is_fake(named.tensor)) continue;
    auto record = record_of(named);
    if (std::find(records.begin(), records.end(), record) == records.end()) records.push_back(std::move(record));
  }
  for (const auto& record : records) {
    const std::lock_guard lock(record->mutex());
    Batch batch(record, options);
    for (const Named& named : tensors) {
      const FakeTensorImpl* fake = as_fake(named.tensor);
      if (fake != nullptr && DeferredRecord::of(*fake) == record) batch.add(named);
    }
    batch.run();
  }
}

// Returns the tensors of a module, children first. Not Module::modules(), which requires a shared_ptr to the root.
std::vector<Named> tensors_of(const torch::nn::Module& root, const MaterializeModuleOptions& options = {}) {
  struct Visited {
    const torch::nn::Module* module;
    std::string path;
  };
  std::vector<Visited> found;
  std::vector<Visited> pending{{&root, ""}};
  while (!pending.empty()) {
    found.push_back(pending.back());
    const Visited next = pending.back();
    pending.pop_back();
    for (const auto& child : next.module->named_children()) {
      pending.push_back({child.value().get(), next.path + child.key() + "."});
    }
  }
  std::vector<Named> tensors;
  for (const auto& [module, path] : std::views::reverse(found)) {
    if (options.check_fn && !options.check_fn(*module)) continue;
    const auto add = [&tensors, &path = path](const auto& items) {
      for (const auto& item : items) {
        if (item.value().defined()) tensors.push_back({item.value(), path + item.key()});
      }
    };
    if (!options.buffers_only) add(module->named_parameters(/*recurse=*/false));
    add(module->named_buffers(/*recurse=*/false));
  }
  return tensors;
}

FakeTensorImpl* with_recipe(const at::Tensor& tensor) {
  if (!tensor.defined()) return nullptr;
  auto* impl = dynamic_cast<FakeTensorImpl*>(tensor.unsafeGetTensorImpl());
  return impl != nullptr && !impl->key_set().has(kFakeKey) && impl->recipe() ? impl : nullptr;
}

}  // namespace

const at::Tensor& materialize_tensor(const at::Tensor& tensor, const MaterializeOptions& options) {
  if (tensor.defined()) materialize({{tensor, ""}}, options);
  return tensor;
}

void materialize_tensors(const std::vector<at::Tensor>& tensors, const MaterializeOptions& options) {
  std::vector<Named> named;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined()) named.push_back({tensor, ""});
  }
  materialize(named, options);
}

void materialize_module(const torch::nn::Module& module, const MaterializeModuleOptions& options) {
  materialize(tensors_of(module, options), options);
}

bool is_deferred(const at::Tensor& tensor) {
  const FakeTensorImpl* fake = as_fake(tensor);
  return fake != nullptr && DeferredRecord::of(*fake) != nullptr;
}

bool is_deferred(const torch::nn::Module& module) {
  return std::ranges::any_of(tensors_of(module), [](const Named& named) { return is_deferred(named.tensor); });
}

void dematerialize(const at::Tensor& tensor) {
  FakeTensorImpl* impl = with_recipe(tensor);
  if (impl == nullptr) {
    if (is_deferred(tensor)) return;
    throw DeferredError(
        "this tensor cannot be dematerialized: it was not materialized by deferred_init, or without "
        "MaterializeOptions::keep_recipe");
  }
  const auto recipe = c10::static_intrusive_pointer_cast<RecipeOfTensor>(impl->recipe());
  const std::shared_ptr<DeferredRecord> record = recipe->link->record;
  const std::lock_guard lock(record->mutex());
  auto& new_meta_storages =
      record->new_meta_storages.try_emplace(recipe->storage, c10::intrusive_ptr<c10::StorageImpl>()).first->second;
  c10::intrusive_ptr<c10::StorageImpl> meta = new_meta_storages.lock();
  if (!meta) {
    meta = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(),
                                                 static_cast<size_t>(record->graph().storage(recipe->storage).bytes),
                                                 c10::GetAllocator(c10::DeviceType::Meta), /*resizable=*/true);
    bind_storage(*meta, recipe->storage, recipe->link);
    new_meta_storages = c10::weak_intrusive_ptr<c10::StorageImpl>(meta);
  }
  const auto fake = c10::make_intrusive<FakeTensorImpl>(c10::Storage(std::move(meta)), fake_key_set(recipe->device),
                                                        recipe->dtype, recipe->device);
  fake->set_sizes_and_strides(recipe->sizes, recipe->strides, recipe->offset);
  const at::Tensor holder(fake);
  if (recipe->conj) holder._set_conj(true);
  if (recipe->neg) holder._set_neg(true);
  {
    const std::unique_lock swap(DeferredRecord::storage_swap_mutex());
    impl->become_fake(*fake);
  }
  // Autograd's base of a view was materialized with it, and would keep the data.
  if (tensor.is_view() && with_recipe(at::Tensor(tensor._base())) != nullptr) dematerialize(at::Tensor(tensor._base()));
}

void dematerialize(const torch::nn::Module& module) {
  for (const Named& named : tensors_of(module)) {
    if (with_recipe(named.tensor) != nullptr) dematerialize(named.tensor);
  }
}

const Graph& deferred_graph(const at::Tensor& tensor) { return record_of({tensor, ""})->graph(); }

}  // namespace shadowgraph
