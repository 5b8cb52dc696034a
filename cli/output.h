// What the command writes: results to standard output, everything else to standard error.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/status.h"

namespace adder::cli {

// Results. When the reader has gone the command ends quietly.
Status Print(std::string_view text);
// News and errors. That they cannot be written is no error.
void Note(std::string_view text);

// Builds text from a printf format.
[[gnu::format(printf, 1, 2)]] std::string Format(const char* format, ...);

// `text` with control characters and what is not UTF-8 made visible, so that a name in a file
// cannot command the terminal. Line breaks stay.
std::string Printable(std::string_view text);

std::string FormatBytes(uint64_t bytes);    // "12.3 MB", powers of 1000
std::string FormatNumber(uint64_t number);  // "11.2M"

bool IsTerminal(int fd);

}  // namespace adder::cli
