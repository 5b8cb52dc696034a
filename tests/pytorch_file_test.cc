#include "converter/pytorch_file.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <random>

#include "converter/pickle.h"
#include "tests/torch_writer.h"

namespace adder {
namespace {

using namespace test;

std::string Floats(const std::vector<float>& values) {
  std::string bytes(values.size() * 4, '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

const std::string kSix = Floats({0, 1, 2, 3, 4, 5});

std::string Six() { return PickleStorage("FloatStorage", "0", 6); }

std::vector<ZipItem> Items(const std::string& pickle) {
  return {{.name = "m/data.pkl", .bytes = pickle},
          {.name = "m/byteorder", .bytes = "little"},
          {.name = "m/data/0", .bytes = kSix},
          {.name = "m/version", .bytes = "3\n"}};
}

std::vector<uint8_t> Archive(const std::string& pickle) { return ZipFile(Items(pickle)); }

// The one tensor "w".
std::string W(const std::string& tensor) { return PickleDict(PickleText("w") + tensor); }

std::vector<float> Read(const std::vector<uint8_t>& file, const std::string& name = "w") {
  const auto tensors = ParsePytorchFile(file, "m.bin");
  EXPECT_TRUE(tensors.ok()) << tensors.status().message();
  if (!tensors.ok() || !tensors->contains(name)) return {};
  const auto values = ReadF32(tensors->at(name), name);
  EXPECT_TRUE(values.ok()) << values.status().message();
  return values.ok() ? *values : std::vector<float>();
}

using F = std::vector<float>;

TEST(PytorchFile, ReadsViews) {
  EXPECT_EQ(Read(Archive(W(PickleTensor(Six(), 0, {2, 3}, {3, 1})))), (F{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(Read(Archive(W(PickleTensor(Six(), 0, {3, 2}, {1, 3})))), (F{0, 3, 1, 4, 2, 5}));
  EXPECT_EQ(Read(Archive(W(PickleTensor(Six(), 1, {2, 2}, {3, 1})))), (F{1, 2, 4, 5}));
  EXPECT_EQ(Read(Archive(W(PickleTensor(Six(), 5, {}, {})))), (F{5}));
  EXPECT_EQ(Read(Archive(W(PickleTensor(Six(), 4, {3}, {0})))), (F{4, 4, 4}));
  EXPECT_EQ(Read(Archive(W(PickleTensor(Six(), 0, {2, 1, 3}, {3, 99, 1})))), (F{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(Read(Archive(W(PickleTensor(Six(), 0, {2, 1, 2}, {1, 7, 2})))), (F{0, 2, 1, 3}));
  EXPECT_EQ(Read(Archive(W(PickleTensor(Six(), 77, {0, 5}, {5, 1})))), F{});
}

TEST(PytorchFile, ReadsEveryStorage) {
  struct Row {
    const char* storage;
    SourceType type;
    std::string bytes;
  };
  const double two = 2;
  const Row rows[] = {
      {"FloatStorage", SourceType::kF32, Le(0x40000000, 4)},
      {"HalfStorage", SourceType::kF16, Le(0x4000, 2)},
      {"BFloat16Storage", SourceType::kBF16, Le(0x4000, 2)},
      {"DoubleStorage", SourceType::kF64, std::string(reinterpret_cast<const char*>(&two), 8)},
      {"IntStorage", SourceType::kI32, Le(2, 4)},
      {"LongStorage", SourceType::kI64, Le(2, 8)},
  };
  for (const Row& row : rows) {
    const auto file =
        ZipFile({{.name = "a/b/data.pkl",
                  .bytes = W(PickleTensor(PickleStorage(row.storage, "k", 1), 0, {1}, {1}))},
                 {.name = "a/b/data/k", .bytes = row.bytes}});
    EXPECT_EQ(Read(file), F{2}) << row.storage;
    EXPECT_EQ(ParsePytorchFile(file, "m")->at("w").type, row.type);
  }
}

TEST(PytorchFile, TiedTensorsShareStorage) {
  const auto file = Archive(PickleDict(PickleText("a") + PickleTensor(Six(), 0, {2, 3}, {3, 1}) +
                                       PickleText("b") + PickleTensor(Six(), 0, {2, 3}, {3, 1}) +
                                       PickleText("t") + PickleTensor(Six(), 0, {2, 3}, {1, 2}) +
                                       PickleText("c") + PickleTensor(Six(), 1, {2}, {1}) +
                                       PickleText("d") + PickleTensor(Six(), 0, {3, 2}, {2, 1})));
  const auto tensors = ParsePytorchFile(file, "m.bin");
  ASSERT_TRUE(tensors.ok()) << tensors.status().message();
  EXPECT_TRUE(tensors->at("a").SameStorage(tensors->at("b")));
  for (const char* other : {"t", "c", "d"}) {
    EXPECT_FALSE(tensors->at("a").SameStorage(tensors->at(other))) << other;
  }
}

TEST(PytorchFile, ReadsWhatStateDictsAreWrappedIn) {
  const std::string tensor = PickleTensor(Six(), 0, {6}, {1});
  const std::string parameter = PickleGlobal("torch._utils", "_rebuild_parameter") + tensor +
                                "\x88" + PickleGlobal("collections", "OrderedDict") + ")R\x87R";
  const std::string w = PickleText("w");
  const std::string inner = "}(" + w + tensor + "u";
  const std::string proto("\x80\x02", 2);
  const std::pair<const char*, std::string> rows[] = {
      {"parameter", W(parameter)},
      {"one SETITEM", proto + "}" + w + tensor + "s."},
      {"OrderedDict with _metadata", proto + PickleGlobal("collections", "OrderedDict") + ")R(" +
                                         w + tensor + "u}" + PickleText("_metadata") + "}sb."},
      {"state_dict", PickleDict(PickleText("epoch") + "K\5" + PickleText("state_dict") + inner)},
      {"model", PickleDict(PickleText("model") + inner)},
      {"other values",
       PickleDict(PickleText("n") + "N" + PickleText("f") + "G" + std::string(8, '\0') +
                  PickleText("l") + "](K\1M\1\1e" + PickleText("l2") + "]Na" + PickleText("s") +
                  "U\2ab" + PickleText("s2") + "T" + Le(1, 4) + "x" + "K\1" + "K\1" +
                  PickleText("j") + "J" + Le(0xffffffff, 4) + w + tensor)},
  };
  for (const auto& [name, pickle] : rows) {
    EXPECT_EQ(Read(Archive(pickle)), (F{0, 1, 2, 3, 4, 5})) << name;
  }
  // The tensors of the top level win over a nested dict.
  const auto both = ParsePytorchFile(
      Archive(PickleDict(PickleText("top") + tensor + PickleText("model") + inner)), "m.bin");
  ASSERT_TRUE(both.ok());
  EXPECT_TRUE(both->contains("top"));
  EXPECT_FALSE(both->contains("w"));
}

TEST(PytorchFile, MemoSlotsOfBothWidths) {
  // Names and storage memoized, then read back.
  const std::string pickle = std::string("\x80\x02", 2) + "}(" + PickleText("a") + "q\7" +
                             PickleTensor(Six() + "r" + Le(70000, 4), 0, {2}, {1}) +
                             PickleText("b") + PickleTensor("j" + Le(70000, 4), 2, {2}, {1}) +
                             PickleText("alias") + "h\7" + "u.";
  const auto file = Archive(pickle);
  EXPECT_EQ(Read(file, "a"), (F{0, 1}));
  EXPECT_EQ(Read(file, "b"), (F{2, 3}));
}

TEST(PytorchFile, ReadsZip64AndPadding) {
  for (const bool zip64 : {false, true}) {
    for (const bool zip64_end : {false, true}) {
      auto items = Items(W(PickleTensor(Six(), 0, {6}, {1})));
      for (ZipItem& item : items) item.zip64 = zip64;
      items[2].local_extra = "FB" + Le(33, 2) + std::string(33, 'Z');
      const auto file =
          ZipFile(items, {.zip64_end = zip64_end, .disk = 0, .extra_entries = 0, .comment = "hi"});
      EXPECT_EQ(Read(file), (F{0, 1, 2, 3, 4, 5})) << zip64 << zip64_end;
    }
  }
}

struct Refused {
  const char* name;
  std::vector<uint8_t> file;
  Code code;
  const char* message;
};

void Check(const std::vector<Refused>& rows) {
  for (const Refused& row : rows) {
    const auto tensors = ParsePytorchFile(row.file, "m.bin");
    ASSERT_FALSE(tensors.ok()) << row.name;
    const Status status = tensors.status();
    EXPECT_EQ(status.code(), row.code) << row.name;
    EXPECT_TRUE(status.message().starts_with("m.bin: ")) << status.message();
    EXPECT_NE(status.message().find(row.message), std::string::npos)
        << row.name << ": " << status.message();
  }
}

TEST(PytorchFile, RefusesArchives) {
  const std::string good = W(PickleTensor(Six(), 0, {6}, {1}));
  const auto with = [&good](const std::function<void(std::vector<ZipItem>&)>& change) {
    auto items = Items(good);
    change(items);
    return ZipFile(items);
  };
  const auto options = [&good](ZipOptions o) { return ZipFile(Items(good), o); };
  const auto patched = [&good](size_t from_end, uint8_t value) {
    auto file = Archive(good);
    file[file.size() - from_end] = value;
    return file;
  };
  auto zip64_offset = options({.zip64_end = true});
  zip64_offset[zip64_offset.size() - 22 - 12] ^= 1;  // low byte of the Zip64 end record's offset
  auto big_directory = options({.zip64_end = true});
  std::memset(&big_directory[big_directory.size() - 22 - 20 - 16], 0xff, 8);  // directory size
  const auto text = [](std::string_view s) { return std::vector<uint8_t>(s.begin(), s.end()); };
  const Code corrupt = Code::kCorruptFile, unsupported = Code::kUnsupported;
  Check({
      {"empty", {}, unsupported, "not a zip archive"},
      {"raw pickle", text("\x80\x02\x8a\x0al\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."), unsupported,
       "torch.save(torch.load("},
      {"only PK", text("PK"), corrupt, "no end record in 2 bytes"},
      {"cut", {zip64_offset.begin(), zip64_offset.begin() + 100}, corrupt, "no end record"},
      {"compressed", with([](auto& i) { i[2].method = 8; }), unsupported,
       "m/data/0: compressed (method 8)"},
      {"encrypted", with([](auto& i) { i[0].flags |= 1; }), unsupported,
       "m/data.pkl: the entry is encrypted"},
      {"entry beyond the directory", with([](auto& i) { i[2].size_lie = 1u << 20; }), corrupt,
       "m/data/0: 1048600 bytes at"},
      {"entry of 2^63 bytes", with([](auto& i) {
         i[2].zip64 = true;
         i[2].size_lie = uint64_t{1} << 63;
       }),
       corrupt, "m/data/0: 9223372036854775832 bytes at"},
      {"no local header", with([](auto& i) { i[2].offset_lie = 1; }), corrupt,
       "m/data/0: no local header at byte"},
      {"local header at 2^64 - 1", with([](auto& i) {
         i[0].zip64 = true;
         i[0].offset_lie = ~uint64_t{0};
       }),
       corrupt, "no local header at byte 18446744073709551615"},
      {"two entries of a name", with([](auto& i) { i.push_back(i[2]); }), corrupt,
       "m/data/0: the archive has two entries of this name"},
      {"several disks", options({.disk = 1}), unsupported, "several disks"},
      {"several disks, Zip64", options({.zip64_end = true, .disk = 1}), unsupported,
       "several disks"},
      {"too many entries", options({.extra_entries = 1}), corrupt, "entry 4 of 5 is missing"},
      {"2^62 entries", options({.zip64_end = true, .extra_entries = uint64_t{1} << 62}), corrupt,
       "entry 4 of 4611686018427387908 is missing"},
      {"too few entries", options({.extra_entries = ~uint64_t{0}}), corrupt,
       "bytes behind the 3 entries"},
      {"directory elsewhere", patched(6, 0xff), corrupt, "but it must end by byte"},
      {"no Zip64 record", zip64_offset, corrupt, "no Zip64 end record at byte"},
      {"directory of 2^64 - 1 bytes", big_directory, corrupt,
       "a directory of 18446744073709551615 bytes"},
      {"no pickle", with([](auto& i) { i[0].name = "m/other.pkl"; }), corrupt,
       "none of the archive's 4 entries is ROOT/data.pkl"},
      {"two pickles", with([](auto& i) { i[1].name = "n/data.pkl"; }), corrupt, "two pickles"},
      {"big-endian", with([](auto& i) { i[1].bytes = "big"; }), unsupported,
       "byte order \"big\", only little is read"},
      {"no storage", with([](auto& i) { i[2].name = "m/data/1"; }), corrupt,
       "w: the archive has no storage m/data/0"},
      {"short storage", with([](auto& i) { i[2].bytes.pop_back(); }), corrupt,
       "w: its storage 0 has 23 bytes, 6 elements of 4 expected"},
  });
  // A Zip64 field that is announced but absent.
  auto file = with([](auto& i) { i[3].zip64 = true; });
  const std::string_view view(reinterpret_cast<const char*>(file.data()), file.size());
  file[view.rfind("m/version") + 9 + 5] = 2;  // the field's id
  Check({{"no Zip64 field", file, corrupt, "m/version: its Zip64 field is cut short"}});
}

TEST(PytorchFile, RefusesViews) {
  const auto view = [](int64_t offset, std::vector<int64_t> size, std::vector<int64_t> stride) {
    return Archive(W(PickleTensor(Six(), offset, size, stride)));
  };
  const int64_t huge = int64_t{1} << 62;
  const Code corrupt = Code::kCorruptFile;
  Check({
      {"one too far", view(1, {6}, {1}), corrupt, "w: reaches element 6 of a storage of 6"},
      {"stride too far", view(0, {2, 3}, {4, 1}), corrupt, "w: reaches element 6 of"},
      {"offset too far", view(6, {}, {}), corrupt, "w: reaches element 6 of"},
      {"negative offset", view(-1, {2}, {1}), corrupt, "the offset of a tensor is an integer -1"},
      {"negative size", view(0, {-2}, {1}), corrupt, "the size of a tensor holds an integer -2"},
      {"negative stride", view(5, {2}, {-1}), corrupt,
       "the stride of a tensor holds an integer -1"},
      {"size wraps", view(0, {huge, 4}, {0, 0}), corrupt, "w: its size exceeds 64 bits"},
      {"reach wraps", view(0, {3, 3}, {huge, huge}), corrupt, "w: its size exceeds 64 bits"},
      {"offset wraps", view(huge - 1 + huge, {4}, {huge}), corrupt, "w: its size exceeds 64 bits"},
      {"repeats without end", view(0, {huge}, {0}), Code::kUnsupported,
       "w: repeats a storage of 6 elements to 4611686018427387904"},
      {"sizes and strides", view(0, {2, 3}, {1}), corrupt, "a tensor of 2 sizes and 1 strides"},
      {"9 axes", view(0, std::vector<int64_t>(9, 1), std::vector<int64_t>(9, 1)), corrupt,
       "the size of a tensor has 9 axes"},
      {"storage lies",
       Archive(W(PickleTensor(PickleStorage("FloatStorage", "0", huge), 0, {1}, {1}))), corrupt,
       "w: its storage 0 has 24 bytes, 4611686018427387904 elements"},
      {"negative storage",
       Archive(W(PickleTensor(PickleStorage("FloatStorage", "0", -1), 0, {1}, {1}))), corrupt,
       "a persistent id that is not"},
      {"path in a key",
       Archive(W(PickleTensor(PickleStorage("FloatStorage", "../0", 6), 0, {6}, {1}))), corrupt,
       "the archive has no storage m/data/../0"},
  });
}

TEST(PytorchFile, RefusesPickles) {
  const std::string proto("\x80\x02", 2);
  const std::string dict = PickleGlobal("collections", "OrderedDict");
  const std::string rebuild = PickleGlobal("torch._utils", "_rebuild_tensor_v2");
  const auto pickle = [&proto](const std::string& text) { return Archive(proto + text); };
  const Code corrupt = Code::kCorruptFile, unsupported = Code::kUnsupported;
  Check({
      {"os.system", pickle("cos\nsystem\n" + PickleText("id") + "\x85R."), unsupported,
       "data.pkl: byte 2: the pickle asks for os.system"},
      {"builtins.eval", pickle("cbuiltins\neval\n."), unsupported, "builtins.eval"},
      {"known name, other module", pickle("cevil\nOrderedDict\n."), unsupported,
       "evil.OrderedDict"},
      {"ByteStorage", pickle("ctorch\nByteStorage\n."), unsupported, "torch.ByteStorage"},
      {"v3 tensors", pickle("ctorch._utils\n_rebuild_tensor_v3\n."), unsupported,
       "torch._utils._rebuild_tensor_v3"},
      {"global without its end", pickle("cos\nsys"), corrupt, "a name without its end of line"},
      {"protocol 4", Archive(std::string("\x80\x04.", 3)), corrupt,
       "byte 0: pickle protocol 4, expected 2"},
      {"INST", pickle("(ios\nsystem\n."), unsupported, "byte 3: pickle opcode INST (0x69)"},
      {"OBJ", pickle("(o."), unsupported, "OBJ"},
      {"NEWOBJ", pickle(dict + ")\x81."), unsupported, "NEWOBJ (0x81)"},
      {"NEWOBJ_EX", pickle("\x92."), unsupported, "NEWOBJ_EX"},
      {"EXT1", pickle("\x82\1."), unsupported, "EXT1"},
      {"EXT4", pickle("\x84."), unsupported, "EXT4"},
      {"STACK_GLOBAL", pickle(PickleText("os") + PickleText("system") + "\x93."), unsupported,
       "STACK_GLOBAL (0x93)"},
      {"BYTEARRAY8", pickle("\x96."), unsupported, "BYTEARRAY8"},
      {"PERSID", pickle("Pid\n."), unsupported, "PERSID"},
      {"LONG4", pickle("\x8b."), unsupported, "LONG4"},
      {"unknown opcode", pickle("\xff."), unsupported, "pickle opcode 0xff"},
      {"empty", Archive(""), corrupt, "1 bytes wanted, the pickle has 0 more"},
      {"no STOP", pickle("}"), corrupt, "1 bytes wanted"},
      {"bytes behind STOP", pickle("}.}"), corrupt, "1 bytes behind the end of the pickle"},
      {"nothing left", pickle("."), corrupt, "the pickle ends with 0 values"},
      {"two left", pickle("}}."), corrupt, "the pickle ends with 2 values"},
      {"mark left", pickle("}(."), corrupt, "the pickle ends with 1 values"},
      {"string beyond the end", pickle("X" + Le(0xffffffff, 4) + "x."), corrupt,
       "4294967295 bytes wanted"},
      {"integer of 9 bytes", pickle("\x8a\x09" + std::string(9, '\1') + "."), corrupt,
       "an integer of 9 bytes"},
      {"empty memo slot", pickle("h\1."), corrupt, "memo slot 1 was never written"},
      {"memo slot of 4 billion", pickle("}r" + Le(0xffffffff, 4) + "."), corrupt,
       "memo slot 4294967295 of at most 1048576"},
      {"memo of nothing", pickle("q\1."), corrupt, "the stack is empty"},
      {"tuple of nothing", pickle("\x86."), corrupt, "the stack is empty"},
      {"tuple across a mark", pickle("}(\x85."), corrupt, "the stack is empty"},
      {"TUPLE without a mark", pickle("t."), corrupt, "an end of items without their mark"},
      {"odd SETITEMS", pickle("}(Nu."), corrupt, "a dict key without its value"},
      {"SETITEMS of a list", pickle("](NNu."), corrupt, "a dict wanted, found a list"},
      {"SETITEM of nothing", pickle("NNs."), corrupt, "a dict wanted, the stack is empty"},
      {"APPEND to a dict", pickle("}Na."), corrupt, "a list wanted, found a dict"},
      {"APPENDS to nothing", pickle("(Ne."), corrupt, "a list wanted, the stack is empty"},
      {"BUILD of a list", pickle("]Nb."), corrupt, "a dict wanted, found a list"},
      {"65 marks", pickle(std::string(65, '(')), corrupt, "nested deeper than 64 levels"},
      {"a million values", pickle(std::string((1 << 20) + 1, 'N') + "."), corrupt,
       "more than 1048576 values on the stack"},
      {"call of a dict", pickle("})R."), corrupt, "a call of a dict with a tuple"},
      {"call with a list", pickle(dict + "]R."), corrupt, "a call of a global with a list"},
      {"call of a storage", pickle("ctorch\nFloatStorage\n)R."), corrupt,
       "a call of torch.FloatStorage"},
      {"OrderedDict of items", pickle(dict + "]\x85R."), corrupt, "OrderedDict of 1 arguments"},
      {"tensor of nothing", pickle(rebuild + ")R."), corrupt, "of 0 arguments, expected 6"},
      {"tensor of None", pickle(rebuild + "(NNNNNNtR."), corrupt, "of None, expected a storage"},
      {"offset None", pickle(rebuild + "(" + Six() + "NNNNNtR."), corrupt,
       "the offset of a tensor is None"},
      {"size None", pickle(rebuild + "(" + Six() + "K\1NNNNtR."), corrupt,
       "the size of a tensor is None"},
      {"size of strings", pickle(rebuild + "(" + Six() + "K\1" + PickleText("a") + "\x85NNNtR."),
       corrupt, "the size of a tensor holds a string"},
      {"parameter of None",
       pickle(PickleGlobal("torch._utils", "_rebuild_parameter") + "NNN\x87R."), corrupt,
       "_rebuild_parameter of arguments other than"},
      {"persistent id of a string", pickle(PickleText("storage") + "Q."), corrupt,
       "a persistent id that is not"},
      {"persistent id of another kind",
       pickle("(" + PickleText("module") + PickleGlobal("torch", "FloatStorage") + PickleText("0") +
              PickleText("cpu") + "K\1tQ."),
       corrupt, "a persistent id that is not"},
      {"top is a list", pickle("]."), corrupt, "the pickle holds a list, expected a dict"},
      {"top is a tensor", pickle(PickleTensor(Six(), 0, {1}, {1}) + "."), corrupt,
       "the pickle holds a tensor"},
      {"no tensors", pickle("}."), corrupt, "the dict has no tensors"},
      {"wrapped twice",
       Archive(PickleDict(PickleText("model") + "}(" + PickleText("state_dict") + "}(" +
                          PickleText("w") + PickleTensor(Six(), 0, {1}, {1}) + "uu")),
       corrupt, "the dict has no tensors"},
      {"name given twice",
       Archive(PickleDict(PickleText("w") + PickleTensor(Six(), 0, {1}, {1}) + PickleText("w") +
                          PickleTensor(Six(), 0, {1}, {1}))),
       corrupt, "the dict has two tensors called w"},
  });
}

TEST(PytorchFile, CyclesAndSharingAreHarmless) {
  // A list that holds itself, and a tuple doubled a thousand times, beside a tensor.
  std::string shared = PickleText("t") + "N";
  for (int i = 0; i < 1000; ++i) shared += "q\2h\2\x86";
  const std::string items =
      PickleText("l") + "]q\1h\1a" + shared + PickleText("w") + PickleTensor(Six(), 0, {6}, {1});
  EXPECT_EQ(Read(Archive(PickleDict(items))), (F{0, 1, 2, 3, 4, 5}));
}

TEST(PytorchFile, EveryTruncationIsAnError) {
  const auto file = Archive(W(PickleTensor(Six(), 0, {6}, {1})));
  for (size_t size = 0; size < file.size(); ++size) {
    EXPECT_FALSE(ParsePytorchFile(std::span(file).first(size), "m.bin").ok()) << size;
  }
}

TEST(PytorchFile, FlippedBytesNeverReachOutside) {
  const auto file =
      ZipFile(Items(PickleDict(PickleText("a") + PickleTensor(Six(), 0, {2, 3}, {3, 1}) +
                               PickleText("b") + PickleTensor(Six(), 1, {2, 2}, {1, 2}))),
              {.zip64_end = true});
  std::mt19937 random(7);
  int accepted = 0;
  for (int i = 0; i < 20000; ++i) {
    std::vector<uint8_t> flipped = file;
    for (auto n = random() % 3 + 1; n > 0; --n) {
      flipped[random() % flipped.size()] = static_cast<uint8_t>(random());
    }
    const auto tensors = ParsePytorchFile(flipped, "m.bin");
    if (!tensors.ok()) continue;
    ++accepted;
    for (const auto& [name, tensor] : *tensors) {
      if (tensor.elements() <= 4096) (void)ReadF32(tensor, name).ok();
    }
  }
  EXPECT_GT(accepted, 0);
}

}  // namespace
}  // namespace adder
