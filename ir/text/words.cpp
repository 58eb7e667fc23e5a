#include "ir/text/words.h"

#include <torch/headeronly/version.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "support/text.h"

namespace shadowgraph {
namespace {

// Indexed by ScalarType. c10 promises never to renumber them, as they are in serialized files; new ones come before
// Undefined. This libtorch has the first kDtypeCount words; the assertion fails if a version adds more.
constexpr std::string_view kDtypes[] = {
    "u8",      "i8",    "i16",    "i32",    "i64",       "f16",         "f32",        "f64",   "c32",     "c64",
    "c128",    "bool",  "qi8",    "qu8",    "qi32",      "bf16",        "qu4x2",      "qu2x4", "bits1x8", "bits2x4",
    "bits4x2", "bits8", "bits16", "f8e5m2", "f8e4m3fn",  "f8e5m2fnuz",  "f8e4m3fnuz", "u16",   "u32",     "u64",
    "u1",      "u2",    "u3",     "u4",     "u5",        "u6",          "u7",         "i1",    "i2",      "i3",
    "i4",      "i5",    "i6",     "i7",     "f8e8m0fnu", "f4e2m1fn_x2", "bc32"};
constexpr auto kDtypeCount = static_cast<size_t>(c10::ScalarType::Undefined);
static_assert(kDtypeCount <= std::size(kDtypes));
constexpr std::string_view kUndefined = "undefined";

constexpr std::string_view kLayouts[] = {"strided",    "sparse_coo", "sparse_csr", "mkldnn",
                                         "sparse_csc", "sparse_bsr", "sparse_bsc", "jagged"};
static_assert(static_cast<size_t>(c10::Layout::Jagged) + 1 == std::size(kLayouts));

constexpr std::string_view kMemoryFormats[] = {"contiguous", "preserve", "channels_last", "channels_last_3d"};
static_assert(static_cast<size_t>(c10::MemoryFormat::ChannelsLast3d) == 3);

// Spelled as in PyTorch, indexed by DeviceType.
constexpr std::string_view kDevices[] = {"cpu",  "cuda", "mkldnn", "opengl", "opencl", "ideep", "hip",
                                         "fpga", "maia", "xla",    "vulkan", "metal",  "xpu",   "mps",
                                         "meta", "hpu",  "ve",     "lazy",   "ipu",    "mtia",  "privateuseone"};
static_assert(std::size(kDevices) == static_cast<size_t>(c10::COMPILE_TIME_MAX_DEVICE_TYPES));

// The tables are short, and f32 is handled separately (parse_dtype).
template <class E>
std::optional<E> find_word(std::span<const std::string_view> words, std::string_view word) {
  const auto found = std::ranges::find(words, word);
  return found == words.end() ? std::nullopt : std::optional(static_cast<E>(found - words.begin()));
}

// The NaN that processors produce; others are written with their bits.
constexpr uint64_t kUsualNan = 0x7ff8000000000000;
constexpr char kBase64[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
constexpr char kHex[] = "0123456789abcdef";

// Lower case only, as the writer produces it: one text per number.
int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

}  // namespace

// Values out of range print as "undefined": invalid graphs must print.
std::string_view dtype_word(c10::ScalarType dtype) {
  const auto i = static_cast<size_t>(dtype);
  return i < kDtypeCount ? kDtypes[i] : kUndefined;
}

std::optional<c10::ScalarType> parse_dtype(std::string_view word) {
  // Nearly every value of a real graph.
  if (word == "f32") return c10::ScalarType::Float;
  if (word == "bf16") return c10::ScalarType::BFloat16;
  if (word == kUndefined) return c10::ScalarType::Undefined;
  return find_word<c10::ScalarType>(std::span(kDtypes).first(kDtypeCount), word);
}

std::string_view layout_word(c10::Layout layout) {
  const auto i = static_cast<size_t>(layout);
  return i < std::size(kLayouts) ? kLayouts[i] : std::string_view();
}

std::optional<c10::Layout> parse_layout(std::string_view word) { return find_word<c10::Layout>(kLayouts, word); }

std::string_view memory_format_word(c10::MemoryFormat format) {
  const auto i = static_cast<size_t>(format);
  return i < std::size(kMemoryFormats) ? kMemoryFormats[i] : std::string_view();
}

std::optional<c10::MemoryFormat> parse_memory_format(std::string_view word) {
  return find_word<c10::MemoryFormat>(kMemoryFormats, word);
}

std::string_view word_of_number(TypeClass type, int64_t number) {
  // c10's enumerations are one byte wide: 256 + 6 is not a dtype.
  if (number < 0 || number >= 127) return {};
  if (type == TypeClass::kDtype && number < static_cast<int64_t>(kDtypeCount)) return kDtypes[number];
  if (type == TypeClass::kLayout) return layout_word(static_cast<c10::Layout>(number));
  if (type == TypeClass::kMemoryFormat) return memory_format_word(static_cast<c10::MemoryFormat>(number));
  return {};
}

void append_device(std::string& out, c10::Device device) {
  const auto i = static_cast<size_t>(device.type());
  out += i < std::size(kDevices) ? kDevices[i] : std::string_view("device?");
  if (device.index() != -1) {
    out += ':';
    append_int(out, device.index());
  }
}

std::string device_text(c10::Device device) {
  std::string text;
  append_device(text, device);
  return text;
}

std::optional<c10::Device> parse_device(std::string_view text) {
  const size_t colon = text.find(':');
  const auto type = find_word<c10::DeviceType>(kDevices, text.substr(0, colon));
  if (!type) return std::nullopt;
  if (colon == std::string_view::npos) return c10::Device(*type);
  // A CPU has index 0 or none: c10::Device throws for others.
  const auto index = parse_number<int64_t>(text.substr(colon + 1));
  if (!index || *index < 0 || *index > 127 || (*type == c10::DeviceType::CPU && *index != 0)) return std::nullopt;
  return c10::Device(*type, static_cast<c10::DeviceIndex>(*index));
}

// to_chars neither allocates nor depends on the locale.
void append_int(std::string& out, int64_t value) {
  // -2^63 has 20 characters.
  char buffer[24];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value).ptr;
  out.append(buffer, end);
}

void append_float(std::string& out, double value) {
  if (std::isnan(value)) {
    const auto bits = std::bit_cast<uint64_t>(value);
    out += "nan";
    if (bits != kUsualNan) {
      out += '(';
      for (int shift = 60; shift >= 0; shift -= 4) out += kHex[(bits >> shift) & 15];
      out += ')';
    }
    return;
  }
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value).ptr;
  const std::string_view text(buffer, static_cast<size_t>(end - buffer));
  out += text;
  // "1" would read back as an int.
  if (text.find_first_of(".einf") == std::string_view::npos) out += ".0";
}

std::optional<double> parse_float(std::string_view text) {
  if (text == "nan") return std::bit_cast<double>(kUsualNan);
  if (text.starts_with("nan(")) {
    // Requires all 16 digits: "nan(" + 16 + ")".
    if (text.size() != 21 || text.back() != ')') return std::nullopt;
    uint64_t bits = 0;
    for (char c : text.substr(4, 16)) {
      if (hex_digit(c) < 0) return std::nullopt;
      bits = bits << 4 | static_cast<uint64_t>(hex_digit(c));
    }
    const auto value = std::bit_cast<double>(bits);
    return std::isnan(value) ? std::optional(value) : std::nullopt;
  }
  const auto value = parse_number<double>(text);
  // from_chars also accepts "nan(...)" and "infinity"; the text form only has digits, '.', 'e', signs and "inf".
  return value && !std::isnan(*value) ? value : std::nullopt;
}

// Files contain only ASCII, whatever bytes the names have, so they survive every editor and diff.
void append_quoted(std::string& out, std::string_view text) {
  out += '"';
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte >= 0x20 && byte < 0x7f && !(c == '#' && out.back() == '#')) {  // "##[" commands some logs
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (c == '\r') {
      out += "\\r";
    } else {
      out += "\\x";
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
    }
  }
  out += '"';
}

std::optional<std::string> unquote(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\') {
      out += text[i];
      continue;
    }
    // A trailing backslash escapes nothing.
    if (++i == text.size()) return std::nullopt;
    switch (text[i]) {
      case '"':
      case '\\':
        out += text[i];
        break;
      case 'n':
        out += '\n';
        break;
      case 't':
        out += '\t';
        break;
      case 'r':
        out += '\r';
        break;
      case 'x': {
        if (i + 2 >= text.size() || hex_digit(text[i + 1]) < 0 || hex_digit(text[i + 2]) < 0) return std::nullopt;
        out += static_cast<char>(hex_digit(text[i + 1]) << 4 | hex_digit(text[i + 2]));
        i += 2;
        break;
      }
      default:
        return std::nullopt;
    }
  }
  return out;
}

// Constants are stored as bytes, so their bits are preserved.
void append_base64(std::string& out, std::span<const uint8_t> bytes) {
  out.reserve(out.size() + (bytes.size() + 2) / 3 * 4);
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const size_t left = std::min<size_t>(3, bytes.size() - i);
    uint32_t group = 0;
    for (size_t k = 0; k < 3; ++k) group = group << 8 | (k < left ? bytes[i + k] : 0U);
    for (size_t k = 0; k < 4; ++k) out += k <= left ? kBase64[group >> (18 - 6 * k) & 63] : '=';
  }
}

// Reads only what append_base64 writes: no line breaks, no other padding.
std::optional<std::vector<uint8_t>> parse_base64(std::string_view text) {
  static const auto kValues = [] {
    std::array<int8_t, 256> values;
    values.fill(-1);
    for (int i = 0; i < 64; ++i) values[static_cast<unsigned char>(kBase64[i])] = static_cast<int8_t>(i);
    return values;
  }();
  if (text.size() % 4 != 0) return std::nullopt;
  std::vector<uint8_t> bytes;
  bytes.reserve(text.size() / 4 * 3);
  for (size_t i = 0; i < text.size(); i += 4) {
    const bool last = i + 4 == text.size();
    const size_t padding = last ? (text[i + 3] == '=') + (text[i + 3] == '=' && text[i + 2] == '=') : 0;
    uint32_t group = 0;
    for (size_t k = 0; k < 4; ++k) {
      const int value = k + padding >= 4 ? 0 : kValues[static_cast<unsigned char>(text[i + k])];
      if (value < 0) return std::nullopt;
      group = group << 6 | static_cast<uint32_t>(value);
    }
    for (size_t k = 0; k < 3 - padding; ++k) bytes.push_back(static_cast<uint8_t>(group >> (16 - 8 * k)));
    // Bits cut off by the padding must be 0, so that the encoding of bytes is unique.
    if (padding != 0 && (group & ((1U << (8 * padding)) - 1)) != 0) return std::nullopt;
  }
  return bytes;
}

std::string_view libtorch_version() {
#define SG_TEXT(x) #x
#define SG_VERSION(major, minor, patch) SG_TEXT(major) "." SG_TEXT(minor) "." SG_TEXT(patch)
  return SG_VERSION(TORCH_VERSION_MAJOR, TORCH_VERSION_MINOR, TORCH_VERSION_PATCH);
#undef SG_VERSION
#undef SG_TEXT
}

}  // namespace shadowgraph
