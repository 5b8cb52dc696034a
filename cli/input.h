// Prompts: text or token ids from an option, a file or standard input.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/model.h"
#include "runtime/status.h"

namespace adder::cli {

struct InputOptions {
  std::optional<std::string> text, file, ids;  // at most one of them
  bool add_special = true;
  bool parse_special = true;
};

void AddInputOptions(CLI::App* command, InputOptions* options);

struct Input {
  std::string text;  // of input that came as text
  std::vector<int32_t> tokens;
};

// The tokens that the options name. Without any of them: the text of standard input, or nothing if
// that is a terminal.
Result<Input> ReadInput(const InputOptions& options, const Model& model);

// The same for text, whatever becomes of it.
Result<std::string> ReadText(const InputOptions& options);

// "1 2 3" or "1,2,3".
Result<std::vector<int32_t>> ParseIds(std::string_view list);

// Such a list, or "@FILE" with one.
Result<std::vector<int32_t>> ReadIds(const std::string& argument);

// The tokenizer, or an error that says what to do without.
Result<const Tokenizer*> RequireTokenizer(const Model& model);

}  // namespace adder::cli
