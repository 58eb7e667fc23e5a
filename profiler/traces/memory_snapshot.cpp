#include "ir/analysis/module_tree.h"
#include "profiler/memory/allocation_order.h"
#include "profiler/program_costs.h"
#include "shadowgraph/profile/traces.h"
#include "support/text.h"

namespace shadowgraph {
namespace {

// Writes pickles (protocol 2) with the opcodes that memory_viz's reader supports.
class Pickle {
 public:
  Pickle() : out_("\x80\x02") {}

  // Contents go between begin and end: alternating keys and values, or elements.
  void begin_dict() { out_ += "}("; }
  void end_dict() { out_ += 'u'; }
  void begin_list() { out_ += "]("; }
  void end_list() { out_ += 'e'; }
  void text(std::string_view text) {
    const std::string valid = utf8_text(text);
    out_ += 'X';
    bytes(valid.size(), 4);
    out_ += valid;
  }
  void number(int64_t value) {
    if (value >= 0 && value < (int64_t{1} << 31)) {
      out_ += 'J';
      bytes(static_cast<uint64_t>(value), 4);
    } else {
      out_ += "\x8a\x08";
      bytes(static_cast<uint64_t>(value), 8);
    }
  }
  void boolean(bool value) { out_ += value ? '\x88' : '\x89'; }
  void field(std::string_view name, std::string_view value) {
    text(name);
    text(value);
  }
  void field(std::string_view name, int64_t value) {
    text(name);
    number(value);
  }
  std::string take() {
    out_ += '.';
    return std::move(out_);
  }

 private:
  void bytes(uint64_t value, int count) {
    for (int i = 0; i < count; ++i) out_ += static_cast<char>(value >> (8 * i) & 0xFF);
  }
  std::string out_;
};

class Snapshot {
 public:
  Snapshot(const ProgramCosts& costs, const CachingAllocator& allocator, int64_t device)
      : graph_(costs.graph()), costs_(costs), allocator_(allocator), device_(device) {}

  std::string write() {
    pickle_.begin_dict();
    pickle_.text("segments");
    pickle_.begin_list();
    for (const auto& segment : allocator_.snapshot()) write(segment);
    pickle_.end_list();
    pickle_.text("device_traces");
    pickle_.begin_list();
    for (int64_t i = 0; i <= device_; ++i) {  // the index in the list is the device index
      pickle_.begin_list();
      if (i == device_) {
        for (const auto& event : allocator_.history()) write(event);
      }
      pickle_.end_list();
    }
    pickle_.end_list();
    pickle_.text("allocator_settings");
    pickle_.begin_dict();
    pickle_.field("simulated_by", "shadowgraph");
    pickle_.end_dict();
    pickle_.text("external_annotations");
    pickle_.begin_list();
    pickle_.end_list();
    pickle_.end_dict();
    return pickle_.take();
  }

 private:
  void write(const CachingAllocator::SegmentInfo& segment) {
    int64_t allocated = 0, active = 0, requested = 0;
    for (const auto& block : segment.blocks) {
      if (block.allocated) allocated += block.bytes;
      if (block.active) active += block.bytes, requested += block.requested;
    }
    pickle_.begin_dict();
    pickle_.field("device", device_);
    pickle_.field("address", segment.address);
    pickle_.field("total_size", segment.bytes);
    pickle_.field("allocated_size", allocated);
    pickle_.field("active_size", active);
    pickle_.field("requested_size", requested);
    pickle_.field("stream", segment.stream);
    pickle_.field("segment_type", segment.small ? "small" : "large");
    pickle_.text("is_expandable");
    pickle_.boolean(segment.expandable);
    pickle_.text("segment_pool_id");
    pickle_.begin_list();
    pickle_.number(0);
    pickle_.number(0);
    pickle_.end_list();
    frames(DeviceRun::kNoStorage);
    pickle_.text("blocks");
    pickle_.begin_list();
    for (const auto& block : segment.blocks) {
      pickle_.begin_dict();
      pickle_.field("address", block.address);
      pickle_.field("size", block.bytes);
      pickle_.field("requested_size", block.requested);
      pickle_.field("state", block.allocated ? "active_allocated" : block.active ? "active_awaiting_free" : "inactive");
      frames(block.active ? block.tag : DeviceRun::kNoStorage);
      pickle_.end_dict();
    }
    pickle_.end_list();
    pickle_.end_dict();
  }

  void write(const CachingAllocator::Event& event) {
    constexpr const char* kActions[] = {"alloc", "free_requested", "free_completed", "segment_alloc", "segment_free"};
    pickle_.begin_dict();
    pickle_.field("action", kActions[static_cast<int>(event.action)]);
    pickle_.field("addr", event.address);
    pickle_.field("size", event.bytes);
    pickle_.field("stream", event.stream);
    pickle_.field("device", device_);
    pickle_.field("time_us", time_++);
    const bool of_block = event.action <= CachingAllocator::Action::kFreeCompleted;
    frames(of_block ? event.tag : DeviceRun::kNoStorage);
    pickle_.end_dict();
  }

  // Writes the stack of a storage: its operator, then the enclosing modules, innermost first.
  void frames(uint32_t storage) {
    pickle_.text("frames");
    pickle_.begin_list();
    if (storage < graph_.storage_count()) {
      const NodeId maker = graph_.storage(StorageId(storage)).born;
      if (maker.valid() && !graph_.is_erased(maker)) {
        std::string name = graph_.target(maker).name();
        if (const std::string placeholder = placeholder_name(graph_, maker); !placeholder.empty())
          name += " " + placeholder;
        const std::string source(graph_.text_or_empty(graph_.node(maker).source));
        const size_t colon = source.rfind(':');
        const auto line = colon == source.npos ? std::nullopt : parse_number<int64_t>(source.substr(colon + 1));
        frame(name, line ? source.substr(0, colon) : source, line.value_or(0));
        std::string path = module_path(graph_, maker);
        while (!path.empty()) {
          frame(path, std::string(graph_.phase_name(graph_.node(maker).phase)), 0);
          path.resize(path.rfind('.') == path.npos ? 0 : path.rfind('.'));
        }
        frame(std::string(to_string(costs_.kinds[StorageId(storage)])), "shadowgraph", 0);
      }
    }
    pickle_.end_list();
  }
  void frame(const std::string& name, const std::string& file, int64_t line) {
    pickle_.begin_dict();
    pickle_.field("name", name);
    pickle_.field("filename", file);
    pickle_.field("line", line);
    pickle_.end_dict();
  }

  const Graph& graph_;
  const ProgramCosts& costs_;
  const CachingAllocator& allocator_;
  int64_t device_;
  int64_t time_ = 0;
  Pickle pickle_;
};

}  // namespace

std::string memory_snapshot(const Profile& profile, const DeviceMemoryOptions& options) {
  const c10::Device device = main_device(profile.graph(), options.device);
  const DeviceRun run = run_on_device(ProgramCosts::of(profile), options, true);
  return Snapshot(ProgramCosts::of(profile), run.allocator, device.has_index() ? device.index() : 0).write();
}

}  // namespace shadowgraph
