// Tests writing and reading files beside other users.
#include "support/files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <fstream>
#include <unistd.h>
#include <vector>

#include "shadowgraph/error.h"
#include "tests/kernels/temporary_folder.h"

namespace shadowgraph {
namespace {

namespace fs = std::filesystem;

std::string text_of(const fs::path& path) {
  std::string text;
  std::getline(std::ifstream(path), text, '\0');
  return text;
}

void write(const fs::path& path, const std::string& text) {
  replace_file(path.string(), [&](std::ostream& out) { out << text; });
}

size_t entries_of(const fs::path& folder) {
  return static_cast<size_t>(std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

TEST(ReplaceFile, KeepsTheModeAndLeavesNothingElse) {
  const TemporaryFolder folder;
  const fs::path file = folder.path() + "/file";
  for (const mode_t mode : {0600, 0640, 0444, 0755}) {
    write(file, "one");
    ASSERT_EQ(::chmod(file.c_str(), mode), 0);
    write(file, "two");
    EXPECT_EQ(text_of(file), "two");
    EXPECT_EQ(static_cast<mode_t>(fs::status(file).permissions()), mode);
  }
  const mode_t before = ::umask(027);
  write(folder.path() + "/new", "one");
  ::umask(before);
  EXPECT_EQ(static_cast<mode_t>(fs::status(folder.path() + "/new").permissions()), 0640U) << "the umask applies";
  EXPECT_EQ(entries_of(folder.path()), 2U);
}

// Links with the names that a temporary file could have lead to a file of the victim.
TEST(ReplaceFile, FollowsNoLinkThatLiesInWait) {
  const TemporaryFolder folder;
  const fs::path victim = folder.path() + "/victim", file = folder.path() + "/file";
  std::ofstream(victim) << "precious";
  for (const std::string& ending : {std::string(".tmp"), ".tmp" + std::to_string(::getpid())}) {
    fs::create_symlink(victim, file.string() + ending);
  }
  write(file, "new");
  EXPECT_EQ(text_of(victim), "precious");
  EXPECT_EQ(text_of(file), "new");
}

TEST(ReplaceFile, AnExceptionLeavesTheOldFile) {
  const TemporaryFolder folder;
  const fs::path file = folder.path() + "/file";
  write(file, "old");
  EXPECT_THROW(replace_file(file.string(),
                            [](std::ostream& out) {
                              out << "half";
                              throw Error("interrupted");
                            }),
               Error);
  EXPECT_EQ(text_of(file), "old");
  EXPECT_EQ(entries_of(folder.path()), 1U);
  EXPECT_THROW(write("/dev/full", "x"), FileError);
  EXPECT_THROW(write(folder.path() + "/nowhere/file", "x"), FileError);
  EXPECT_THROW(write(folder.path(), "x"), FileError);
}

TEST(ReplaceFile, ReplacesTheTargetOfALink) {
  const TemporaryFolder folder;
  write(folder.path() + "/target", "old");
  fs::create_symlink("target", folder.path() + "/link");
  write(folder.path() + "/link", "new");
  EXPECT_TRUE(fs::is_symlink(folder.path() + "/link"));
  EXPECT_EQ(text_of(folder.path() + "/target"), "new");
}

TEST(PrivateFile, IsOursAndOnlyWeWriteIt) {
  const TemporaryFolder folder;
  const fs::path file = folder.path() + "/new/file";
  const mode_t before = ::umask(0);
  replace_private_file(file.string(), "mine");
  ::umask(before);
  EXPECT_EQ(read_private_file(file.string()), "mine");
  EXPECT_EQ(fs::status(file.parent_path()).permissions(), fs::perms::owner_all);
  fs::create_symlink(file, folder.path() + "/link");
  EXPECT_THROW(read_private_file(folder.path() + "/link"), FileError);
  ASSERT_EQ(::mkfifo((folder.path() + "/pipe").c_str(), 0600), 0);
  EXPECT_THROW(read_private_file(folder.path() + "/pipe"), FileError) << "and does not wait for a writer";
  ASSERT_EQ(::chmod(file.c_str(), 0620), 0);
  EXPECT_THROW(read_private_file(file.string()), FileError);
  ASSERT_EQ(::chmod(file.parent_path().c_str(), 0777), 0);
  EXPECT_THROW(replace_private_file(file.string(), "theirs"), FileError);
}

TEST(FileName, IsOneComponent) {
  const std::vector<std::string> names = {
      "../../etc/passwd",          "/etc/passwd",        "..", ".", "", "a\\b", "-rf", ".bashrc", "a\nb",
      std::string("nul\0byte", 8), std::string(400, 'x')};
  for (const std::string& name : names) {
    const fs::path path = file_name(name);
    EXPECT_EQ(std::distance(path.begin(), path.end()), 1) << name;
    EXPECT_EQ(path.string().find_first_of(std::string("/\\\n\0", 4)), std::string::npos) << name;
    EXPECT_NE(path.string()[0], '.');
    EXPECT_NE(path.string()[0], '-');
    EXPECT_LE(path.string().size(), 201U);
  }
  EXPECT_EQ(file_name("aten::add_Tensor"), "aten::add_Tensor") << "names of existing files stay";
}

TEST(MakeFolder, RefusesWithATypedError) {
  const TemporaryFolder folder;
  std::ofstream(folder.path() + "/file") << "in the way";
  make_folder(folder.path() + "/a/b");
  EXPECT_TRUE(fs::is_directory(folder.path() + "/a/b"));
  EXPECT_THROW(make_folder(folder.path() + "/file"), FileError);
  EXPECT_THROW(make_folder(folder.path() + "/file/sub"), FileError);
  EXPECT_THROW(make_folder(folder.path() + "/" + std::string(300, 'x')), FileError);
  EXPECT_FALSE(is_file(std::string(5000, 'x'))) << "and does not throw";
  EXPECT_FALSE(is_file(folder.path()));
}

}  // namespace
}  // namespace shadowgraph
