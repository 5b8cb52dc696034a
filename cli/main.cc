// The `adder` command. Exit codes: 0 done; 1 it failed, or a check of `verify` did; 2 the command
// line or what it names makes no sense; 128 + n ended by signal n (130: Ctrl-C).
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <new>
#include <numeric>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/output.h"

namespace adder::cli {
namespace {

constexpr int kFailed = 1, kUsage = 2;

// A file opened under the number of a closed standard stream would receive what is meant for that.
// The stand-ins are opened the wrong way round, so that using them is an error as before.
void FillClosedStreams() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(fd, F_GETFD) >= 0) continue;
    // The lowest free number, which is fd.
    const int got = ::open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
    static_cast<void>(got);
  }
}

void PrintError(const std::string& message) { Note("adder: " + Printable(message) + "\n"); }

// Insertions, deletions and replacements that turn `a` into `b` (Levenshtein).
size_t EditDistance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

int UnknownCommand(const std::vector<CLI::App*>& commands, const std::string& word) {
  std::string all, nearest;
  size_t least = 3;  // more mistakes are another word
  for (const CLI::App* command : commands) {
    const std::string name = command->get_name();
    all += (all.empty() ? "" : ", ") + name;
    const size_t distance = EditDistance(word.substr(0, 40), name);
    if (distance < least) {
      least = distance;
      nearest = name;
    }
  }
  PrintError("there is no command \"" + word.substr(0, 40) + "\"; " +
             (nearest.empty() ? "there are " + all : "did you mean " + nearest + "?"));
  return kUsage;
}

int Finish(const Result<int>& result) {
  if (result.ok()) return *result;
  const Status status = result.status();
  if (status.code() == Code::kCancelled) return Interrupted() ? InterruptExitCode() : 0;
  PrintError(status.message());
  return status.code() == Code::kInvalidArgument ? kUsage : kFailed;
}

int Main(int argc, char** argv) {
  CLI::App app("Adder runs quantized Mamba models on CPUs.", "adder");
  app.footer(
      "Start with a checkpoint from a model hub, or the one in examples/models:\n"
      "  adder convert examples/models/stories-11m -o story.adder\n"
      "  adder run story.adder -p \"The old king\" -n 100\n"
      "\n"
      "adder COMMAND --help explains a command. Results go to standard output, everything else to\n"
      "standard error. Exit code: 0 success, 1 failure, 2 wrong usage, 130 after Ctrl-C.\n"
      "The environment variable ADDER_ISA chooses the kernels, as --isa does.");
  app.set_version_flag("--version", "adder " ADDER_VERSION);
  app.require_subcommand(1);
  Action action;
  AddConvert(&app, &action);
  AddRun(&app, &action);
  AddInspect(&app, &action);
  AddVerify(&app, &action);
  AddLogits(&app, &action);
  AddTokenize(&app, &action);
  AddBench(&app, &action);
  AddSynth(&app, &action);
  AddPerplexity(&app, &action);
  AddCompare(&app, &action);

  if (argc < 2) {
    Note(app.help());
    return kUsage;
  }
  const std::string first = argv[1];
  const auto commands = app.get_subcommands({});
  const bool known = std::any_of(commands.begin(), commands.end(),
                                 [&](const CLI::App* c) { return c->get_name() == first; });
  if (!known && !first.starts_with('-')) return UnknownCommand(commands, first);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    const Status printed = Print(app.help());
    return printed.ok() ? 0 : Finish(printed);
  } catch (const CLI::CallForVersion& version) {
    const Status printed = Print(std::string(version.what()) + "\n");
    return printed.ok() ? 0 : Finish(printed);
  } catch (const CLI::ParseError& error) {
    PrintError(error.what());
    const auto chosen = app.get_subcommands();
    Note("Try: adder " + (chosen.empty() ? "" : chosen[0]->get_name() + " ") + "--help\n");
    return kUsage;
  }
  return Finish(action());
}

}  // namespace
}  // namespace adder::cli

int main(int argc, char** argv) {
  using adder::cli::PrintError;
  adder::cli::FillClosedStreams();
  // Writing to a closed pipe or beyond a size limit is an error, not the end.
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGXFSZ, SIG_IGN);
  try {
    return adder::cli::Main(argc, argv);
  } catch (const std::bad_alloc&) {
    PrintError("out of memory");
  } catch (const std::exception& error) {
    PrintError(error.what());
  }
  return adder::cli::kFailed;
}
