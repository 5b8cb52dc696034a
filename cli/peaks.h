// The most multiply-adds that one core of this machine can do, measured.
#pragma once

#include <span>
#include <string_view>

namespace adder::cli {

// A loop of independent chains of the instruction that a kernel table multiplies with, from
// registers alone.
struct PeakLoop {
  const char* isa;          // name of the kernel table
  const char* instruction;  // for people
  bool int8;                // products of bytes, else of floats
  double multiply_adds;     // of one call
  void (*run)();
};

// Of all kernel tables that this build has. Running one needs the processor of its table.
std::span<const PeakLoop> PeakLoops();

// Billions of multiply-adds per second of a kernel table; 0: unknown.
double MeasurePeak(std::string_view isa, bool int8);

}  // namespace adder::cli
