// Tests that allocation sizes in pickles of TorchScript files are checked before libtorch's reader allocates.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "core/capture/program_from_file.h"
#include "shadowgraph/error.h"

namespace shadowgraph {
namespace {

using namespace std::string_literals;
using ::testing::HasSubstr;

std::string refusal(const std::string& pickle) {
  try {
    check_pickle_sizes(pickle);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(PickleSizes, AreWithinTheRecord) {
  EXPECT_EQ(refusal("\x80\x02}q\0."s), "");            // an empty dict, kept as memo 0
  EXPECT_EQ(refusal("\x80\x02X\2\0\0\0hiq\1."s), "");  // a string of two bytes
  EXPECT_EQ(refusal("\x80\x02}r\x09\0\0\0."s), "");    // memo 9 of a record of nine bytes
  EXPECT_THAT(refusal("\x80\x02}r\x0a\0\0\0."s), HasSubstr("a memo index is larger than the record"));
  EXPECT_THAT(refusal("\x80\x02}r\xff\xff\xff\x7f."s), HasSubstr("a memo index is larger than the record"));
  EXPECT_THAT(refusal("\x80\x02X\5\0\0\0hi."s), HasSubstr("a length exceeds the rest"));
  EXPECT_THAT(refusal("\x80\x02}r\0"s), HasSubstr("truncated within an opcode"));
  EXPECT_THAT(refusal("\x80\x02}"s), HasSubstr("truncated"));
}

}  // namespace
}  // namespace shadowgraph
