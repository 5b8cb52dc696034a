// adder convert: checkpoint in, model file out.
#include "converter/convert.h"

#include <cinttypes>
#include <memory>

#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/json_writer.h"
#include "cli/model_output.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/summary.h"

namespace adder::cli {
namespace {

struct Options {
  std::string source, output, type = "q8", family;
  bool json = false, quiet = false;
};

std::string Report(const Options& options, const ModelSummary& model, double seconds,
                   const std::vector<std::string>& warnings) {
  if (!options.json) {
    return Format("%s: %s, %zu layers, %s parameters, %s, %s (%.2f bits per weight), %.1f s\n",
                  Printable(options.output).c_str(), Printable(model.family).c_str(), model.layers,
                  FormatNumber(model.parameters).c_str(), Printable(model.type).c_str(),
                  FormatBytes(model.file_bytes).c_str(), model.bits_per_weight, seconds);
  }
  JsonWriter json;
  json.BeginObject();
  json.Member("model", options.output);
  WriteSummary(model, &json);
  json.Member("seconds", seconds);
  json.ListMember("warnings", warnings);
  json.EndObject();
  return json.Text();
}

Result<int> Run(const Options& options) {
  CatchInterrupts();
  ADDER_RETURN_IF_ERROR(CheckReplaceable(options.output));
  Progress progress(Progress::StyleOf(options.quiet));
  ConvertOptions convert;
  convert.type = FindWeightType(options.type);
  convert.family = options.family;
  convert.progress = [&](const ConvertProgress& p) {
    progress.Update(p.weights_done, p.weights_total, p.tensor);
    return !Interrupted();
  };
  const Result<ConvertReport> report = Convert(options.source, options.output, convert);
  progress.Clear();
  if (!report.ok() && Interrupted()) {
    Note("adder: interrupted, " + Printable(options.output) + " was not written\n");
    return InterruptExitCode();
  }
  ADDER_RETURN_IF_ERROR(report.status());
  for (const std::string& warning : report->warnings) Note("warning: " + Printable(warning) + "\n");
  // Opening what was made is a check of it, and gives the figures that `inspect` gives.
  ADDER_ASSIGN_OR_RETURN(const auto model, Model::Open(options.output));
  if (options.quiet && !options.json) return 0;
  ADDER_RETURN_IF_ERROR(
      Print(Report(options, Summarize(*model), progress.seconds(), report->warnings)));
  return 0;
}

}  // namespace

void AddConvert(CLI::App* app, Action* action) {
  CLI::App* command = app->add_subcommand("convert", "Make a model file from a checkpoint");
  auto options = std::make_shared<Options>();
  AddText(command, "SRC", "", &options->source,
          "Folder of a checkpoint with config.json, its weights file, or a GGUF file")
      ->required();
  AddText(command, "-o,--output", "FILE (required)", &options->output,
          "Model file to make; an older model of that name is replaced")
      ->required();
  std::vector<std::string> types;
  for (const auto& entry : kWeightTypes) types.push_back(entry.second);
  AddText(command, "-t,--type", "f32|f16|q8|q4 (q8)", &options->type,
          "Numbers of the weights: 32 or 16 bits, 8 bits with a scale per row, 4 bits in groups")
      ->check(CLI::IsMember(types));
  AddText(command, "--family", "NAME", &options->family,
          "Model family, where the checkpoint does not tell: mamba, falcon_mamba, mamba2");
  command->add_flag("--json", options->json, "Print the result as JSON");
  command->add_flag("-q,--quiet", options->quiet, "Print warnings and errors only");
  command->footer(
      "Examples:\n"
      "  adder convert path/to/checkpoint -o model.adder             8 bits, nearly lossless\n"
      "  adder convert path/to/checkpoint -o small.adder --type q4   half of that\n"
      "  adder convert pytorch_model.bin -o exact.adder --type f32   for comparisons\n"
      "  adder convert model.gguf -o model.adder                     weights and tokenizer of a "
      "GGUF file\n"
      "\n"
      "The model gets its name when it is complete: Ctrl-C or a full disk leave nothing behind.\n"
      "The same checkpoint always gives the same bytes.");
  command->callback([=] { *action = [options] { return Run(*options); }; });
}

}  // namespace adder::cli
