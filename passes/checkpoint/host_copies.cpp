#include "passes/checkpoint/host_copies.h"

#include <array>
#include <vector>

#include "ir/analysis/kernel_note.h"
#include "ir/records.h"

namespace shadowgraph {
namespace {

class HostCopies {
 public:
  HostCopies(Graph& graph, StorageChanges& changes, CheckpointResult& result)
      : graph_(graph), changes_(changes), result_(result) {}

  void send(const HostTrip& trip) {
    NodeId first;
    for (const ValueId v : trip.read) {
      const auto readers = readers_of(v);
      if (!readers.empty() && (!first.valid() || graph_.is_before(readers.front(), first))) first = readers.front();
    }
    if (!first.valid()) return;  // they all read copies
    if (trip.fetch.valid() && graph_.is_before(trip.fetch, first)) first = trip.fetch;
    const ValueId whole = trip.whole;
    const StorageId storage = graph_.value(whole).storage;
    const NodeId born = graph_.storage(storage).born;
    const ValueId host = copy_to(whole, c10::Device(c10::DeviceType::CPU), graph_.node(trip.last_forward).next, born);
    changes_.made[graph_.value(host).storage] = 1;
    const ValueId back = copy_to(host, graph_.storage(storage).device(), first, born);
    mark_fetched(back, first, born);
    for (const ValueId v : trip.read) {
      if (readers_of(v).empty()) continue;
      const ValueId stands_in = v == whole ? back : view_like(v, back, first, born);
      graph_.replace_uses_if(v, stands_in,
                             [&](NodeId user, const Argument&) { return graph_.node(user).phase == Graph::kBackward; });
    }
    changes_.touched[storage] = 1;
    ++result_.offloaded;
    result_.offloaded_bytes += graph_.storage(storage).bytes;
  }

 private:
  // Backward users, what runs again included.
  std::vector<NodeId> readers_of(ValueId v) const {
    std::vector<NodeId> readers = graph_.users_of(v);
    std::erase_if(readers, [&](NodeId n) { return graph_.node(n).phase != Graph::kBackward; });
    return readers;
  }

  void mark_fetched(ValueId made, NodeId first, NodeId born) {
    const NodeId n = graph_.value(made).producer;
    mutable_node(graph_, n).phase = Graph::kBackward;
    mutable_node(graph_, n).region = graph_.node(first).region;
    mutable_node(graph_, n).forward = born;
    changes_.copies[n] = 1;
  }

  // What `v` is of its storage, of another one.
  ValueId view_like(ValueId v, ValueId of, NodeId position, NodeId born) {
    const TargetId as_strided = graph_.intern_operator("aten::as_strided");
    const std::vector<int64_t> sizes(graph_.sizes(v).begin(), graph_.sizes(v).end());
    const std::vector<int64_t> strides(graph_.strides(v).begin(), graph_.strides(v).end());
    const int64_t offset = graph_.value(v).offset;
    const std::array<Argument, 4> arguments{Argument::of_value(of), graph_.int_list(sizes), graph_.int_list(strides),
                                            Argument::of_int(offset)};
    const NodeId n = graph_.insert_before(position, as_strided, arguments);
    const ValueId view = graph_.add_tensor_result(n, {.dtype = graph_.value(v).dtype,
                                                      .sizes = sizes,
                                                      .strides = strides,
                                                      .storage = graph_.value(of).storage,
                                                      .offset = offset,
                                                      .device = graph_.value(of).device()});
    mark_fetched(view, position, born);
    return view;
  }

  ValueId copy_to(ValueId v, c10::Device device, NodeId position, NodeId like) {
    const TargetId to_copy = graph_.intern_operator("aten::_to_copy");
    // Waiting for the host makes no sense: what comes after on the same stream comes after the copy.
    const bool asynchronous = graph_.value(v).device() != device;
    const std::array<Argument, 7> arguments{Argument::of_value(v), Argument::none(),
                                            Argument::none(),      Argument::of_device(device),
                                            Argument::none(),      Argument::of_bool(asynchronous),
                                            Argument::none()};
    const NodeId n = graph_.insert_before(position, to_copy, arguments);
    mutable_node(graph_, n).region = graph_.node(like).region;
    mutable_node(graph_, n).phase = Graph::kForward;
    graph_.set_note(n, kKernelNote, kCopyEngine);
    const Storage& from = graph_.storage(graph_.value(v).storage);
    const StorageId storage = graph_.add_storage(
        {.bytes = from.bytes, .device_type = device.type(), .device_index = device.index(), .born = n});
    const std::vector<int64_t> sizes(graph_.sizes(v).begin(), graph_.sizes(v).end());
    const std::vector<int64_t> strides(graph_.strides(v).begin(), graph_.strides(v).end());
    return graph_.add_tensor_result(
        n, {.dtype = graph_.value(v).dtype, .sizes = sizes, .strides = strides, .storage = storage, .device = device});
  }

  Graph& graph_;
  StorageChanges& changes_;
  CheckpointResult& result_;
};

}  // namespace

void send_to_host(Graph& graph, const HostTrip& trip, StorageChanges& changes, CheckpointResult& result) {
  HostCopies(graph, changes, result).send(trip);
}

}  // namespace shadowgraph
