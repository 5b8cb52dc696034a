// Damaged and hostile model files: every one gives an error that says what is wrong, or a model
// that runs without a fault.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <random>

#include "runtime/session_buffer.h"
#include "tests/converted_model.h"
#include "tests/file_checksums.h"
#include "tests/sanitized.h"
#include "tests/tiny_checkpoint.h"

namespace adder::test {
namespace {

constexpr size_t kLargestSession = size_t{64} << 20;  // tests do not run larger ones

// A file in memory as Model wants it: aligned, and not a byte longer.
class AlignedBytes {
 public:
  explicit AlignedBytes(const std::vector<uint8_t>& bytes) : size_(bytes.size()) {
    void* memory = nullptr;
    if (posix_memalign(&memory, kAlignment, size_ > 0 ? size_ : 1) != 0) std::abort();
    memory_.reset(static_cast<uint8_t*>(memory));
    if (size_ > 0) std::memcpy(memory_.get(), bytes.data(), size_);
  }
  std::span<uint8_t> span() const { return {memory_.get(), size_}; }

 private:
  struct Free {
    void operator()(uint8_t* memory) const { std::free(memory); }
  };
  std::unique_ptr<uint8_t, Free> memory_;
  size_t size_;
};

std::vector<uint8_t> SmallFile(WeightType type, bool mamba2) {
  Mamba1Shape one;
  one.layers = 1, one.d_model = 8, one.d_inner = 20, one.vocab = 20;
  Mamba2Shape two;
  two.layers = 1, two.d_model = 8, two.n_heads = 2, two.head_dim = 4, two.d_state = 2;
  two.vocab = 20, two.bias = true;
  const TempDir source;
  (mamba2 ? MakeMamba2(two) : MakeMamba1(one)).Write(source);
  const auto converted = ConvertedModel(source.path(), type);
  return ReadFileBytes(converted->path);
}

// Logits of a few tokens; empty if the model's session is larger than tests run.
std::vector<float> RunTokens(const Model& model) {
  const auto bytes = Session::Bytes(model, {.tile = 2});
  if (!bytes.ok() || *bytes > kLargestSession) return {};
  const auto buffer = SessionBuffer::Create(model, {.tile = 2});
  if (!buffer.ok()) return {};
  const auto last = static_cast<int32_t>(model.config().vocab_rows - 1);
  const int32_t tokens[] = {0, last, last / 2, 0, last};
  EXPECT_TRUE(buffer->session().Feed(tokens).ok());
  const auto logits = buffer->session().logits();
  return {logits.begin(), logits.end()};
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

template <typename T>
T Load(const std::vector<uint8_t>& file, size_t offset) {
  T value;
  std::memcpy(&value, file.data() + offset, sizeof(value));
  return value;
}
template <typename T>
void Store(std::vector<uint8_t>& file, size_t offset, const T& value) {
  std::memcpy(file.data() + offset, &value, sizeof(value));
}

size_t SectionAt(size_t i) { return sizeof(FileHeader) + i * sizeof(SectionRecord); }
// Index of the section record of `kind`.
size_t FindSection(const std::vector<uint8_t>& file, SectionKind kind) {
  const auto header = Load<FileHeader>(file, 0);
  for (size_t i = 0; i < header.section_count; ++i) {
    if (Load<SectionRecord>(file, SectionAt(i)).kind == static_cast<uint32_t>(kind)) return i;
  }
  ADD_FAILURE() << "no section";
  return 0;
}
void EditSection(std::vector<uint8_t>& file, SectionKind kind,
                 const std::function<void(SectionRecord&)>& edit) {
  const size_t at = SectionAt(FindSection(file, kind));
  auto record = Load<SectionRecord>(file, at);
  edit(record);
  Store(file, at, record);
  FixChecksums(file);
}
void EditHeader(std::vector<uint8_t>& file, const std::function<void(FileHeader&)>& edit) {
  auto header = Load<FileHeader>(file, 0);
  edit(header);
  Store(file, 0, header);
  FixChecksums(file);
}
void EditTensor(std::vector<uint8_t>& file, const std::string& name,
                const std::function<void(TensorRecord&)>& edit) {
  const auto table =
      Load<SectionRecord>(file, SectionAt(FindSection(file, SectionKind::kTensorTable)));
  for (size_t at = table.offset; at < table.offset + table.bytes; at += sizeof(TensorRecord)) {
    auto record = Load<TensorRecord>(file, at);
    if (name != record.name) continue;
    edit(record);
    Store(file, at, record);
    FixChecksums(file);
    return;
  }
  ADD_FAILURE() << "no tensor " << name;
}
std::string Metadata(const std::vector<uint8_t>& file) {
  const auto record =
      Load<SectionRecord>(file, SectionAt(FindSection(file, SectionKind::kMetadata)));
  const auto begin = file.begin() + static_cast<std::ptrdiff_t>(record.offset);
  return {begin, begin + static_cast<std::ptrdiff_t>(record.bytes)};
}
// The metadata is the last section, so that it may change its length.
void SetMetadata(std::vector<uint8_t>& file, const std::string& json) {
  const size_t at = SectionAt(FindSection(file, SectionKind::kMetadata));
  auto record = Load<SectionRecord>(file, at);
  ASSERT_EQ(record.offset + record.bytes, file.size());
  file.resize(record.offset);
  file.insert(file.end(), json.begin(), json.end());
  record.bytes = json.size();
  Store(file, at, record);
  EditHeader(file, [&](FileHeader& header) { header.file_bytes = file.size(); });
}
void EditMetadata(std::vector<uint8_t>& file, const std::string& from, const std::string& to) {
  std::string json = Metadata(file);
  const size_t at = json.find(from);
  ASSERT_NE(at, std::string::npos) << from << " in " << json;
  SetMetadata(file, json.replace(at, from.size(), to));
}

using File = std::vector<uint8_t>;

struct Corruption {
  const char* what;
  std::function<void(File&)> damage;
  Code code;
  const char* message;
};

std::function<void(File&)> Metadata(const char* from, const char* to) {
  return [=](File& file) { EditMetadata(file, from, to); };
}
std::function<void(File&)> Header(const std::function<void(FileHeader&)>& edit) {
  return [=](File& file) { EditHeader(file, edit); };
}
std::function<void(File&)> Section(SectionKind kind,
                                   const std::function<void(SectionRecord&)>& edit) {
  return [=](File& file) { EditSection(file, kind, edit); };
}
std::function<void(File&)> TensorOf(const char* name,
                                    const std::function<void(TensorRecord&)>& edit) {
  return [=](File& file) { EditTensor(file, name, edit); };
}

const Corruption kCorruptions[] = {
    {"magic", [](File& f) { f[0] = 'x'; }, Code::kCorruptFile, "not an Adder model"},
    {"version", Header([](FileHeader& h) { h.version = 77; }), Code::kUnsupported, "version 77"},
    {"size", Header([](FileHeader& h) { h.file_bytes += 1; }), Code::kCorruptFile, "truncated?"},
    {"trailing byte", [](File& f) { f.push_back(0); }, Code::kCorruptFile, "the header says"},
    {"no sections", Header([](FileHeader& h) { h.section_count = 0; }), Code::kCorruptFile,
     "0 sections"},
    {"many sections", Header([](FileHeader& h) { h.section_count = 1u << 31; }),
     Code::kCorruptFile, "2147483648 sections"},
    {"header checksum", [](File& f) { f[40] ^= 1; }, Code::kCorruptFile, "checksum of the header"},
    {"metadata checksum", [](File& f) { f.back() ^= 1; }, Code::kCorruptFile,
     "checksum of section kind 1"},
    {"section offset", Section(SectionKind::kTensorData, [](SectionRecord& r) { r.offset += 4; }),
     Code::kCorruptFile, "misaligned"},
    {"section size that wraps",
     Section(SectionKind::kMetadata, [](SectionRecord& r) { r.bytes = ~uint64_t{0} - 63; }),
     Code::kCorruptFile, "ends behind the file"},
    {"section that overlaps",
     Section(SectionKind::kMetadata, [](SectionRecord& r) { r.offset = 64; }), Code::kCorruptFile,
     "overlaps"},
    {"two sections of a kind",
     Section(SectionKind::kTokenizer, [](SectionRecord& r) { r.kind = 1; }), Code::kCorruptFile,
     "two sections of kind 1"},
    {"no metadata", Section(SectionKind::kMetadata, [](SectionRecord& r) { r.kind = 99; }),
     Code::kCorruptFile, "no metadata"},
    {"no table", Section(SectionKind::kTensorTable, [](SectionRecord& r) { r.kind = 99; }),
     Code::kCorruptFile, "no tensor table"},
    {"no data", Section(SectionKind::kTensorData, [](SectionRecord& r) { r.kind = 99; }),
     Code::kCorruptFile, "no tensor data"},
    {"half a record", Section(SectionKind::kTensorTable, [](SectionRecord& r) { r.bytes -= 64; }),
     Code::kCorruptFile, "no multiple of 128"},
    {"tensor type", TensorOf("embedding", [](TensorRecord& r) { r.dtype = 1234; }),
     Code::kUnsupported, "type 1234"},
    {"tensor rank", TensorOf("embedding", [](TensorRecord& r) { r.rank = 5; }), Code::kCorruptFile,
     "5 dimensions"},
    {"tensor of no dimensions", TensorOf("embedding", [](TensorRecord& r) { r.rank = 0; }),
     Code::kCorruptFile, "0 dimensions"},
    {"dimension of 0", TensorOf("embedding", [](TensorRecord& r) { r.shape[0] = 0; }),
     Code::kCorruptFile, "dimension 0"},
    {"dimensions that wrap",
     TensorOf("layers.0.conv_x.weight", [](TensorRecord& r) { r.shape[0] = r.shape[1] = r.shape[2] = 1u << 28; }),
     Code::kCorruptFile, "too many elements"},
    {"dimension beyond the rank", TensorOf("final_norm", [](TensorRecord& r) { r.shape[2] = 3; }),
     Code::kCorruptFile, "beyond its rank"},
    {"tensor size", TensorOf("embedding", [](TensorRecord& r) { r.bytes += 64; }),
     Code::kCorruptFile, "embedding: "},
    {"tensor offset", TensorOf("embedding", [](TensorRecord& r) { r.offset += 4; }),
     Code::kCorruptFile, "misaligned"},
    {"tensor in the header", TensorOf("embedding", [](TensorRecord& r) { r.offset = 0; }),
     Code::kCorruptFile, "outside the data section"},
    {"tensor behind the file", TensorOf("embedding", [](TensorRecord& r) { r.offset = ~63ull; }),
     Code::kCorruptFile, "outside the data section"},
    {"name without end",
     TensorOf("embedding", [](TensorRecord& r) { std::memset(r.name, 'e', sizeof(r.name)); }),
     Code::kCorruptFile, "name"},
    {"bytes behind a name", TensorOf("embedding", [](TensorRecord& r) { r.name[20] = 'x'; }),
     Code::kCorruptFile, "must be zero"},
    {"reserved bytes", TensorOf("embedding", [](TensorRecord& r) { r.reserved[3] = 1; }),
     Code::kCorruptFile, "must be zero"},
    {"order", TensorOf("embedding", [](TensorRecord& r) { r.name[0] = 'z'; }), Code::kCorruptFile,
     "out of order"},
    {"tensor missing", TensorOf("final_norm", [](TensorRecord& r) { r.name[9] = 'n'; }),
     Code::kCorruptFile, "final_norm is missing"},
    {"array instead of matrix",
     TensorOf("embedding",
              [](TensorRecord& r) {
                r.dtype = static_cast<uint32_t>(DType::kF32);
                r.bytes = uint64_t{20} * 8 * 4;
              }),
     Code::kCorruptFile, "embedding has type f32, expected a matrix type"},
    {"no JSON", [](File& f) { SetMetadata(f, "{"); }, Code::kCorruptFile, "no JSON object"},
    {"another JSON", [](File& f) { SetMetadata(f, "[1]"); }, Code::kCorruptFile, "no JSON object"},
    {"nested JSON",
     [](File& f) { SetMetadata(f, std::string(1 << 20, '[') + std::string(1 << 20, ']')); },
     Code::kCorruptFile, "no JSON object"},
    {"key missing", Metadata("\"d_model\"", "\"d_mod3l\""), Code::kCorruptFile,
     "d_model is missing"},
    {"width", Metadata("\"d_model\":8", "\"d_model\":9"), Code::kCorruptFile, "expected [20, 9]"},
    {"width of 0", Metadata("\"d_model\":8", "\"d_model\":0"), Code::kCorruptFile, "d_model"},
    {"negative width", Metadata("\"d_model\":8", "\"d_model\":-8"), Code::kCorruptFile, "d_model"},
    {"fractional width", Metadata("\"d_model\":8", "\"d_model\":8.5"), Code::kCorruptFile,
     "d_model"},
    {"vocabulary", Metadata("\"vocab_size\":20", "\"vocab_size\":21"), Code::kCorruptFile,
     "more than vocab_rows 20"},
    {"rows", Metadata("\"vocab_rows\":20", "\"vocab_rows\":268435456"), Code::kCorruptFile,
     "embedding has shape [20, 8], expected [268435456, 8]"},
    {"no layers", [](File& f) {
       std::string json = Metadata(f);
       const size_t at = json.find("\"layers\":[") + 10;
       SetMetadata(f, json.erase(at, json.find(']', at) - at));
     }, Code::kCorruptFile, "1 to 1024 layers"},
    {"block", Metadata("\"mamba2\",\"norm_eps\"", "\"mamba9\",\"norm_eps\""), Code::kUnsupported,
     "\"mamba9\""},
    {"epsilon", Metadata("\"norm_eps\":1e-05", "\"norm_eps\":-1"), Code::kCorruptFile, "norm_eps"},
    {"epsilon that overflows", Metadata("\"norm_eps\":1e-05", "\"norm_eps\":1e300"),
     Code::kCorruptFile, "norm_eps"},
    {"taps", Metadata("\"d_conv\":4", "\"d_conv\":9"), Code::kCorruptFile, "d_conv"},
    {"many heads", Metadata("\"n_heads\":2", "\"n_heads\":65536"), Code::kCorruptFile, "expected"},
    {"wide heads", Metadata("\"head_dim\":4", "\"head_dim\":4096"), Code::kCorruptFile, "expected"},
    {"groups", Metadata("\"n_groups\":1", "\"n_groups\":3"), Code::kCorruptFile,
     "no multiple of n_groups 3"},
    {"groups of norms", Metadata("\"norm_groups\":1", "\"norm_groups\":65536"), Code::kCorruptFile,
     "norm_groups 65536"},
    {"limits", Metadata("\"gating\"", "\"dt_min\":2,\"dt_max\":1,\"gating\""), Code::kCorruptFile,
     "dt_min is more than dt_max"},
    {"gating", Metadata("gate_then_norm", "gate_then_nothing"), Code::kCorruptFile,
     "gate_then_nothing"},
    {"eos", Metadata("\"eos\":[]", "\"eos\":[-1]"), Code::kCorruptFile, "eos"},
    {"provenance", Metadata("\"provenance\":{", "\"provenance\":{\"a\":1,"), Code::kCorruptFile,
     "provenance"}};

TEST(ModelFile, CorruptionsAreNamed) {
  const File good = SmallFile(WeightType::kQ4, true);
  for (const Corruption& corruption : kCorruptions) {
    SCOPED_TRACE(corruption.what);
    File file = good;
    corruption.damage(file);
    const AlignedBytes bytes(file);
    const auto model = Model::FromMemory(bytes.span());
    EXPECT_FALSE(model.ok());
    EXPECT_EQ(model.status().code(), corruption.code) << model.status().message();
    EXPECT_NE(model.status().message().find(corruption.message), std::string::npos)
        << model.status().message();
  }
}

TEST(ModelFile, UnknownSectionsAreSkipped) {
  File file = SmallFile(WeightType::kQ4, true);
  // The empty tokenizer section becomes one of a later version.
  EditSection(file, SectionKind::kTokenizer, [](SectionRecord& r) { r.kind = 4711; });
  const AlignedBytes bytes(file);
  EXPECT_TRUE(Model::FromMemory(bytes.span()).ok());
}

TEST(ModelFile, EveryTruncationIsAnError) {
  for (const bool mamba2 : {false, true}) {
    const File good = SmallFile(WeightType::kQ8, mamba2);
    for (size_t size = 0; size < good.size(); ++size) {
      const AlignedBytes bytes(
          File(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(size)));
      const auto model = Model::FromMemory(bytes.span());
      ASSERT_FALSE(model.ok()) << size;
      ASSERT_EQ(model.status().code(), Code::kCorruptFile) << model.status().message();
      // With a header that agrees.
      File file(bytes.span().begin(), bytes.span().end());
      if (size < sizeof(FileHeader) || size % 8 != 0) continue;
      EditHeader(file, [&](FileHeader& header) { header.file_bytes = size; });
      const AlignedBytes agreeing(file);
      ASSERT_FALSE(Model::FromMemory(agreeing.span()).ok()) << size;
    }
  }
}

// 10,000 flips of one to three bytes over formats and blocks.
TEST(ModelFile, RandomFlipsAreErrorsOrHarmless) {
  std::mt19937 random(31337);
  size_t refused = 0, same = 0, different = 0, opened_anyway = 0;
  for (const WeightType type :
       {WeightType::kF32, WeightType::kF16, WeightType::kQ8, WeightType::kQ4}) {
    for (const bool mamba2 : {false, true}) {
      const File good = SmallFile(type, mamba2);
      const AlignedBytes untouched(good);
      const auto model = Model::FromMemory(untouched.span(), {.isa = "", .verify_checksums = true});
      ASSERT_TRUE(model.ok()) << model.status().message();
      const std::vector<float> expected = RunTokens(**model);
      ASSERT_FALSE(expected.empty());
      for (int round = 0; round < 1250; ++round) {
        File file = good;
        const size_t flips = 1 + random() % 3;
        for (size_t i = 0; i < flips; ++i) {
          file[random() % file.size()] ^= static_cast<uint8_t>(1 + random() % 255);
        }
        const AlignedBytes bytes(file);
        const auto checked = Model::FromMemory(bytes.span(), {.isa = "", .verify_checksums = true});
        if (!checked.ok()) {
          ++refused;
          EXPECT_FALSE(checked.status().message().empty());
        } else {
          ++(SameBits(RunTokens(**checked), expected) ? same : different);
        }
        // Unchecked weights may be nonsense; they must not be a fault.
        const auto unchecked = Model::FromMemory(bytes.span());
        if (unchecked.ok()) RunTokens(**unchecked), ++opened_anyway;
        // And with right checksums the structure itself is attacked.
        FixChecksums(bytes.span());
        const auto fixed = Model::FromMemory(bytes.span());
        if (fixed.ok()) RunTokens(**fixed);
      }
    }
  }
  EXPECT_EQ(different, 0u);
  EXPECT_GT(refused, 5000u);
  EXPECT_GT(opened_anyway, 1000u);
  std::printf("%zu refused, %zu the same (padding), %zu opened without verification\n", refused,
              same, opened_anyway);
}

// Structured damage: numbers of the metadata and fields of the records replaced by extremes.
TEST(ModelFile, HostileNumbersAreErrorsOrRun) {
  std::mt19937 random(4242);
  const uint32_t extremes[] = {0,
                               1,
                               2,
                               3,
                               5,
                               7,
                               15,
                               16,
                               17,
                               31,
                               32,
                               64,
                               4096,
                               65535,
                               65536,
                               65537,
                               1u << 20,
                               1u << 28,
                               (1u << 28) + 1,
                               1u << 31,
                               ~0u};
  for (const bool mamba2 : {false, true}) {
    const File good = SmallFile(WeightType::kQ4, mamba2);
    const std::string json = Metadata(good);
    for (int round = 0; round < 1500; ++round) {
      File file = good;
      // One or two numbers of the metadata.
      std::string changed = json;
      for (uint32_t i = 0; i < 1 + random() % 2; ++i) {
        std::vector<size_t> numbers;
        for (size_t at = 1; at < changed.size(); ++at) {
          if (changed[at - 1] == ':' && std::isdigit(static_cast<unsigned char>(changed[at])))
            numbers.push_back(at);
        }
        const size_t at = numbers[random() % numbers.size()];
        const size_t end = changed.find_first_of(",}]", at);
        changed.replace(at, end - at, std::to_string(extremes[random() % std::size(extremes)]));
      }
      SetMetadata(file, changed);
      // And sometimes a field of a tensor record.
      if (random() % 2 == 0) {
        const auto table =
            Load<SectionRecord>(file, SectionAt(FindSection(file, SectionKind::kTensorTable)));
        const size_t record =
            table.offset + random() % (table.bytes / sizeof(TensorRecord)) * sizeof(TensorRecord);
        const size_t field = offsetof(TensorRecord, dtype) + random() % 12 * 4;
        Store(file, record + field, extremes[random() % std::size(extremes)]);
        FixChecksums(file);
      }
      const AlignedBytes bytes(file);
      const auto start = std::chrono::steady_clock::now();
      const auto model = Model::FromMemory(bytes.span());
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
      EXPECT_LT(seconds.count(), 1.0);
      if (model.ok()) RunTokens(**model);
    }
  }
}

// The state that a small file may ask for is measured before anything is allocated.
TEST(ModelFile, AHugeSessionIsRefusedHonestly) {
  // One group of 65,536 states, 65,536 channels: 16 GiB of state in a file of two megabytes.
  Mamba2Shape shape;
  shape.layers = 1, shape.d_model = 1, shape.n_heads = 256, shape.head_dim = 256;
  shape.d_state = 65536, shape.vocab = 2;
  const TempDir source;
  MakeMamba2(shape).Write(source);
  const auto converted = ConvertedModel(source.path(), WeightType::kF32);
  ASSERT_NE(converted->model, nullptr);
  const auto bytes = Session::Bytes(*converted->model, {.tile = 1});
  ASSERT_TRUE(bytes.ok());
  EXPECT_GT(*bytes, size_t{16} << 30);
  std::vector<uint8_t> small(64 + 4096);
  uint8_t* aligned = small.data() + (64 - reinterpret_cast<uintptr_t>(small.data()) % 64) % 64;
  const auto placed = Session::Place(*converted->model, {.tile = 1}, aligned, 4096);
  ASSERT_FALSE(placed.ok());
  EXPECT_NE(placed.status().message().find(std::to_string(*bytes)), std::string::npos);
  if (kSanitized) return;  // their shadow memory needs more than the limit
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  const rlimit limited = {rlim_t{4} << 30, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_AS, &limited), 0);
  const auto created = SessionBuffer::Create(*converted->model, {.tile = 1});
  ASSERT_EQ(setrlimit(RLIMIT_AS, &before), 0);
  ASSERT_FALSE(created.ok());
  EXPECT_EQ(created.status().code(), Code::kOutOfMemory) << created.status().message();
}

// NaN, infinities and denormals as weights, scales and arrays: kernels must not convert them to
// integers unchecked (UBSan looks), and the fault must reach the logits rather than vanish.
TEST(ModelFile, NonFiniteWeightsRun) {
  for (const WeightType type :
       {WeightType::kF32, WeightType::kF16, WeightType::kQ8, WeightType::kQ4}) {
    for (const bool mamba2 : {false, true}) {
      const File good = SmallFile(type, mamba2);
      const auto data =
          Load<SectionRecord>(good, SectionAt(FindSection(good, SectionKind::kTensorData)));
      for (const uint32_t pattern :
           {0x7fc00000u, 0xff800000u, 0x7f800000u, 0x7f7fffffu, 0x00000001u, 0x80000000u,
            0x7c007c00u, 0xfe01fe01u, 0xffffffffu}) {
        File file = good;
        for (size_t at = data.offset; at + 4 <= data.offset + data.bytes; at += 4) {
          Store(file, at, pattern);
        }
        const AlignedBytes bytes(file);
        for (const char* isa : {"scalar", ""}) {
          const auto model = Model::FromMemory(bytes.span(), {.isa = isa});
          ASSERT_TRUE(model.ok()) << model.status().message();
          const std::vector<float> logits = RunTokens(**model);
          ASSERT_FALSE(logits.empty());
          if (pattern == 0x7fc00000u && type == WeightType::kF32) {
            EXPECT_TRUE(std::isnan(logits[0]));
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace adder::test
