// Writes MLCommons Chakra execution traces, encoded as Protocol Buffers.
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>

#include "parallel/schedule/schedule_check.h"
#include "parallel/stages/stage_parts.h"
#include "shadowgraph/error.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/plan/exports.h"
#include "shadowgraph/plan/pipeline.h"
#include "shadowgraph/profile/communication.h"
#include "support/files.h"

namespace shadowgraph {
namespace {

class ProtobufMessage {
 public:
  void unsigned_field(uint32_t field, uint64_t value) {
    varint(field << 3);
    varint(value);
  }
  void text_field(uint32_t field, std::string_view text) {
    varint(field << 3 | 2);
    varint(text.size());
    bytes_ += text;
  }
  void message_field(uint32_t field, const ProtobufMessage& message) { text_field(field, message.bytes_); }
  // int32 and int64; negative values take ten bytes.
  void add(uint32_t field, int64_t value) { unsigned_field(field, static_cast<uint64_t>(value)); }
  void add(uint32_t field, std::string_view text) { text_field(field, text); }
  void clear() { bytes_.clear(); }

  // Appends the message with its length prefix.
  void append_to(std::string& file) const {
    ProtobufMessage length;
    length.varint(bytes_.size());
    file += length.bytes_;
    file += bytes_;
  }

 private:
  void varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>((value & 0x7F) | 0x80);
    bytes_ += static_cast<char>(value);
  }
  std::string bytes_;
};

using enum PipelineWork;

// Field numbers of et_def.proto (mlcommons/chakra).
enum ChakraField : uint32_t {
  kId = 1,
  kName = 2,
  kType = 3,
  kDataDependences = 5,
  kStart = 6,
  kDuration = 7,
  kInputs = 8,
  kAttribute = 10
};
enum ChakraNodeType : uint64_t { kMetadata = 1, kComputing = 4, kSending = 5, kReceiving = 6, kCollecting = 7 };
constexpr uint32_t kAttributeName = 1, kAttributeInt64 = 9, kAttributeBool = 27, kAttributeText = 29;

int64_t chakra_kind(CollectiveKind kind) {
  using K = CollectiveKind;
  static const std::map<K, int64_t> kNumbers{{K::kAllReduce, 0}, {K::kReduce, 1},        {K::kAllGather, 2},
                                             {K::kGather, 3},    {K::kScatter, 4},       {K::kBroadcast, 5},
                                             {K::kAllToAll, 6},  {K::kReduceScatter, 7}, {K::kBarrier, 9}};
  const auto found = kNumbers.find(kind);
  if (found != kNumbers.end()) return found->second;
  throw Error(fmt::format("Chakra does not support the collective {} inside a stage", to_string(kind)));
}

class ProcessTrace {
 public:
  ProcessTrace(const PipelineRun& run, const ChakraOptions& options, int32_t rank, int64_t process)
      : run_(run), options_(options), rank_(rank), process_(process) {
    ProtobufMessage version;
    version.text_field(1, "0.0.4");
    version.append_to(file_);
    add_groups();
  }

  std::string take() {
    for (const PipelineActionTime& at : run_.actions(rank_)) computes(at.action) ? compute(at) : transfer(at);
    return std::move(file_);
  }
  int64_t nodes() const { return static_cast<int64_t>(next_); }

 private:
  const StageParts& parts() const { return run_.stages().parts(); }
  int64_t number_of(int32_t rank, int64_t process) const { return rank * options_.processes_per_stage + process; }

  template <class Value>
  void attribute(std::string_view name, uint32_t field, const Value& value) {
    ProtobufMessage attribute;
    attribute.text_field(kAttributeName, name);
    attribute.add(field, value);
    node_.message_field(kAttribute, attribute);
  }

  void begin(std::string_view name, ChakraNodeType type, std::span<const uint64_t> dependences) {
    node_.clear();
    node_.unsigned_field(kId, next_);
    node_.text_field(kName, name);
    node_.unsigned_field(kType, type);
    for (const uint64_t dependence : dependences) node_.unsigned_field(kDataDependences, dependence);
  }
  uint64_t end() {
    node_.append_to(file_);
    return next_++;
  }

  void add_groups() {
    auto groups = nlohmann::json::array();
    for (size_t g = 0; g < parts().groups.size(); ++g) {
      groups.push_back({{"pg_name", std::to_string(g)}, {"ranks", group_of_process(parts().groups[g])}});
    }
    begin("process_groups", kMetadata, {});
    ProtobufMessage inputs;
    inputs.text_field(1, groups.dump());
    node_.message_field(kInputs, inputs);
    attribute("is_cpu_op", kAttributeBool, 1);
    end();
  }
  // Interprets a captured process's group as a mesh axis (size and stride). Returns this process's group of that axis.
  std::vector<int64_t> group_of_process(const std::vector<int64_t>& captured) const {
    const auto size = static_cast<int64_t>(captured.size());
    const int64_t apart = size > 1 ? captured[1] - captured[0] : 1;
    bool regular = apart > 0 && options_.processes_per_stage % (apart * size) == 0;
    for (size_t i = 1; i < captured.size(); ++i) regular &= captured[i] - captured[i - 1] == apart;
    if (!regular) {
      throw Error(
          fmt::format("the step communicates in a group of {} processes with stride {}, which is not an axis of the {} "
                      "processes of a stage; set --rank-stride (processes per stage)",
                      size, apart, options_.processes_per_stage));
    }
    const int64_t first = process_ - process_ / apart % size * apart;
    std::vector<int64_t> ranks;
    for (int64_t i = 0; i < size; ++i) ranks.push_back(number_of(rank_, first + i * apart));
    return ranks;
  }

  void compute(const PipelineActionTime& at) {
    const PipelineAction& a = at.action;
    const auto& segments = parts().stages[static_cast<size_t>(a.stage)].segments[a.work];
    std::vector<uint64_t> waits_for;
    if (last_computed_) waits_for.push_back(*last_computed_);
    if (a.work != kWeightGradient) {
      const auto received = received_.find({a.stage, a.microbatch, a.work == kForward});
      if (received != received_.end()) waits_for.push_back(received->second);
    }
    double clock = at.begin;
    size_t part = 0;
    for (const PieceSegment& segment : segments) {
      const std::string name = fmt::format("{}.{}", to_string(a), part++);
      if (segment.collective == PieceSegment::kComputes) {
        begin(name, kComputing, waits_for);
        times(clock, segment.seconds);
        attribute("num_ops", kAttributeInt64, segment.flops);
        attribute("tensor_size", kAttributeInt64, std::max<int64_t>(1, segment.bytes));
      } else {
        begin(name, kCollecting, waits_for);
        times(clock, segment.seconds);
        attribute("comm_type", kAttributeInt64, chakra_kind(static_cast<CollectiveKind>(segment.collective)));
        attribute("comm_size", kAttributeInt64, segment.bytes);
        attribute("pg_name", kAttributeText, std::to_string(segment.group));
      }
      clock += segment.seconds;
      waits_for = {end()};
    }
    if (!waits_for.empty()) last_computed_ = waits_for.back();
  }

  // Writes the times of a device operation in whole microseconds. Durations end at the rounded start of the next node,
  // so that sums do not drift.
  void times(double from, double seconds) {
    const auto begin = static_cast<int64_t>(std::llround(from * 1e6));
    node_.add(kStart, begin);
    node_.add(kDuration, std::max<int64_t>(0, std::llround((from + seconds) * 1e6) - begin));
    attribute("is_cpu_op", kAttributeBool, 0);
  }

  void transfer(const PipelineActionTime& at) {
    const PipelineAction& a = at.action;
    const bool sent = sends(a), forward = transfers_forward(a);
    const int32_t sender = sent ? a.stage : other_stage(a), receiver = sent ? other_stage(a) : a.stage;
    const StageCosts& of = run_.stages().of(sender);
    const auto rank_of = [&](int32_t stage) { return number_of(run_.schedule().rank_of(stage), process_); };
    std::vector<uint64_t> waits_for;
    if (last_computed_) waits_for.push_back(*last_computed_);
    begin(to_string(a), sent ? kSending : kReceiving, waits_for);
    times(at.begin, at.end - at.begin);
    attribute("comm_size", kAttributeInt64, forward ? of.sends_forward : of.sends_backward);
    attribute("comm_src", kAttributeInt64, rank_of(sender));
    attribute("comm_dst", kAttributeInt64, rank_of(receiver));
    attribute("comm_tag", kAttributeInt64,
              ((int64_t{receiver} * run_.schedule().microbatches() + a.microbatch) << 1) | (forward ? 1 : 0));
    const uint64_t id = end();
    if (!sent) received_[{a.stage, a.microbatch, forward}] = id;
  }

  const PipelineRun& run_;
  const ChakraOptions& options_;
  int32_t rank_;
  int64_t process_;
  std::string file_;
  ProtobufMessage node_;
  uint64_t next_ = 0;
  std::optional<uint64_t> last_computed_;
  std::map<std::tuple<int32_t, int32_t, bool>, uint64_t> received_;
};

}  // namespace

ChakraFiles write_chakra(const PipelineRun& run, const std::string& folder, const ChakraOptions& options) {
  if (options.processes_per_stage < 1) throw Error("the number of processes per stage must be at least 1");
  make_folder(folder);
  ChakraFiles files;
  for (int32_t rank = 0; rank < run.ranks(); ++rank) {
    for (int64_t process = 0; process < options.processes_per_stage; ++process) {
      ProcessTrace trace(run, options, rank, process);
      const std::string text = trace.take();
      const int64_t number = rank * options.processes_per_stage + process;
      const std::string name = fmt::format("{}.{}.et", file_name(options.name), number);
      write_file((std::filesystem::path(folder) / name).string(), text);
      ++files.files;
      files.nodes += trace.nodes();
      files.bytes += static_cast<int64_t>(text.size());
    }
  }
  return files;
}

}  // namespace shadowgraph
