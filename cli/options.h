// Options that take their argument as it is written. (CLI11's own conversions give "[a,b]" and "{}"
// a meaning and read 0x10 and 1e3 as whole numbers.)
#pragma once

#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>

#include "runtime/kernels_dispatch.h"
#include "runtime/session.h"

namespace adder::cli {

template <typename T>
struct Range {
  T min = std::numeric_limits<T>::lowest();
  T max = std::numeric_limits<T>::max();
};

// Reads all of `text` as a number; throws CLI11's error, which says what is expected, if it is none
// or lies outside the range. NaN never lies inside.
template <typename T>
T ParseNumber(const std::string& option, std::string_view text, Range<T> range = {}) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error != std::errc::invalid_argument && end == text.data() + text.size();
  if (whole && error == std::errc() && value >= range.min && value <= range.max) return value;
  std::string expected = std::is_integral_v<T> ? "a whole number" : "a number";
  const auto append = [&](const char* word, T limit) {
    char digits[64];
    const auto printed = std::to_chars(digits, digits + sizeof(digits), limit);
    expected.append(word).append(digits, printed.ptr);
  };
  if (std::is_integral_v<T> || range.min != Range<T>().min) append(" from ", range.min);
  if (std::is_integral_v<T> || range.max != Range<T>().max) append(" to ", range.max);
  throw CLI::ValidationError(option, "is \"" + std::string(text) + "\", expected " + expected);
}

// `label` stands for the argument in the help.
template <typename T>
CLI::Option* AddNumber(CLI::App* app, const std::string& names, const std::string& label, T* value,
                       const std::string& help, Range<T> range = {}) {
  const std::string name = names.substr(0, names.find(','));
  CLI::Option* option = app->add_option(
      names,
      [=](const CLI::results_t& arguments) {
        *value = ParseNumber<T>(name, arguments[0], range);
        return true;
      },
      help);
  return option->option_text(label);
}

// `Text` is std::string or std::optional<std::string>.
template <typename Text>
CLI::Option* AddText(CLI::App* app, const std::string& names, const std::string& label, Text* value,
                     const std::string& help) {
  CLI::Option* option = app->add_option(
      names,
      [=](const CLI::results_t& arguments) {
        *value = arguments[0];
        return true;
      },
      help);
  return option->option_text(label);
}

// --isa, with the names that this build knows.
inline void AddIsa(CLI::App* command, std::string* isa) {
  std::string names;
  for (const Kernels* table : CompiledKernels()) {
    names += (names.empty() ? "" : ", ") + std::string(table->name);
  }
  AddText(command, "--isa", "NAME", isa, "Kernels to use, if this CPU has them: " + names);
}

inline void AddStateType(CLI::App* app, StateType* type) {
  app->add_option_function<std::string>(
         "--state-type",
         [type](const std::string& name) {
           if (name != "f32" && name != "int16") {
             throw CLI::ValidationError("--state-type",
                                        "is \"" + name + "\", expected f32 or int16");
           }
           *type = name == "f32" ? StateType::kF32 : StateType::kInt16;
         },
         "Numbers of the state of Mamba-2 layers between tokens; int16: half the memory, slightly "
         "less exact")
      ->option_text("f32|int16 (f32)");
}

// `of` whose keys and values it is about.
inline void AddKvType(CLI::App* app, KvChoice* type, const std::string& of = "attention layers") {
  app->add_option_function<std::string>(
         "--kv",
         [type](const std::string& name) {
           if (name != "f16" && name != "int8") {
             throw CLI::ValidationError("--kv", "is \"" + name + "\", expected f16 or int8");
           }
           *type = name == "f16" ? KvChoice::kDefault : KvChoice::kInt8;
         },
         "Numbers of keys and values of " + of +
             " (f16: f32 where weights are f32); int8: half the memory, slightly less exact")
      ->option_text("f16|int8 (f16)");
}

inline void AddContextSize(CLI::App* command, SessionOptions* session) {
  AddNumber(command, "--context", "N (4096)", &session->context,
            "Tokens that attention layers look back on; other layers have no limit",
            {1u, kMaxContext});
}

// --context and --context-full; `session` has the default of the latter.
inline void AddContext(CLI::App* command, SessionOptions* session) {
  AddContextSize(command, session);
  const auto set_policy = [session](const CLI::results_t& arguments) {
    if (arguments[0] != "stop" && arguments[0] != "slide") {
      throw CLI::ValidationError("--context-full",
                                 "is \"" + arguments[0] + "\", expected stop or slide");
    }
    session->when_full = arguments[0] == "stop" ? ContextPolicy::kStop : ContextPolicy::kSlide;
    return true;
  };
  command
      ->add_option("--context-full", set_policy,
                   "Beyond the context: stop, or slide, so that attention forgets the oldest token")
      ->option_text(session->when_full == ContextPolicy::kStop ? "stop|slide (stop)"
                                                               : "stop|slide (slide)");
}

}  // namespace adder::cli
