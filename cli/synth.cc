// adder synth: a model with random weights, for benchmarks.
#include "converter/synth.h"

#include <memory>

#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/model_output.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/progress.h"

namespace adder::cli {
namespace {

struct Options {
  std::string like, output, type = "q8";
  bool quiet = false;
};

Result<int> Run(const Options& options) {
  CatchInterrupts();
  ADDER_RETURN_IF_ERROR(CheckReplaceable(options.output));
  Progress progress(Progress::StyleOf(options.quiet));
  ConvertOptions convert;
  convert.type = FindWeightType(options.type);
  convert.progress = [&](const ConvertProgress& p) {
    progress.Update(p.weights_done, p.weights_total, p.tensor);
    return !Interrupted();
  };
  const Result<ConvertReport> report = Synthesize(options.like, options.output, convert);
  progress.Clear();
  if (!report.ok() && Interrupted()) return InterruptExitCode();
  ADDER_RETURN_IF_ERROR(report.status());
  if (options.quiet) return 0;
  ADDER_RETURN_IF_ERROR(
      Print(Format("%s: %s, %s parameters, %s, %.1f s\n", Printable(options.output).c_str(),
                   options.like.c_str(), FormatNumber(report->weights).c_str(),
                   FormatBytes(report->file_bytes).c_str(), progress.seconds())));
  return 0;
}

}  // namespace

void AddSynth(CLI::App* app, Action* action) {
  CLI::App* command =
      app->add_subcommand("synth", "Make a model with random weights, for benchmarks");
  auto options = std::make_shared<Options>();
  std::string names;
  for (const std::string& name : SynthNames()) names += "\n  " + name;
  AddText(command, "--like", "NAME (required)", &options->like,
          "Published model whose shape it has")
      ->required();
  AddText(command, "-o,--output", "FILE (required)", &options->output, "Model file to make")
      ->required();
  std::vector<std::string> types;
  for (const auto& entry : kWeightTypes) types.push_back(entry.second);
  AddText(command, "-t,--type", "f32|f16|q8|q4 (q8)", &options->type, "As in adder convert")
      ->check(CLI::IsMember(types));
  command->add_flag("-q,--quiet", options->quiet, "Print warnings and errors only");
  command->footer(
      "It runs as fast as the real model and says nothing sensible. Names:" + names +
      "\n\nExample:\n  adder synth --like mamba-130m --type q4 -o m.adder && adder bench m.adder");
  command->callback([=] { *action = [options] { return Run(*options); }; });
}

}  // namespace adder::cli
