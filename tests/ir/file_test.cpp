// Files are written atomically, and special files are never replaced by regular ones.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <ostream>

#include "shadowgraph/error.h"
#include "shadowgraph/graph/text.h"

namespace shadowgraph {
namespace {

namespace fs = std::filesystem;

class Files : public ::testing::Test {
 protected:
  Files() { fs::create_directories(folder_); }
  ~Files() override { fs::remove_all(folder_); }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  size_t count() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()));
  }
  std::string failure(const std::string& target) const {
    try {
      write_file(target, "x");
    } catch (const FileError& error) {
      return error.what();
    }
    return "written";
  }

 private:
  fs::path folder_ = fs::path(::testing::TempDir()) /
                     ("files_" + std::string(::testing::UnitTest::GetInstance()->current_test_info()->name()));
};

TEST_F(Files, ComeBackByteForByte) {
  const std::string content("a\0\r\n\xff", 5);
  write_file(path("f"), content);
  EXPECT_EQ(read_file(path("f")), content);
  write_file(path("f"), "");
  EXPECT_EQ(read_file(path("f")), "");
  EXPECT_EQ(count(), 1U) << "a temporary file was left behind";
}

TEST_F(Files, AreAsTheyWereWhenWritingFails) {
  write_file(path("f"), "before");
  EXPECT_THROW(write_file(path("f"),
                          [](std::ostream& out) {
                            out << "half";
                            throw Error("stop");
                          }),
               Error);
  EXPECT_THROW(write_file(path("f"), [](std::ostream& out) { out.setstate(std::ios::badbit); }), FileError);
  EXPECT_EQ(read_file(path("f")), "before");
  EXPECT_EQ(count(), 1U) << "a temporary file was left behind";
}

TEST_F(Files, LinksAreFollowed) {
  write_file(path("target"), "before");
  fs::create_symlink("target", path("link"));
  write_file(path("link"), "after");
  EXPECT_TRUE(fs::is_symlink(path("link")));
  EXPECT_EQ(read_file(path("target")), "after");
}

TEST_F(Files, DevicesStayDevices) {
  write_file("/dev/null", "x");
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
  EXPECT_EQ(failure("/dev/full"), "cannot write all of '/dev/full': No space left on device");
  EXPECT_TRUE(fs::is_character_file("/dev/full"));
}

TEST_F(Files, SayWhy) {
  EXPECT_EQ(failure(path("no/such/f")), "cannot write '" + path("no/such/f") + "': No such file or directory");
  EXPECT_EQ(failure(path("")), "cannot write '" + path("") + "': Is a directory");
  EXPECT_THROW(read_file(path("")), FileError);
  EXPECT_THROW(read_file(path("none")), FileError);
}

}  // namespace
}  // namespace shadowgraph
