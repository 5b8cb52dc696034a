// A folder of its own for one test, removed at the end.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <string_view>

namespace adder::test {

class TempDir {
 public:
  TempDir() {
    std::string path = ::testing::TempDir() + "adder-XXXXXX";
    if (::mkdtemp(path.data()) == nullptr) {
      ADD_FAILURE() << "cannot make " << path;
      std::abort();
    }
    path_ = path;
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

  void Write(const std::string& name, std::string_view text) const {
    std::ofstream file(*this / name, std::ios::binary);
    file.write(text.data(), static_cast<std::streamsize>(text.size()));
    EXPECT_TRUE(file.good()) << "cannot write " << *this / name;
  }
  void Write(const std::string& name, std::span<const uint8_t> bytes) const {
    Write(name, std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  }

 private:
  std::string path_;
};

}  // namespace adder::test
