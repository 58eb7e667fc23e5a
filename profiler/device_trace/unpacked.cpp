#include "profiler/device_trace/unpacked.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <zlib.h>

#include "shadowgraph/error.h"

namespace shadowgraph {

bool is_packed(std::string_view bytes) { return bytes.starts_with("\x1f\x8b"); }

std::string unpacked(std::string_view bytes, const std::string& name) {
  constexpr size_t kMost = size_t{4} << 30;
  constexpr size_t kPiece = size_t{1} << 20;
  constexpr int kGzip = 16;  // added to the size of the window
  const auto refuse = [&](const std::string& why) { throw ParseError(name + ": " + why, 0, 0); };
  z_stream stream{};
  if (inflateInit2(&stream, MAX_WBITS + kGzip) != Z_OK) refuse("zlib does not start");
  const std::unique_ptr<z_stream, void (*)(z_stream*)> ends(&stream, [](z_stream* s) { inflateEnd(s); });
  std::string result;
  size_t taken = 0;
  for (;;) {
    if (stream.avail_in == 0) {
      const size_t piece = std::min<size_t>(bytes.size() - taken, std::numeric_limits<uInt>::max());
      stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data() + taken));
      stream.avail_in = static_cast<uInt>(piece);
      taken += piece;
    }
    const size_t before = result.size();
    if (before > kMost) refuse("is larger than 4 GiB when unpacked: profile fewer steps");
    result.resize(before + kPiece);
    stream.next_out = reinterpret_cast<Bytef*>(result.data() + before);
    stream.avail_out = static_cast<uInt>(kPiece);
    const int code = inflate(&stream, Z_NO_FLUSH);
    result.resize(before + kPiece - stream.avail_out);
    if (code == Z_STREAM_END) {
      const size_t left = bytes.size() - taken + stream.avail_in;
      if (left == 0) return result;
      if (inflateReset(&stream) != Z_OK) refuse("zlib does not go on");  // files of gzip may follow one another
    } else if (code == Z_BUF_ERROR ||
               (code == Z_OK && stream.avail_in == 0 && taken == bytes.size() && stream.avail_out > 0)) {
      refuse("is cut short: its packed data do not end");
    } else if (code != Z_OK) {
      refuse("is damaged: no data of gzip behind its first bytes");
    }
  }
}

}  // namespace shadowgraph
