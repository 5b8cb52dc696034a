// The number of threads of a session changes nothing but its speed; sessions of one model run side
// by side. Also run with ThreadSanitizer (preset tsan).
#include <gtest/gtest.h>

#include <cstring>
#include <thread>
#include <vector>

#include "runtime/session_buffer.h"
#include "tests/converted_model.h"

namespace adder::test {
namespace {

std::vector<int32_t> Ids(size_t n) {
  std::vector<int32_t> ids(n);
  for (size_t i = 0; i < n; ++i) ids[i] = static_cast<int32_t>(i * 37 % 4096);
  return ids;
}

// Logits behind a prompt of two tiles, then behind each of some single tokens.
std::vector<float> Logits(const Model& model, uint32_t threads) {
  const auto buffer = SessionBuffer::Create(model, {.tile = 24, .threads = threads});
  EXPECT_TRUE(buffer.ok()) << buffer.status().message();
  Session& session = buffer->session();
  std::vector<float> all;
  const auto feed = [&](std::span<const int32_t> ids) {
    EXPECT_TRUE(session.Feed(ids).ok());
    all.insert(all.end(), session.logits().begin(), session.logits().end());
  };
  const std::vector<int32_t> ids = Ids(40);
  feed(ids);
  for (size_t i = 0; i < 5; ++i) feed({&ids[i], 1});
  return all;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

class Threads : public testing::TestWithParam<WeightType> {};

TEST_P(Threads, GiveTheBitsOfOne) {
  const auto converted = ConvertedModel(StoryFolder(), GetParam());
  const std::vector<float> one = Logits(*converted->model, 1);
  for (const uint32_t threads : {2u, 3u, 8u}) {
    EXPECT_TRUE(SameBits(one, Logits(*converted->model, threads))) << threads << " threads";
  }
}

INSTANTIATE_TEST_SUITE_P(Types, Threads,
                         testing::Values(WeightType::kQ8, WeightType::kQ4, WeightType::kF16));

TEST(ThreadCount, IsBoundedByProcessorsAndRefusedOutOfRange) {
  const auto converted = ConvertedModel(GoldenFolder("mamba2"), WeightType::kQ8);
  const auto many = SessionBuffer::Create(*converted->model, {.tile = 1, .threads = 200});
  ASSERT_TRUE(many.ok()) << many.status().message();
  EXPECT_LE(many->session().threads(), std::max(1u, std::thread::hardware_concurrency()));
  for (const uint32_t threads : {0u, kMaxThreads + 1}) {
    const auto refused = SessionBuffer::Create(*converted->model, {.tile = 1, .threads = threads});
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.status().code(), Code::kInvalidArgument);
  }
}

TEST(Sessions, OfOneModelRunOnThreadsOfTheirOwn) {
  const auto converted = ConvertedModel(StoryFolder(), WeightType::kQ8);
  const std::vector<float> expected = Logits(*converted->model, 1);
  std::vector<std::vector<float>> got(4);
  std::vector<std::thread> threads;
  for (auto& logits : got) {
    threads.emplace_back([&] { logits = Logits(*converted->model, 1); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& logits : got) EXPECT_TRUE(SameBits(logits, expected));
}

TEST(Cancel, FromAnotherThreadEndsAFeed) {
  const auto converted = ConvertedModel(StoryFolder(), WeightType::kQ8);
  const auto buffer = SessionBuffer::Create(*converted->model, {.tile = 8, .threads = 2});
  ASSERT_TRUE(buffer.ok());
  Session& session = buffer->session();
  const std::vector<int32_t> ids = Ids(200000);
  std::thread canceller([&] { session.Cancel(); });
  const Status status = session.Feed(ids);
  canceller.join();
  EXPECT_EQ(status.code(), Code::kCancelled);
  EXPECT_LT(session.position(), ids.size());
}

}  // namespace
}  // namespace adder::test
