#include "converter/pickle.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cinttypes>
#include <optional>
#include <string_view>

#include "converter/text.h"

namespace adder {
namespace {

constexpr size_t kMaxStack = size_t{1} << 20;  // values, also the items of one container
constexpr size_t kMaxMemo = size_t{1} << 20;
constexpr size_t kMaxNodes = size_t{1} << 22;
constexpr size_t kMaxMarks = 64;  // nesting of open containers
constexpr size_t kMaxTensors = size_t{1} << 18;
constexpr size_t kMaxRank = 8;

enum class Kind {
  kNone,
  kBool,
  kInt,
  kFloat,
  kString,
  kTuple,
  kList,
  kDict,
  kGlobal,
  kStorage,
  kTensor
};

const char* KindName(Kind kind) {
  static constexpr const char* kNames[] = {"None",     "a bool",    "an integer", "a float",
                                           "a string", "a tuple",   "a list",     "a dict",
                                           "a global", "a storage", "a tensor"};
  return kNames[static_cast<size_t>(kind)];
}

enum class Callable { kOrderedDict, kRebuildTensor, kRebuildParameter, kStorageClass };

struct Global {
  std::string_view module, name;
  Callable callable;
  SourceType type;  // of kStorageClass
};

constexpr Global kGlobals[] = {
    {"collections", "OrderedDict", Callable::kOrderedDict, {}},
    {"torch._utils", "_rebuild_tensor_v2", Callable::kRebuildTensor, {}},
    {"torch._utils", "_rebuild_parameter", Callable::kRebuildParameter, {}},
    {"torch", "FloatStorage", Callable::kStorageClass, SourceType::kF32},
    {"torch", "HalfStorage", Callable::kStorageClass, SourceType::kF16},
    {"torch", "BFloat16Storage", Callable::kStorageClass, SourceType::kBF16},
    {"torch", "DoubleStorage", Callable::kStorageClass, SourceType::kF64},
    {"torch", "IntStorage", Callable::kStorageClass, SourceType::kI32},
    {"torch", "LongStorage", Callable::kStorageClass, SourceType::kI64},
};

// Values live in one array and refer to each other by index: a pickle can build cycles and graphs
// of any depth, and nothing here follows them further than a fixed number of steps.
using Ref = uint32_t;

struct Node {
  Kind kind = Kind::kNone;
  int64_t integer = 0;         // kBool, kInt; kTensor and kStorage: index into their array
  std::string_view text = {};  // kString, a part of the pickle
  const Global* global = nullptr;
  std::vector<Ref> items = {};  // kTuple, kList; kDict: key, value, key, value
};

struct Storage {
  std::string_view key;
  SourceType type;
  uint64_t elements;
};

// Names of protocol 2 to 5 opcodes that are refused, for messages.
std::string OpcodeName(uint8_t opcode) {
  static constexpr std::pair<char, const char*> kNames[] = {{'F', "FLOAT"},
                                                            {'I', "INT"},
                                                            {'L', "LONG"},
                                                            {'P', "PERSID"},
                                                            {'R', "REDUCE"},
                                                            {'S', "STRING"},
                                                            {'V', "UNICODE"},
                                                            {'d', "DICT"},
                                                            {'g', "GET"},
                                                            {'i', "INST"},
                                                            {'l', "LIST"},
                                                            {'o', "OBJ"},
                                                            {'p', "PUT"},
                                                            {'t', "TUPLE"},
                                                            {'0', "POP"},
                                                            {'1', "POP_MARK"},
                                                            {'2', "DUP"},
                                                            {'B', "BINBYTES"},
                                                            {'C', "SHORT_BINBYTES"},
                                                            {'\x81', "NEWOBJ"},
                                                            {'\x82', "EXT1"},
                                                            {'\x83', "EXT2"},
                                                            {'\x84', "EXT4"},
                                                            {'\x8b', "LONG4"},
                                                            {'\x8c', "SHORT_BINUNICODE"},
                                                            {'\x8d', "BINUNICODE8"},
                                                            {'\x8e', "BINBYTES8"},
                                                            {'\x8f', "EMPTY_SET"},
                                                            {'\x90', "ADDITEMS"},
                                                            {'\x91', "FROZENSET"},
                                                            {'\x92', "NEWOBJ_EX"},
                                                            {'\x93', "STACK_GLOBAL"},
                                                            {'\x94', "MEMOIZE"},
                                                            {'\x95', "FRAME"},
                                                            {'\x96', "BYTEARRAY8"},
                                                            {'\x97', "NEXT_BUFFER"},
                                                            {'\x98', "READONLY_BUFFER"}};
  char text[32];
  for (const auto& [code, name] : kNames) {
    if (static_cast<uint8_t>(code) == opcode) {
      std::snprintf(text, sizeof(text), "%s (0x%02x)", name, opcode);
      return text;
    }
  }
  std::snprintf(text, sizeof(text), "0x%02x", opcode);
  return text;
}

class Unpickler {
 public:
  Unpickler(std::span<const uint8_t> bytes, const std::string& name) : bytes_(bytes), name_(name) {}

  Status Run();  // up to STOP; the result is left in top()
  Result<std::map<std::string, PickledTensor>> Tensors() const;

 private:
  [[gnu::format(printf, 2, 3)]] Status Fail(const char* format, ...) const {
    char text[512];
    std::va_list args;
    va_start(args, format);
    std::vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    return Error(Code::kCorruptFile, "%s: byte %zu: %s", name_.c_str(), opcode_at_, text);
  }

  // Input.
  Result<std::span<const uint8_t>> Take(uint64_t count);
  Result<uint64_t> TakeInteger(size_t bytes);
  Result<std::string_view> TakeLine();
  Status PushText(uint64_t size);

  // Stack, marks and memo.
  Status Push(Node node);
  Status PushInteger(Kind kind, int64_t value) { return Push({.kind = kind, .integer = value}); }
  Result<Ref> Pop();
  Result<std::vector<Ref>> PopToMark();
  Result<Node*> Top(Kind kind);
  Status Tuple(size_t count);
  Status Put(uint64_t slot);
  Status Get(uint64_t slot);

  Status Step(uint8_t opcode);
  Status FindGlobal();
  Status LoadStorage();
  Status Reduce();
  Status RebuildTensor(const Node& arguments);
  Result<std::vector<uint64_t>> Sizes(Ref ref, const char* what) const;

  const Node* FindMember(const Node& dict, std::string_view key) const;
  const Node& At(Ref ref) const { return nodes_[ref]; }

  std::span<const uint8_t> bytes_;
  const std::string& name_;
  size_t at_ = 0, opcode_at_ = 0;
  std::vector<Node> nodes_;
  std::vector<Ref> stack_;
  std::vector<size_t> marks_;  // heights of the stack
  std::vector<std::optional<Ref>> memo_;
  std::vector<Storage> storages_;
  std::vector<PickledTensor> tensors_;
};

Result<std::span<const uint8_t>> Unpickler::Take(uint64_t count) {
  if (count > bytes_.size() - at_) {
    return Fail("%" PRIu64 " bytes wanted, the pickle has %zu more", count, bytes_.size() - at_);
  }
  const auto taken = bytes_.subspan(at_, static_cast<size_t>(count));
  at_ += taken.size();
  return taken;
}

Result<uint64_t> Unpickler::TakeInteger(size_t bytes) {
  ADDER_ASSIGN_OR_RETURN(const auto taken, Take(bytes));
  uint64_t value = 0;
  for (size_t i = 0; i < bytes; ++i) value |= uint64_t{taken[i]} << (8 * i);
  return value;
}

Result<std::string_view> Unpickler::TakeLine() {
  const auto begin = bytes_.begin() + static_cast<ptrdiff_t>(at_);
  const auto end = std::find(begin, bytes_.end(), uint8_t{'\n'});
  if (end == bytes_.end()) return Fail("a name without its end of line");
  const auto size = static_cast<size_t>(end - begin);
  const std::string_view line(reinterpret_cast<const char*>(bytes_.data()) + at_, size);
  at_ += size + 1;
  return line;
}

Status Unpickler::PushText(uint64_t size) {
  ADDER_ASSIGN_OR_RETURN(const auto taken, Take(size));
  return Push(
      {.kind = Kind::kString, .text = {reinterpret_cast<const char*>(taken.data()), taken.size()}});
}

Status Unpickler::Push(Node node) {
  if (stack_.size() >= kMaxStack) return Fail("more than %zu values on the stack", kMaxStack);
  if (nodes_.size() >= kMaxNodes) return Fail("more than %zu values", kMaxNodes);
  stack_.push_back(static_cast<Ref>(nodes_.size()));
  nodes_.push_back(std::move(node));
  return {};
}

Result<Ref> Unpickler::Pop() {
  if (stack_.empty() || (!marks_.empty() && stack_.size() <= marks_.back())) {
    return Fail("a value wanted, the stack is empty");
  }
  const Ref ref = stack_.back();
  stack_.pop_back();
  return ref;
}

Result<std::vector<Ref>> Unpickler::PopToMark() {
  if (marks_.empty()) return Fail("an end of items without their mark");
  const auto first = stack_.begin() + static_cast<ptrdiff_t>(marks_.back());
  std::vector<Ref> items(first, stack_.end());
  stack_.erase(first, stack_.end());
  marks_.pop_back();
  return items;
}

Result<Node*> Unpickler::Top(Kind kind) {
  if (stack_.empty() || (!marks_.empty() && stack_.size() <= marks_.back())) {
    return Fail("%s wanted, the stack is empty", KindName(kind));
  }
  Node* node = &nodes_[stack_.back()];
  if (node->kind != kind) return Fail("%s wanted, found %s", KindName(kind), KindName(node->kind));
  return node;
}

Status Unpickler::Tuple(size_t count) {
  Node tuple{.kind = Kind::kTuple};
  tuple.items.resize(count);
  for (size_t i = count; i-- > 0;) {
    ADDER_ASSIGN_OR_RETURN(tuple.items[i], Pop());
  }
  return Push(std::move(tuple));
}

Status Unpickler::Put(uint64_t slot) {
  if (slot >= kMaxMemo) return Fail("memo slot %" PRIu64 " of at most %zu", slot, kMaxMemo);
  ADDER_ASSIGN_OR_RETURN(const Ref ref, Pop());
  stack_.push_back(ref);
  if (slot >= memo_.size()) memo_.resize(static_cast<size_t>(slot) + 1);
  memo_[static_cast<size_t>(slot)] = ref;
  return {};
}

Status Unpickler::Get(uint64_t slot) {
  if (slot >= memo_.size() || !memo_[static_cast<size_t>(slot)]) {
    return Fail("memo slot %" PRIu64 " was never written", slot);
  }
  if (stack_.size() >= kMaxStack) return Fail("more than %zu values on the stack", kMaxStack);
  stack_.push_back(*memo_[static_cast<size_t>(slot)]);
  return {};
}

// GLOBAL module \n name \n
Status Unpickler::FindGlobal() {
  ADDER_ASSIGN_OR_RETURN(const std::string_view module, TakeLine());
  ADDER_ASSIGN_OR_RETURN(const std::string_view name, TakeLine());
  for (const Global& global : kGlobals) {
    if (global.module == module && global.name == name) {
      return Push({.kind = Kind::kGlobal, .global = &global});
    }
  }
  return Error(Code::kUnsupported,
               "%s: byte %zu: the pickle asks for %s.%s; only tensors, parameters and ordered "
               "dicts are read, and nothing is ever run",
               name_.c_str(), opcode_at_, Shown(module).c_str(), Shown(name).c_str());
}

// BINPERSID: ("storage", storage class, key, device, elements)
Status Unpickler::LoadStorage() {
  ADDER_ASSIGN_OR_RETURN(const Ref ref, Pop());
  const Node& id = At(ref);
  const auto part = [&](size_t i, Kind kind) { return At(id.items[i]).kind == kind; };
  if (id.kind != Kind::kTuple || id.items.size() != 5 || !part(0, Kind::kString) ||
      At(id.items[0]).text != "storage" || !part(1, Kind::kGlobal) ||
      At(id.items[1]).global->callable != Callable::kStorageClass || !part(2, Kind::kString) ||
      !part(3, Kind::kString) || !part(4, Kind::kInt) || At(id.items[4]).integer < 0) {
    return Fail("a persistent id that is not (\"storage\", class, key, device, elements)");
  }
  storages_.push_back({At(id.items[2]).text, At(id.items[1]).global->type,
                       static_cast<uint64_t>(At(id.items[4]).integer)});
  return PushInteger(Kind::kStorage, static_cast<int64_t>(storages_.size() - 1));
}

Result<std::vector<uint64_t>> Unpickler::Sizes(Ref ref, const char* what) const {
  const Node& node = At(ref);
  if (node.kind != Kind::kTuple) {
    return Fail("the %s of a tensor is %s, expected a tuple", what, KindName(node.kind));
  }
  if (node.items.size() > kMaxRank) {
    return Fail("the %s of a tensor has %zu axes, at most %zu are read", what, node.items.size(),
                kMaxRank);
  }
  std::vector<uint64_t> sizes;
  for (const Ref item : node.items) {
    if (At(item).kind != Kind::kInt || At(item).integer < 0) {
      return Fail("the %s of a tensor holds %s %" PRId64 ", expected integers from 0", what,
                  KindName(At(item).kind), At(item).integer);
    }
    sizes.push_back(static_cast<uint64_t>(At(item).integer));
  }
  return sizes;
}

// (storage, offset, size, stride, requires_grad, hooks [, metadata])
Status Unpickler::RebuildTensor(const Node& arguments) {
  const std::vector<Ref>& items = arguments.items;
  if (items.size() != 6 && items.size() != 7) {
    return Fail("_rebuild_tensor_v2 of %zu arguments, expected 6", items.size());
  }
  if (At(items[0]).kind != Kind::kStorage) {
    return Fail("_rebuild_tensor_v2 of %s, expected a storage", KindName(At(items[0]).kind));
  }
  if (At(items[1]).kind != Kind::kInt || At(items[1]).integer < 0) {
    return Fail("the offset of a tensor is %s %" PRId64 ", expected an integer from 0",
                KindName(At(items[1]).kind), At(items[1]).integer);
  }
  const Storage& storage = storages_[static_cast<size_t>(At(items[0]).integer)];
  PickledTensor tensor{.key = storage.key,
                       .type = storage.type,
                       .storage_elements = storage.elements,
                       .offset = static_cast<uint64_t>(At(items[1]).integer)};
  ADDER_ASSIGN_OR_RETURN(tensor.shape, Sizes(items[2], "size"));
  ADDER_ASSIGN_OR_RETURN(tensor.strides, Sizes(items[3], "stride"));
  if (tensor.shape.size() != tensor.strides.size()) {
    return Fail("a tensor of %zu sizes and %zu strides", tensor.shape.size(),
                tensor.strides.size());
  }
  if (tensors_.size() >= kMaxTensors) return Fail("more than %zu tensors", kMaxTensors);
  tensors_.push_back(std::move(tensor));
  return PushInteger(Kind::kTensor, static_cast<int64_t>(tensors_.size() - 1));
}

// The only "calls" there are: REDUCE of a known global with a tuple.
Status Unpickler::Reduce() {
  ADDER_ASSIGN_OR_RETURN(const Ref arguments_ref, Pop());
  ADDER_ASSIGN_OR_RETURN(const Ref callable_ref, Pop());
  if (At(arguments_ref).kind != Kind::kTuple || At(callable_ref).kind != Kind::kGlobal) {
    return Fail("a call of %s with %s", KindName(At(callable_ref).kind),
                KindName(At(arguments_ref).kind));
  }
  const Node& arguments = At(arguments_ref);
  switch (At(callable_ref).global->callable) {
    case Callable::kOrderedDict:
      if (!arguments.items.empty()) {
        return Fail("OrderedDict of %zu arguments, expected none", arguments.items.size());
      }
      return Push({.kind = Kind::kDict});
    case Callable::kRebuildTensor:
      return RebuildTensor(arguments);
    case Callable::kRebuildParameter:
      if (arguments.items.size() != 3 || At(arguments.items[0]).kind != Kind::kTensor) {
        return Fail("_rebuild_parameter of arguments other than (tensor, requires_grad, hooks)");
      }
      stack_.push_back(arguments.items[0]);
      return {};
    case Callable::kStorageClass:
      return Fail("a call of torch.%s", std::string(At(callable_ref).global->name).c_str());
  }
  return {};
}

Status Unpickler::Step(uint8_t opcode) {
  switch (opcode) {
    case 0x80: {  // PROTO
      ADDER_ASSIGN_OR_RETURN(const uint64_t protocol, TakeInteger(1));
      return protocol == 2 ? Status() : Fail("pickle protocol %" PRIu64 ", expected 2", protocol);
    }
    case '(':  // MARK
      if (marks_.size() >= kMaxMarks) return Fail("nested deeper than %zu levels", kMaxMarks);
      marks_.push_back(stack_.size());
      return {};
    case 'N':  // NONE
      return Push({});
    case 0x88:  // NEWTRUE
      return PushInteger(Kind::kBool, 1);
    case 0x89:  // NEWFALSE
      return PushInteger(Kind::kBool, 0);
    case 'K': {  // BININT1
      ADDER_ASSIGN_OR_RETURN(const uint64_t value, TakeInteger(1));
      return PushInteger(Kind::kInt, static_cast<int64_t>(value));
    }
    case 'M': {  // BININT2
      ADDER_ASSIGN_OR_RETURN(const uint64_t value, TakeInteger(2));
      return PushInteger(Kind::kInt, static_cast<int64_t>(value));
    }
    case 'J': {  // BININT, signed
      ADDER_ASSIGN_OR_RETURN(const uint64_t value, TakeInteger(4));
      return PushInteger(Kind::kInt, static_cast<int32_t>(static_cast<uint32_t>(value)));
    }
    case 0x8a: {  // LONG1: a byte count and a two's complement integer
      ADDER_ASSIGN_OR_RETURN(const uint64_t size, TakeInteger(1));
      if (size > 8) return Fail("an integer of %" PRIu64 " bytes, at most 8 are read", size);
      ADDER_ASSIGN_OR_RETURN(uint64_t value, TakeInteger(static_cast<size_t>(size)));
      if (size > 0 && size < 8 && value >> (8 * size - 1) != 0) value |= ~uint64_t{0} << (8 * size);
      return PushInteger(Kind::kInt, static_cast<int64_t>(value));
    }
    case 'G': {  // BINFLOAT: only ever part of values that are skipped
      ADDER_RETURN_IF_ERROR(Take(8).status());
      return Push({.kind = Kind::kFloat});
    }
    case 'X':    // BINUNICODE
    case 'T': {  // BINSTRING
      ADDER_ASSIGN_OR_RETURN(const uint64_t size, TakeInteger(4));
      return PushText(size);
    }
    case 'U': {  // SHORT_BINSTRING
      ADDER_ASSIGN_OR_RETURN(const uint64_t size, TakeInteger(1));
      return PushText(size);
    }
    case 'q': {  // BINPUT
      ADDER_ASSIGN_OR_RETURN(const uint64_t slot, TakeInteger(1));
      return Put(slot);
    }
    case 'r': {  // LONG_BINPUT
      ADDER_ASSIGN_OR_RETURN(const uint64_t slot, TakeInteger(4));
      return Put(slot);
    }
    case 'h': {  // BINGET
      ADDER_ASSIGN_OR_RETURN(const uint64_t slot, TakeInteger(1));
      return Get(slot);
    }
    case 'j': {  // LONG_BINGET
      ADDER_ASSIGN_OR_RETURN(const uint64_t slot, TakeInteger(4));
      return Get(slot);
    }
    case ')':  // EMPTY_TUPLE
      return Tuple(0);
    case 0x85:  // TUPLE1
      return Tuple(1);
    case 0x86:  // TUPLE2
      return Tuple(2);
    case 0x87:  // TUPLE3
      return Tuple(3);
    case 't': {  // TUPLE
      ADDER_ASSIGN_OR_RETURN(auto items, PopToMark());
      return Push({.kind = Kind::kTuple, .items = std::move(items)});
    }
    case ']':  // EMPTY_LIST
      return Push({.kind = Kind::kList});
    case '}':  // EMPTY_DICT
      return Push({.kind = Kind::kDict});
    case 'a': {  // APPEND
      ADDER_ASSIGN_OR_RETURN(const Ref item, Pop());
      ADDER_ASSIGN_OR_RETURN(Node* const list, Top(Kind::kList));
      list->items.push_back(item);
      return {};
    }
    case 'e':    // APPENDS
    case 'u': {  // SETITEMS
      ADDER_ASSIGN_OR_RETURN(const auto items, PopToMark());
      if (opcode == 'u' && items.size() % 2 != 0) return Fail("a dict key without its value");
      ADDER_ASSIGN_OR_RETURN(Node* const node, Top(opcode == 'e' ? Kind::kList : Kind::kDict));
      node->items.insert(node->items.end(), items.begin(), items.end());
      return {};
    }
    case 's': {  // SETITEM
      ADDER_ASSIGN_OR_RETURN(const Ref value, Pop());
      ADDER_ASSIGN_OR_RETURN(const Ref key, Pop());
      ADDER_ASSIGN_OR_RETURN(Node* const dict, Top(Kind::kDict));
      dict->items.insert(dict->items.end(), {key, value});
      return {};
    }
    case 'b':  // BUILD: state_dict() carries _metadata as an attribute, which is not needed
      ADDER_RETURN_IF_ERROR(Pop().status());
      return Top(Kind::kDict).status();
    case 'c':  // GLOBAL
      return FindGlobal();
    case 'Q':  // BINPERSID
      return LoadStorage();
    case 'R':  // REDUCE
      return Reduce();
    default:
      return Error(Code::kUnsupported,
                   "%s: byte %zu: pickle opcode %s is not one that torch.save needs for tensors",
                   name_.c_str(), opcode_at_, OpcodeName(opcode).c_str());
  }
}

Status Unpickler::Run() {
  while (true) {
    opcode_at_ = at_;
    ADDER_ASSIGN_OR_RETURN(const uint64_t opcode, TakeInteger(1));
    if (opcode == '.') break;  // STOP
    ADDER_RETURN_IF_ERROR(Step(static_cast<uint8_t>(opcode)));
  }
  if (stack_.size() != 1 || !marks_.empty()) {
    return Fail("the pickle ends with %zu values, expected 1", stack_.size());
  }
  if (at_ != bytes_.size()) {
    return Fail("%zu bytes behind the end of the pickle", bytes_.size() - at_);
  }
  return {};
}

const Node* Unpickler::FindMember(const Node& dict, std::string_view key) const {
  for (size_t i = 0; i < dict.items.size(); i += 2) {
    const Node& name = At(dict.items[i]);
    if (name.kind == Kind::kString && name.text == key) return &At(dict.items[i + 1]);
  }
  return nullptr;
}

Result<std::map<std::string, PickledTensor>> Unpickler::Tensors() const {
  const Node* top = &At(stack_[0]);
  if (top->kind != Kind::kDict) {
    return Error(Code::kCorruptFile, "%s: the pickle holds %s, expected a dict of tensors",
                 name_.c_str(), KindName(top->kind));
  }
  const auto has_tensors = [this](const Node& dict) {
    for (size_t i = 1; i < dict.items.size(); i += 2) {
      if (At(dict.items[i]).kind == Kind::kTensor) return true;
    }
    return false;
  };
  if (!has_tensors(*top)) {
    for (const char* key : {"state_dict", "model"}) {
      const Node* inner = FindMember(*top, key);
      if (inner != nullptr && inner->kind == Kind::kDict && has_tensors(*inner)) {
        top = inner;
        break;
      }
    }
  }
  std::map<std::string, PickledTensor> tensors;
  for (size_t i = 0; i < top->items.size(); i += 2) {
    const Node &key = At(top->items[i]), &value = At(top->items[i + 1]);
    if (key.kind != Kind::kString || value.kind != Kind::kTensor) continue;
    if (!tensors.emplace(key.text, tensors_[static_cast<size_t>(value.integer)]).second) {
      return Error(Code::kCorruptFile, "%s: the dict has two tensors called %s", name_.c_str(),
                   Shown(key.text).c_str());
    }
  }
  if (tensors.empty()) {
    return Error(Code::kCorruptFile, "%s: the dict has no tensors, nor has its state_dict or model",
                 name_.c_str());
  }
  return tensors;
}

}  // namespace

Result<std::map<std::string, PickledTensor>> ReadPickledTensors(std::span<const uint8_t> bytes,
                                                                const std::string& name) {
  Unpickler unpickler(bytes, name);
  ADDER_RETURN_IF_ERROR(unpickler.Run());
  return unpickler.Tensors();
}

}  // namespace adder
