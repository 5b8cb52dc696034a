// The commands of `adder`, one file each. AddX describes the options of command X to the parser,
// and has it store in `action` what is left to do when X was on the command line.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

#include "runtime/status.h"

namespace adder::cli {

// Does the work; the exit code, or an error for main to print.
using Action = std::function<Result<int>()>;

void AddConvert(CLI::App* app, Action* action);
void AddRun(CLI::App* app, Action* action);
void AddInspect(CLI::App* app, Action* action);
void AddVerify(CLI::App* app, Action* action);
void AddLogits(CLI::App* app, Action* action);
void AddTokenize(CLI::App* app, Action* action);
void AddBench(CLI::App* app, Action* action);
void AddSynth(CLI::App* app, Action* action);
void AddPerplexity(CLI::App* app, Action* action);
void AddCompare(CLI::App* app, Action* action);

}  // namespace adder::cli
