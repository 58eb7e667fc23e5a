#include <caffe2/serialize/inline_container.h>

#include <algorithm>
#include <cstring>
#include <ostream>
#include <unordered_map>

#include "core/fake/fake_tensor_impl.h"
#include "shadowgraph/deferred/deferred.h"
#include "shadowgraph/error.h"
#include "shadowgraph/graph/text.h"

namespace shadowgraph {
namespace {

// The dtypes with a storage class in a weights file: "FloatStorage" and so on.
constexpr at::ScalarType kStored[] = {at::kFloat, at::kDouble, at::kHalf,         at::kBFloat16,
                                      at::kLong,  at::kInt,    at::kShort,        at::kChar,
                                      at::kByte,  at::kBool,   at::kComplexFloat, at::kComplexDouble};

// Writes the opcodes of pickle protocol 2 for a state dict: https://docs.python.org/3/library/pickletools.html
class Pickle {
 public:
  Pickle() { text_ = "\x80\x02"; }
  void global(const std::string& module, const std::string& name) { text_ += "c" + module + "\n" + name + "\n"; }
  void mark() { text_ += '('; }
  void tuple() { text_ += 't'; }
  void call() { text_ += 'R'; }
  void empty_tuple() { text_ += ')'; }
  void persistent_id() { text_ += 'Q'; }
  void set_items() { text_ += 'u'; }
  void boolean(bool value) { text_ += value ? '\x88' : '\x89'; }
  void string(const std::string& value) {
    text_ += 'X';
    little_endian(value.size(), 4);
    text_ += value;
  }
  void integer(int64_t value) {
    text_ += "\x8a\x09";  // LONG1 with nine bytes, signed
    little_endian(static_cast<uint64_t>(value), 8);
    text_ += value < 0 ? '\xff' : '\0';
  }
  void integers(c10::IntArrayRef values) {
    mark();
    for (const int64_t value : values) integer(value);
    tuple();
  }
  void ordered_dict() {
    global("collections", "OrderedDict");
    empty_tuple();
    call();
  }
  std::string finished() { return text_ + "."; }

 private:
  void little_endian(uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) text_ += static_cast<char>(value >> (8 * i) & 0xFF);
  }
  std::string text_;
};

void pickle_tensor(Pickle& pickle, const at::Tensor& tensor, at::ScalarType dtype, const std::string& key,
                   size_t bytes) {
  pickle.global("torch._utils", "_rebuild_tensor_v2");
  pickle.mark();
  pickle.mark();
  pickle.string("storage");
  pickle.global("torch", std::string(c10::toString(dtype)) + "Storage");
  pickle.string(key);
  pickle.string("cpu");
  pickle.integer(static_cast<int64_t>(bytes / c10::elementSize(dtype)));
  pickle.tuple();
  pickle.persistent_id();
  pickle.integer(tensor.storage_offset());
  pickle.integers(tensor.sizes());
  pickle.integers(tensor.strides());
  pickle.boolean(false);
  pickle.ordered_dict();
  pickle.tuple();
  pickle.call();
}

}  // namespace

WrittenWeights write_weights(const std::string& path, const std::vector<std::pair<std::string, at::Tensor>>& tensors,
                             const MaterializeOptions& given) {
  MaterializeOptions options = given;
  options.device = c10::Device(c10::kCPU);
  options.keep_recipe = true;
  const auto written_dtype = [&](const at::Tensor& tensor) {
    return options.dtype && tensor.is_floating_point() && is_fake(tensor) ? *options.dtype : tensor.scalar_type();
  };

  std::vector<std::vector<size_t>> storages;  // indices of the tensors that share each; its number is its key
  std::vector<size_t> storage_of;             // by tensor
  std::unordered_map<const c10::StorageImpl*, size_t> by_storage;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto& [name, tensor] = tensors[i];
    if (!tensor.defined() || tensor.layout() != c10::kStrided ||
        std::ranges::find(kStored, tensor.scalar_type()) == std::end(kStored) || tensor.is_conj() || tensor.is_neg()) {
      throw DeferredError("cannot write '" + name +
                          "' to a weights file: only dense tensors of a dtype with a torch storage class are "
                          "supported, without a lazy conjugate or negative bit");
    }
    const auto [entry, added] =
        by_storage.try_emplace(tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl(), storages.size());
    if (added) storages.emplace_back();
    storage_of.push_back(entry->second);
    auto& sharing = storages[entry->second];
    if (!sharing.empty() && tensors[sharing.front()].second.scalar_type() != tensor.scalar_type()) {
      throw DeferredError("cannot write '" + name + "' and '" + tensors[sharing.front()].first +
                          "' to a weights file: they share a storage with different dtypes");
    }
    sharing.push_back(i);
  }

  WrittenWeights result{tensors.size(), storages.size(), 0};
  std::vector<size_t> bytes(storages.size());
  write_file(path, [&](std::ostream& file) {
    try {
      caffe2::serialize::PyTorchStreamWriter archive([&](const void* data, size_t size) {
        file.write(static_cast<const char*>(data), static_cast<std::streamsize>(size));
        return file ? size : 0;
      });
      try {
        for (size_t s = 0; s < storages.size(); ++s) {
          const auto& [name, tensor] = tensors[storages[s].front()];
          const bool described = is_deferred(tensor);
          materialize_tensor(tensor, options);
          const c10::Storage& storage = tensor.storage();
          bytes[s] = storage.nbytes();
          result.bytes += bytes[s];
          archive.writeRecord("data/" + std::to_string(s), storage.data(), storage.nbytes());
          if (described) dematerialize(tensor);
        }
        Pickle pickle;
        pickle.ordered_dict();
        pickle.mark();
        for (size_t i = 0; i < tensors.size(); ++i) {
          const auto& [name, tensor] = tensors[i];
          pickle.string(name);
          pickle_tensor(pickle, tensor, written_dtype(tensor), std::to_string(storage_of[i]), bytes[storage_of[i]]);
        }
        pickle.set_items();
        const std::string text = pickle.finished();
        archive.writeRecord("data.pkl", text.data(), text.size());
        archive.writeRecord("byteorder", "little", std::strlen("little"));
        archive.writeEndOfFile();
      } catch (...) {
        // The archive's destructor warns if it was not finalized.
        try {
          if (!archive.finalized()) archive.writeEndOfFile();
        } catch (const std::exception&) {  // the file is discarded anyway
        }
        throw;
      }
    } catch (const c10::Error&) {
      // write_file reports failures of the stream (a full disk) with their reason.
      if (file) throw;
    }
  });
  return result;
}

}  // namespace shadowgraph
