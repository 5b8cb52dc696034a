#include "cli/input.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>

#include "cli/interrupt.h"
#include "cli/options.h"
#include "cli/output.h"

namespace adder::cli {
namespace {

constexpr size_t kMaxInputBytes = size_t{64} << 20;  // weeks of reading for a small board

Result<std::string> ReadAll(int fd, const std::string& name) {
  std::string text;
  while (text.size() <= kMaxInputBytes) {
    const size_t before = text.size();
    text.resize(before + (size_t{64} << 10));
    const ssize_t count = ::read(fd, text.data() + before, text.size() - before);
    const int error = errno;
    text.resize(before + (count > 0 ? static_cast<size_t>(count) : 0));
    if (count == 0) return text;
    if (Interrupted()) return Status(Code::kCancelled, "interrupted");
    if (count < 0 && error != EINTR) {
      return Error(Code::kIo, "%s: cannot read: %s", name.c_str(), std::strerror(error));
    }
  }
  return Error(Code::kInvalidArgument, "%s: longer than the %zu bytes that are allowed",
               name.c_str(), kMaxInputBytes);
}

// "-" is standard input.
Result<std::string> ReadFile(const std::string& path) {
  if (path == "-") return ReadAll(STDIN_FILENO, "standard input");
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    const Code code = errno == ENOENT ? Code::kNotFound : Code::kIo;
    return Error(code, "%s: cannot open: %s", path.c_str(), std::strerror(errno));
  }
  Result<std::string> text = ReadAll(fd, path);
  ::close(fd);
  return text;
}

// Editors and `echo` end a text with a line break that nobody means as part of a prompt.
Result<std::string> WithoutLastLineBreak(Result<std::string> text) {
  if (text.ok() && text->ends_with('\n')) text->pop_back();
  if (text.ok() && text->ends_with('\r')) text->pop_back();
  return text;
}

}  // namespace

void AddInputOptions(CLI::App* command, InputOptions* options) {
  const char* group = "Input (default: standard input)";
  CLI::Option* text = AddText(command, "-p,--prompt", "TEXT", &options->text, "This text");
  CLI::Option* file = AddText(command, "-f,--file", "FILE", &options->file,
                              "The text in FILE, without its last line break; - is standard input");
  CLI::Option* ids = AddText(command, "--ids", "\"1 2 3\"|@FILE", &options->ids,
                             "These token ids, or those in FILE");
  text->group(group)->excludes(file)->excludes(ids);
  file->group(group)->excludes(ids);
  ids->group(group);
  const auto clear = [](bool* flag) { return [flag](int64_t) { *flag = false; }; };
  command
      ->add_flag_function("--no-bos,--no-special", clear(&options->add_special),
                          "Do not add BOS or what else the tokenizer puts around a text")
      ->group(group);
  command
      ->add_flag_function("--raw", clear(&options->parse_special),
                          "Special tokens written in the text, such as <|im_end|>, are plain text")
      ->group(group);
}

Result<const Tokenizer*> RequireTokenizer(const Model& model) {
  if (model.tokenizer() != nullptr) return model.tokenizer();
  return Status(Code::kInvalidArgument, "this model has no tokenizer: give token ids with --ids");
}

Result<std::string> ReadText(const InputOptions& options) {
  if (options.text) return *options.text;
  if (options.file) return WithoutLastLineBreak(ReadFile(*options.file));
  if (IsTerminal(STDIN_FILENO)) return std::string();
  return WithoutLastLineBreak(ReadFile("-"));
}

Result<Input> ReadInput(const InputOptions& options, const Model& model) {
  Input input;
  if (options.ids) {
    ADDER_ASSIGN_OR_RETURN(input.tokens, ReadIds(*options.ids));
    return input;
  }
  ADDER_ASSIGN_OR_RETURN(input.text, ReadText(options));
  if (input.text.empty() && model.tokenizer() == nullptr) return input;
  ADDER_ASSIGN_OR_RETURN(const Tokenizer* tokenizer, RequireTokenizer(model));
  ADDER_ASSIGN_OR_RETURN(
      input.tokens, tokenizer->Encode(input.text, {options.add_special, options.parse_special}));
  return input;
}

Result<std::vector<int32_t>> ReadIds(const std::string& argument) {
  if (!argument.starts_with('@')) return ParseIds(argument);
  ADDER_ASSIGN_OR_RETURN(const std::string list, ReadFile(argument.substr(1)));
  return ParseIds(list);
}

Result<std::vector<int32_t>> ParseIds(std::string_view list) {
  constexpr std::string_view kSeparators = " ,\t\r\n";
  std::vector<int32_t> ids;
  std::string_view rest = list;
  for (;;) {
    rest.remove_prefix(std::min(rest.find_first_not_of(kSeparators), rest.size()));
    if (rest.empty()) return ids;
    const std::string_view word = rest.substr(0, rest.find_first_of(kSeparators));
    int32_t id = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), id);
    if (error != std::errc() || end != word.data() + word.size() || id < 0) {
      return Error(Code::kInvalidArgument,
                   "number %zu of the token ids is \"%.40s\", expected 0 or more", ids.size() + 1,
                   std::string(word).c_str());
    }
    ids.push_back(id);
    rest.remove_prefix(word.size());
  }
}

}  // namespace adder::cli
