// Compares a converted checkpoint with the implementation in double precision.
#pragma once

#include "runtime/session_buffer.h"
#include "tests/converted_model.h"
#include "tests/reference_mamba.h"
#include "tests/tiny_checkpoint.h"

namespace adder::test {

inline void ExpectEqualsReference(const TinyCheckpoint& checkpoint, Reference&& reference,
                                  size_t layers) {
  const TempDir folder;
  checkpoint.Write(folder);
  const auto converted = ConvertedModel(folder.path(), WeightType::kF32);
  ASSERT_NE(converted->model, nullptr);
  const auto buffer = SessionBuffer::Create(*converted->model, {.tile = 5});
  ASSERT_TRUE(buffer.ok());
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < 30; ++i) ids.push_back(i * 7 % 40);
  const std::vector<Vec> expected = reference.Run(ids, layers);

  class Rows final : public FeedObserver {
   public:
    void OnLogits(size_t, std::span<const float> logits) override {
      rows.emplace_back(logits.begin(), logits.end());
    }
    std::vector<Vec> rows;
  } actual;
  ASSERT_TRUE(buffer->session().Feed(ids, &actual).ok());
  ASSERT_EQ(actual.rows.size(), expected.size());
  double sum = 0, squares = 0, n = 0, worst = 0;
  for (size_t t = 0; t < expected.size(); ++t) {
    ASSERT_EQ(actual.rows[t].size(), expected[t].size());
    for (size_t i = 0; i < expected[t].size(); ++i) {
      sum += expected[t][i];
      squares += expected[t][i] * expected[t][i];
      n += 1;
      worst = std::max(worst, std::fabs(expected[t][i] - actual.rows[t][i]));
      ASSERT_TRUE(std::isfinite(actual.rows[t][i]));
    }
  }
  const double deviation = std::sqrt(squares / n - sum / n * (sum / n));
  ASSERT_GT(deviation, 0.1);  // the model says something
  EXPECT_LE(worst / deviation, 1e-4);
}

}  // namespace adder::test
