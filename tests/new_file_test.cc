// Files that appear whole or not at all.
#include "runtime/new_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/temp_dir.h"

namespace adder::test {
namespace {

namespace fs = std::filesystem;
using Access = NewFile::Access;

std::span<const uint8_t> Bytes(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}
std::string ContentOf(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
size_t FilesIn(const TempDir& folder) {
  const fs::directory_iterator all(folder.path());
  return static_cast<size_t>(std::distance(begin(all), end(all)));
}
void WriteWhole(const std::string& path, std::string_view text, Access access) {
  auto file = NewFile::Create(path, access);
  ASSERT_TRUE(file.ok()) << file.status().message();
  ASSERT_TRUE(file->Append(Bytes(text)).ok());
  ASSERT_TRUE(file->Finish().ok());
}

TEST(NewFile, ReplacesTheOldOneWhenItIsComplete) {
  const TempDir folder;
  const std::string path = folder / "x";
  WriteWhole(path, "old", Access::kEveryone);
  {
    auto file = NewFile::Create(path, Access::kEveryone);
    ASSERT_TRUE(file.ok());
    ASSERT_TRUE(file->Append(Bytes("??w")).ok());
    ASSERT_TRUE(file->WriteAt(0, Bytes("ne")).ok());
    ASSERT_TRUE(file->Append(Bytes("er")).ok());
    EXPECT_EQ(ContentOf(path), "old");
    NewFile moved = std::move(*file);
    ASSERT_TRUE(moved.Finish().ok());
  }
  EXPECT_EQ(ContentOf(path), "newer");
  EXPECT_EQ(FilesIn(folder), 1u);
}

TEST(NewFile, IsRemovedWhenItIsNotFinished) {
  const TempDir folder;
  const std::string path = folder / "x";
  WriteWhole(path, "old", Access::kEveryone);
  {
    auto file = NewFile::Create(path, Access::kEveryone);
    ASSERT_TRUE(file.ok() && file->Append(Bytes("half")).ok());
    EXPECT_EQ(FilesIn(folder), 2u);
  }
  EXPECT_EQ(ContentOf(path), "old");
  EXPECT_EQ(FilesIn(folder), 1u);
}

// What a killed process of this number left behind, or another thread is writing.
TEST(NewFile, TwoAtATime) {
  const TempDir folder;
  const std::string path = folder / "x";
  auto first = NewFile::Create(path, Access::kEveryone);
  auto second = NewFile::Create(path, Access::kEveryone);
  ASSERT_TRUE(first.ok() && second.ok());
  ASSERT_TRUE(first->Append(Bytes("first")).ok() && second->Append(Bytes("second")).ok());
  ASSERT_TRUE(second->Finish().ok());
  EXPECT_EQ(ContentOf(path), "second");
  ASSERT_TRUE(first->Finish().ok());
  EXPECT_EQ(ContentOf(path), "first");
  EXPECT_EQ(FilesIn(folder), 1u);
}

TEST(NewFile, AccessAsAskedFor) {
  const TempDir folder;
  const mode_t mask = ::umask(022);
  WriteWhole(folder / "owner", "", Access::kOwner);
  WriteWhole(folder / "everyone", "", Access::kEveryone);
  ::umask(mask);
  struct stat info {};
  ASSERT_EQ(::stat((folder / "owner").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  ASSERT_EQ(::stat((folder / "everyone").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0644u);
}

TEST(NewFile, SaysWhatItCannotMake) {
  const TempDir folder;
  const auto refused = NewFile::Create(folder.path(), Access::kEveryone);
  EXPECT_EQ(refused.status().code(), Code::kInvalidArgument);
  EXPECT_EQ(refused.status().message(), folder.path() + ": exists and is not a regular file");
  const auto nowhere = NewFile::Create(folder / "no/such/folder", Access::kEveryone);
  EXPECT_EQ(nowhere.status().code(), Code::kIo);
  EXPECT_NE(nowhere.status().message().find("cannot create: No such file"), std::string::npos);
}

}  // namespace
}  // namespace adder::test
