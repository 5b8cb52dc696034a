// The C API: its C part (api_test.c), files that are no models, memory that runs out, and leaks.
#include "tests/api_test.h"

#include <adder/adder.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <new>

#include "tests/converted_model.h"
#include "tests/sanitized.h"
#include "tests/tiny_checkpoint.h"

namespace {
// Allocations that still succeed before one fails; negative: all do.
thread_local long allocations_left = -1;

void* Allocate(size_t size, size_t alignment) {
  if (allocations_left == 0) throw std::bad_alloc();
  if (allocations_left > 0) --allocations_left;
  void* pointer = nullptr;
  if (posix_memalign(&pointer, alignment, size > 0 ? size : 1) != 0) throw std::bad_alloc();
  return pointer;
}
}  // namespace

[[gnu::noinline]] void* operator new(size_t size) {
  return Allocate(size, alignof(std::max_align_t));
}
[[gnu::noinline]] void* operator new(size_t size, std::align_val_t alignment) {
  return Allocate(size, static_cast<size_t>(alignment));
}
[[gnu::noinline]] void* operator new[](size_t size) { return operator new(size); }
[[gnu::noinline]] void operator delete(void* pointer) noexcept { std::free(pointer); }
[[gnu::noinline]] void operator delete(void* pointer, size_t) noexcept { std::free(pointer); }
[[gnu::noinline]] void operator delete(void* pointer, std::align_val_t) noexcept {
  std::free(pointer);
}
[[gnu::noinline]] void operator delete(void* pointer, size_t, std::align_val_t) noexcept {
  std::free(pointer);
}
[[gnu::noinline]] void operator delete[](void* pointer) noexcept { std::free(pointer); }
[[gnu::noinline]] void operator delete[](void* pointer, size_t) noexcept { std::free(pointer); }

namespace adder::test {
namespace {

// A model of two layers with a real tokenizer.
std::unique_ptr<ConvertedFile> TextModel() {
  Mamba1Shape shape;
  shape.vocab = 1500;
  const TempDir source;
  MakeMamba1(shape).Write(source);
  const auto tokenizer =
      ReadFileBytes(std::string(ADDER_SOURCE_DIR) + "/tests/data/tokenizers/small-gpt2.json");
  source.Write("tokenizer.json", tokenizer);
  return ConvertedModel(source.path(), WeightType::kQ8);
}

TEST(Api, FromC) {
  const auto text = TextModel();
  const auto ids = ConvertedModel(GoldenFolder("mamba1"), WeightType::kQ4);
  const TempDir folder;
  EXPECT_EQ(adder_c_api_failures(text->path.c_str(), ids->path.c_str(), (folder / "state").c_str()),
            0);
}

TEST(Api, FilesThatAreNoModels) {
  const TempDir folder;
  folder.Write("empty", "");
  folder.Write("text", std::string(5000, 'x'));
  folder.Write("short",
               "\x89"
               "ADDER\r\n");
  const struct {
    std::string path;
    adder_status status;
  } cases[] = {{folder / "missing", ADDER_NOT_FOUND},
               {folder / "empty", ADDER_CORRUPT_FILE},
               {folder / "text", ADDER_CORRUPT_FILE},
               {folder / "short", ADDER_CORRUPT_FILE},
               {folder.path(), ADDER_INVALID_ARGUMENT},
               {"/dev/zero", ADDER_INVALID_ARGUMENT},
               {"", ADDER_NOT_FOUND}};
  for (const auto& c : cases) {
    adder_model* model = nullptr;
    adder_error error = {};
    EXPECT_EQ(adder_model_open(c.path.c_str(), nullptr, &model, &error), c.status)
        << c.path << ": " << error.message;
    EXPECT_EQ(model, nullptr);
    EXPECT_NE(std::string(error.message).find(c.path), std::string::npos) << error.message;
  }
}

TEST(Api, KernelsAreChosenByName) {
  const auto file = TextModel();
  adder_model_options options = ADDER_INIT(adder_model_options);
  adder_model* model = nullptr;
  options.isa = "scalar";
  ASSERT_EQ(adder_model_open(file->path.c_str(), &options, &model, nullptr), ADDER_OK);
  adder_model_info info = ADDER_INIT(adder_model_info);
  ASSERT_EQ(adder_model_describe(model, &info, nullptr), ADDER_OK);
  EXPECT_STREQ(info.isa, "scalar");
  EXPECT_STREQ(info.family, "mamba");
  EXPECT_STREQ(info.type, "q8");
  adder_model_free(model);
  options.isa = "mmx";
  EXPECT_EQ(adder_model_open(file->path.c_str(), &options, &model, nullptr),
            ADDER_INVALID_ARGUMENT);
}

TEST(Api, ModelFromMemory) {
  const auto file = TextModel();
  const std::vector<uint8_t> bytes = ReadFileBytes(file->path);
  std::unique_ptr<void, decltype(&std::free)> memory(
      std::aligned_alloc(64, RoundUp(bytes.size(), 64) + 64), &std::free);
  auto* aligned = static_cast<uint8_t*>(memory.get());
  adder_model_options options = ADDER_INIT(adder_model_options);
  options.verify_checksums = 1;
  adder_model* model = nullptr;
  adder_error error = {};
  std::memcpy(aligned + 8, bytes.data(), bytes.size());
  EXPECT_EQ(adder_model_from_memory(aligned + 8, bytes.size(), &options, &model, &error),
            ADDER_INVALID_ARGUMENT);
  std::memcpy(aligned, bytes.data(), bytes.size());
  EXPECT_EQ(adder_model_from_memory(aligned, bytes.size() - 1, &options, &model, &error),
            ADDER_CORRUPT_FILE);
  EXPECT_EQ(adder_model_from_memory(aligned, 0, &options, &model, &error), ADDER_CORRUPT_FILE);
  ASSERT_EQ(adder_model_from_memory(aligned, bytes.size(), &options, &model, &error), ADDER_OK)
      << error.message;
  adder_model_free(model);
}

// Runs `call` with the first, second, ... allocation failing until it succeeds.
void ExpectOutOfMemoryUntilItWorks(const char* what,
                                   const std::function<adder_status(adder_error*)>& call) {
  for (long n = 0; n < 100000; ++n) {
    adder_error error = {};
    allocations_left = n;
    const adder_status status = call(&error);
    const bool ran_out = allocations_left == 0;
    allocations_left = -1;
    if (status == ADDER_OK) return;
    ASSERT_EQ(status, ADDER_OUT_OF_MEMORY) << what << ", allocation " << n << ": " << error.message;
    ASSERT_EQ(error.code, ADDER_OUT_OF_MEMORY);
    ASSERT_TRUE(ran_out);
    ASSERT_STRNE(error.message, "");
  }
  ADD_FAILURE() << what << " never succeeds";
}

TEST(Api, MemoryThatRunsOutIsAStatus) {
  const auto file = TextModel();
  adder_model* model = nullptr;
  ExpectOutOfMemoryUntilItWorks("open", [&](adder_error* error) {
    return adder_model_open(file->path.c_str(), nullptr, &model, error);
  });
  int32_t ids[64];
  size_t n_ids = 0, n = 0;
  const std::string text = "Once upon a time, in 1987";
  ExpectOutOfMemoryUntilItWorks("tokenize", [&](adder_error* error) {
    return adder_tokenize(model, text.data(), text.size(), 0, ids, 64, &n_ids, error);
  });
  char out[128];
  ExpectOutOfMemoryUntilItWorks("detokenize", [&](adder_error* error) {
    return adder_detokenize(model, ids, n_ids, 0, out, sizeof(out), &n, error);
  });
  EXPECT_EQ(std::string(out, n), text);
  adder_detokenizer* detokenizer = nullptr;
  ExpectOutOfMemoryUntilItWorks("detokenizer", [&](adder_error* error) {
    return adder_detokenizer_create(model, 0, &detokenizer, error);
  });
  adder_session* session = nullptr;
  ExpectOutOfMemoryUntilItWorks("session", [&](adder_error* error) {
    return adder_session_create(model, nullptr, &session, error);
  });
  const char* stops[] = {"a stop string that is longer than any small buffer"};
  adder_generate_options options = ADDER_INIT(adder_generate_options);
  options.max_tokens = 3;
  options.top_k = 4;
  options.temperature = 1;
  options.stops = stops;
  options.n_stops = 1;
  ExpectOutOfMemoryUntilItWorks("generate", [&](adder_error* error) {
    return adder_session_generate(session, ids, n_ids, &options, nullptr, nullptr, nullptr, error);
  });
  // An error whose message cannot be made.
  adder_error error = {};
  const int32_t bad = -1;
  allocations_left = 0;
  EXPECT_EQ(adder_session_feed(session, &bad, 1, &error), ADDER_OUT_OF_MEMORY);
  allocations_left = -1;
  EXPECT_EQ(adder_session_feed(session, ids, n_ids, &error), ADDER_OK);  // is not stuck in a call
  EXPECT_EQ(adder_session_free(session), ADDER_OK);
  adder_detokenizer_free(detokenizer);
  adder_model_free(model);
}

long ResidentKilobytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmRSS:")) return std::strtol(line.c_str() + 6, nullptr, 10);
  }
  return 0;
}

TEST(Api, AThousandSessionsLeaveNoMemoryBehind) {
  const auto file = TextModel();
  adder_model* model = nullptr;
  ASSERT_EQ(adder_model_open(file->path.c_str(), nullptr, &model, nullptr), ADDER_OK);
  long before = 0;
  for (int i = 0; i < 1000; ++i) {
    if (i == 200) before = ResidentKilobytes();
    adder_session* session = nullptr;
    const int32_t ids[] = {1, 2, 3};
    ASSERT_EQ(adder_session_create(model, nullptr, &session, nullptr), ADDER_OK);
    ASSERT_EQ(adder_session_feed(session, ids, 3, nullptr), ADDER_OK);
    ASSERT_EQ(adder_session_cancel(session), ADDER_OK);
    ASSERT_EQ(adder_session_feed(session, ids, 3, nullptr), ADDER_CANCELLED);
    ASSERT_EQ(adder_session_free(session), ADDER_OK);
  }
  adder_model_free(model);
  if (kSanitized) GTEST_SKIP() << "sanitizers keep freed memory; theirs is the leak check";
  EXPECT_LT(ResidentKilobytes() - before, 1024);  // 800 sessions are more than 50 MB
}

}  // namespace
}  // namespace adder::test
