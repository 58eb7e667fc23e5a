#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <istream>
#include <limits>
#include <map>
#include <memory>
#include <streambuf>
#include <string>
#include <string_view>
#include <tuple>
#include <zlib.h>

#include "profiler/device_trace/trace_calls.h"
#include "shadowgraph/error.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/profile/traces.h"
#include "support/json.h"
#include "support/text.h"

namespace shadowgraph {

// Checks for the magic bytes of gzip.
bool is_packed(std::string_view bytes) { return bytes.starts_with("\x1f\x8b"); }

namespace {

using nlohmann::json;

struct TextBuffer : std::streambuf {
  explicit TextBuffer(std::string_view text) {
    char* const begin = const_cast<char*>(text.data());
    setg(begin, begin, begin + text.size());
  }
};

// Decompresses gzip data piece by piece. Throws ParseError if they are damaged, truncated, or much larger than any trace
// when decompressed: repetitive traces shrink to a thirtieth.
class GzipBuffer : public std::streambuf {
 public:
  GzipBuffer(std::string_view packed, const std::string& name)
      : name_(name), packed_(packed), left_((size_t{16} << 20) + 50 * packed.size()), piece_(size_t{1} << 16) {
    constexpr int kGzip = 16;  // added to the window bits
    if (inflateInit2(&stream_, MAX_WBITS + kGzip) != Z_OK) refuse("zlib failed to initialize");
  }
  ~GzipBuffer() override { inflateEnd(&stream_); }
  GzipBuffer(const GzipBuffer&) = delete;
  GzipBuffer& operator=(const GzipBuffer&) = delete;

 protected:
  int_type underflow() override {
    size_t got = 0;
    while (got == 0) {
      if (stream_.avail_in == 0) {
        if (ended_ && packed_.empty()) return traits_type::eof();
        stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed_.data()));
        stream_.avail_in = static_cast<uInt>(std::min<size_t>(packed_.size(), std::numeric_limits<uInt>::max()));
        packed_.remove_prefix(stream_.avail_in);
      }
      if (ended_ && inflateReset(&stream_) != Z_OK) refuse("zlib failed to reset");  // members may be concatenated
      stream_.next_out = reinterpret_cast<Bytef*>(piece_.data());
      stream_.avail_out = static_cast<uInt>(piece_.size());
      const int code = inflate(&stream_, Z_NO_FLUSH);
      got = piece_.size() - stream_.avail_out;
      ended_ = code == Z_STREAM_END;
      if (code == Z_BUF_ERROR || (code == Z_OK && got == 0 && packed_.empty())) {
        refuse("truncated: the compressed data end early");
      }
      if (code != Z_OK && !ended_) refuse("damaged: not valid gzip data");
    }
    if (got > left_)
      refuse("more than 16 MiB and 50 times as large when decompressed; decompress it, or profile fewer steps");
    left_ -= got;
    setg(piece_.data(), piece_.data(), piece_.data() + got);
    return traits_type::to_int_type(piece_[0]);
  }

 private:
  [[noreturn]] void refuse(const std::string& why) const { throw ParseError(name_ + ": " + why, 0, 0); }

  const std::string& name_;
  z_stream stream_{};
  std::string_view packed_;
  size_t left_;  // bytes that may still come out
  std::vector<char> piece_;
  bool ended_ = false;  // at the end of a member
};

constexpr const char* kShapesWanted =
    "record the trace with torch.profiler.profile(..., record_shapes=True); shapes are needed to compute the work of "
    "each call";

// The first name of a dtype is the one to write.
constexpr std::pair<std::string_view, c10::ScalarType> kKinetoTypes[] = {{"float", c10::kFloat},
                                                                         {"double", c10::kDouble},
                                                                         {"c10::Half", c10::kHalf},
                                                                         {"c10::BFloat16", c10::kBFloat16},
                                                                         {"long int", c10::kLong},
                                                                         {"long", c10::kLong},
                                                                         {"int", c10::kInt},
                                                                         {"short int", c10::kShort},
                                                                         {"short", c10::kShort},
                                                                         {"signed char", c10::kChar},
                                                                         {"unsigned char", c10::kByte},
                                                                         {"bool", c10::kBool},
                                                                         {"c10::complex<float>", c10::kComplexFloat},
                                                                         {"c10::complex<double>", c10::kComplexDouble},
                                                                         {"c10::Float8_e4m3fn", c10::kFloat8_e4m3fn},
                                                                         {"c10::Float8_e5m2", c10::kFloat8_e5m2},
                                                                         {"__int64", c10::kLong}};

std::optional<c10::ScalarType> dtype_of_type(std::string_view type) {
  for (const auto& [name, dtype] : kKinetoTypes) {
    if (name == type) return dtype;
  }
  return std::nullopt;
}

// Parses dtypes as torch.distributed writes them: "Float", "BFloat16", "c10::Half".
int64_t bytes_of_dtype(std::string_view word) {
  for (int i = 0; i < static_cast<int>(c10::ScalarType::NumOptions); ++i) {
    const auto dtype = static_cast<c10::ScalarType>(i);
    if (dtype != c10::ScalarType::Undefined && word == c10::toString(dtype)) {
      return static_cast<int64_t>(c10::elementSize(dtype));
    }
  }
  const auto dtype = dtype_of_type(word);
  return dtype ? static_cast<int64_t>(c10::elementSize(*dtype)) : 0;
}

// Parses "_allgather_base", "all_gather_into_tensor_coalesced", "allreduce", "reduce_scatter_tensor", ...
std::optional<CollectiveKind> kind_of_name(std::string_view name) {
  using K = CollectiveKind;
  std::string plain;
  for (const char c : name) {
    if (c != '_') plain += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  constexpr std::pair<std::string_view, K> kKinds[] = {
      {"allreduce", K::kAllReduce}, {"allgather", K::kAllGather}, {"reducescatter", K::kReduceScatter},
      {"alltoall", K::kAllToAll},   {"broadcast", K::kBroadcast}, {"scatter", K::kScatter},
      {"gather", K::kGather},       {"reduce", K::kReduce},       {"recv", K::kReceive},
      {"send", K::kSend},           {"barrier", K::kBarrier}};
  for (const auto& [word, kind] : kKinds) {
    if (plain.starts_with(word)) return kind;
  }
  return std::nullopt;
}

int64_t whole_or(const JsonPlace& args, std::string_view key, int64_t otherwise) {
  const auto place = args.find(key);
  if (!place) return otherwise;
  // Some versions write numbers as strings.
  return place->is_text() ? parse_number<int64_t>(place->text()).value_or(otherwise) : place->integer();
}

std::vector<int64_t> input_sizes_of(const JsonPlace& list, bool sizes) {
  std::vector<int64_t> result;
  for (const JsonPlace& element : list.elements()) {
    const int64_t value = element.integer();
    if (sizes && value < 0) element.fail("must not be negative");
    if (value < 0 || value > (int64_t{1} << 48)) element.fail("is larger than any tensor");
    result.push_back(value);
  }
  return result;
}

class TraceReader {
 public:
  explicit TraceReader(TraceEvents& into) : into_(into) {}

  void see(const json& element, size_t place) {
    if (!element.is_object()) {
      throw ParseError(fmt::format("{}: traceEvents[{}] is not an object; expected a trace exported by torch.profiler",
                                   into_.file, place),
                       0, 0);
    }
    ++events_;
    const auto phase = element.find("ph");
    const auto category = element.find("cat");
    if (phase == element.end() || *phase != "X" || category == element.end() || !category->is_string()) return;
    const std::string& cat = category->get_ref<const std::string&>();
    const bool op = cat == "cpu_op" || cat == "user_annotation";
    const bool ran = cat == "kernel" || cat == "gpu_memcpy" || cat == "gpu_memset";
    const bool launch = cat == "cuda_runtime" || cat == "cuda_driver" || cat == "hip_runtime";
    if (!op && !ran && !launch) return;
    const std::string heading = fmt::format("{}: traceEvents[{}]", into_.file, place);
    const JsonPlace event(element, heading);
    const double start = event["ts"].number();
    const double duration = event["dur"].number();
    if (!(std::abs(start) < 1e18) || !(duration < 1e18)) event.fail("has an invalid time");
    if (duration < 0) event["dur"].fail("must not be negative");
    const std::optional<JsonPlace> args = event.find("args");
    if (args && !args->is_object()) args->fail("must be an object");
    if (op) host_event(event, args, cat == "cpu_op", start, duration);
    if (ran) device_event(event, args, start, duration);
    if (launch && args) into_.launches.push_back({thread_of(element), start, whole_or(*args, "correlation", -1)});
  }

  void finish(const json& rest) {
    const bool list = rest.is_array();
    if (!list && !rest.contains("traceEvents")) {
      throw ParseError(into_.file + ": not a torch.profiler trace: \"traceEvents\" is missing", 0, 0);
    }
    if (!list) {
      const JsonPlace place(rest, into_.file);
      if (const auto devices = place.find("deviceProperties")) {
        for (const JsonPlace& device : devices->elements()) {
          if (!into_.device_title.empty()) continue;
          into_.device_title = device.text_or("name", "");
          into_.device_memory = static_cast<int64_t>(std::min(device.amount_or("totalGlobalMem", 0), 9e18));
        }
      }
    }
    if (into_.ops.empty() && into_.kernels.empty()) {
      throw ParseError(
          fmt::format("{}: none of {} events is an operator (\"cat\": \"cpu_op\") or a kernel; give a trace exported "
                      "by torch.profiler",
                      into_.file, events_),
          0, 0);
    }
    if (!shapes_) throw ParseError(into_.file + ": the calls have no shapes (\"Input Dims\"); " + kShapesWanted, 0, 0);
    std::ranges::stable_sort(into_.ops, [](const TraceOp& a, const TraceOp& b) {
      return std::tuple(std::string_view(a.thread), a.start, -a.duration) <
             std::tuple(std::string_view(b.thread), b.start, -b.duration);
    });
    std::ranges::stable_sort(into_.kernels, {}, &TraceKernel::start);
    std::ranges::sort(into_.steps, {}, &TraceStep::start);
    take_over_comms();
  }

 private:
  // Process and thread ids, numbers or strings.
  static std::string thread_of(const json& event) {
    const auto text = [&](const char* key) {
      const auto found = event.find(key);
      return found == event.end() ? std::string() : json_text(*found);
    };
    return text("pid") + "/" + text("tid");
  }

  void host_event(const JsonPlace& event, const std::optional<JsonPlace>& args, bool op, double start,
                  double duration) {
    TraceOp made{.name = event["name"].text(), .thread = thread_of(event.json()), .start = start, .duration = duration};
    if (made.name.starts_with("ProfilerStep#")) into_.steps.push_back({start, start + duration});
    if (!op) return;
    if (args) {
      made.id = whole_or(*args, "External id", -1);
      inputs_of(*args, made);
      if (made.name == "record_param_comms") {
        ++comms_;
        if (const auto collective = collective_of(*args)) comms_by_id_[made.id] = *collective;
      }
    }
    shapes_ |= made.has_shapes;
    into_.ops.push_back(std::move(made));
  }

  static void inputs_of(const JsonPlace& args, TraceOp& op) {
    const auto dims = args.find("Input Dims");
    const auto types = args.find("Input type");
    if (!dims || !types) return;
    const auto strides = args.find("Input Strides");
    const auto concrete = args.find("Concrete Inputs");
    if (types->size() != dims->size()) types->fail("must be as long as \"Input Dims\"");
    if (strides && strides->size() != dims->size()) strides->fail("must be as long as \"Input Dims\"");
    op.has_shapes = true;
    for (size_t i = 0; i < dims->size(); ++i) {
      TraceInput input{.type = (*types)[i].text()};
      input.dtype = dtype_of_type(input.type);
      if (concrete && i < concrete->size() && (*concrete)[i].is_text()) input.text = (*concrete)[i].text();
      const auto read = [&](const JsonPlace& list, std::vector<std::vector<int64_t>>& into, bool sizes) {
        if (input.is_tensors()) {
          for (const JsonPlace& element : list.elements()) into.push_back(input_sizes_of(element, sizes));
        } else if (input.is_tensor()) {
          into.push_back(input_sizes_of(list, sizes));
        }
      };
      read((*dims)[i], input.sizes, true);
      if (strides) read((*strides)[i], input.strides, false);
      for (size_t t = 0; t < input.strides.size() && t < input.sizes.size(); ++t) {
        if (input.strides[t].size() != input.sizes[t].size()) input.strides.clear();
      }
      op.inputs.push_back(std::move(input));
    }
  }

  void device_event(const JsonPlace& event, const std::optional<JsonPlace>& args, double start, double duration) {
    TraceKernel kernel{.name = event["name"].text(), .start = start, .duration = duration};
    if (args) {
      kernel.id = whole_or(*args, "External id", whole_or(*args, "external id", -1));
      kernel.correlation = whole_or(*args, "correlation", -1);
      kernel.device = whole_or(*args, "device", 0);
      kernel.stream = whole_or(*args, "stream", 0);
      kernel.collective = collective_of(*args);
    }
    into_.kernels.push_back(std::move(kernel));
  }

  static std::optional<TraceCollective> collective_of(const JsonPlace& args) {
    const auto name = args.find("Collective name");
    if (!name || !name->is_text()) return std::nullopt;
    const auto kind = kind_of_name(name->text());
    if (!kind) return std::nullopt;
    const int64_t sent = whole_or(args, "In msg nelems", 0);
    const int64_t received = whole_or(args, "Out msg nelems", 0);
    if (sent < 0 || received < 0) args.fail("has a negative message size");
    const bool by_result =
        *kind == CollectiveKind::kAllGather || *kind == CollectiveKind::kReceive || *kind == CollectiveKind::kGather;
    const int64_t elements = std::min(by_result ? std::max(sent, received) : sent, int64_t{1} << 48);
    return TraceCollective{.kind = *kind,
                           .processes = whole_or(args, "Group size", 0),
                           .payload = elements * bytes_of_dtype(args.text_or("dtype", "")),
                           .group = args.text_or("Process Group Description", args.text_or("Process Group Name", ""))};
  }

  // NCCL kernels without metadata take them from the host's record.
  void take_over_comms() {
    int64_t known = 0;
    for (TraceKernel& kernel : into_.kernels) {
      if (!kernel.collective && kernel.name.starts_with("nccl")) {
        if (const auto found = comms_by_id_.find(kernel.id); found != comms_by_id_.end()) {
          kernel.collective = found->second;
        }
      }
      known += kernel.collective.has_value();
    }
    if (known == 0) into_.comms_without_kernel = comms_;
  }

  TraceEvents& into_;
  std::map<int64_t, TraceCollective> comms_by_id_;
  size_t events_ = 0;
  int64_t comms_ = 0;
  bool shapes_ = false;
};

}  // namespace

std::string kineto_type(c10::ScalarType dtype) {
  for (const auto& [name, known] : kKinetoTypes) {
    if (known == dtype) return std::string(name);
  }
  return std::string("c10::") + c10::toString(dtype);
}

TraceEvents TraceEvents::read_file(const std::string& path) {
  TraceEvents events;
  events.file = path;
  TraceReader reader(events);
  const std::string bytes = shadowgraph::read_file(path);
  std::unique_ptr<std::streambuf> buffer;
  if (is_packed(bytes)) {
    buffer = std::make_unique<GzipBuffer>(bytes, path);
  } else {
    buffer = std::make_unique<TextBuffer>(bytes);
  }
  std::istream text(buffer.get());
  const json rest = parse_json_list(text, path, "traceEvents",
                                    [&](const json& element, size_t place) { reader.see(element, place); });
  reader.finish(rest);
  return events;
}

bool is_trace_file(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return false;
  std::ifstream file(path, std::ios::binary);
  std::string head(4096, '\0');
  file.read(head.data(), static_cast<std::streamsize>(head.size()));
  head.resize(static_cast<size_t>(file.gcount()));
  if (is_packed(head)) return true;
  const size_t first = head.find_first_not_of(" \t\r\n");
  if (first == head.npos || head[first] != '{') return false;
  // Keys that torch.profiler and shadowgraph write before the events.
  return head.find("\"traceEvents\"") != head.npos || head.find("\"schemaVersion\"") != head.npos ||
         head.find("\"displayTimeUnit\"") != head.npos;
}

}  // namespace shadowgraph
