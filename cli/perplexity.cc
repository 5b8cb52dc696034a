// adder perplexity, adder compare: how well models predict a text.
#include <algorithm>
#include <cmath>
#include <memory>
#include <string>

#include "cli/commands.h"
#include "cli/input.h"
#include "cli/interrupt.h"
#include "cli/json_writer.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "converter/evaluation.h"

namespace adder::cli {
namespace {

struct Options {
  std::string model, other, text, isa;
  EvaluationOptions evaluation;
  KvChoice kv_type = KvChoice::kDefault;
  bool json = false, quiet = false;
};

void AddEvaluationOptions(CLI::App* command, Options* options) {
  AddNumber(command, "--ctx", "N (512)", &options->evaluation.context,
            "Tokens of a window, BOS included; every window starts from a fresh state",
            {2u, 1u << 20});
  AddNumber(command, "--windows", "N (all)", &options->evaluation.windows,
            "Only the first N windows", Range<uint64_t>{1});
  command->add_flag("--second-half", options->evaluation.second_half,
                    "Score only the second half of each window, as llama-perplexity does");
  AddIsa(command, &options->isa);
  command->add_flag("--json", options->json, "Print the result as JSON");
  command->add_flag("-q,--quiet", options->quiet, "No progress");
}

Result<EvaluationText> ReadEvaluationText(const Options& options, const Model& model) {
  InputOptions input;
  input.file = options.text;
  ADDER_ASSIGN_OR_RETURN(const std::string text, ReadText(input));
  auto windows = EvaluationText::Create(model, text, options.evaluation);
  if (!windows.ok()) return Annotate(windows.status(), options.text);
  return windows;
}

EvaluationProgress ProgressOf(Progress* bar) {
  return [bar](uint64_t done, uint64_t total) {
    bar->Update(done, total, "windows");
    return !Interrupted();
  };
}

Result<int> RunPerplexity(const Options& options) {
  CatchInterrupts();
  ADDER_ASSIGN_OR_RETURN(const auto model, Model::Open(options.model, {.isa = options.isa}));
  ADDER_ASSIGN_OR_RETURN(const EvaluationText text, ReadEvaluationText(options, *model));
  Progress bar(Progress::StyleOf(options.quiet));
  ADDER_ASSIGN_OR_RETURN(const Perplexity result,
                         MeasurePerplexity(*model, text, ProgressOf(&bar), options.kv_type));
  bar.Clear();
  if (options.json) {
    JsonWriter json;
    json.BeginObject();
    json.Member("model", options.model);
    json.Member("perplexity", result.perplexity());
    json.Member("mean_nll", result.mean_nll);
    json.Member("standard_error", result.standard_error);
    json.Member("tokens", result.tokens);
    json.Member("windows", text.windows());
    json.Member("seconds", bar.seconds());
    json.EndObject();
    ADDER_RETURN_IF_ERROR(Print(json.Text()));
    return 0;
  }
  ADDER_RETURN_IF_ERROR(Print(
      Format("perplexity %.4f +- %.4f  (%.5f nats per token, %zu tokens in %zu windows, %.1f s)\n",
             result.perplexity(), result.perplexity() * result.standard_error, result.mean_nll,
             static_cast<size_t>(result.tokens), text.windows(), bar.seconds())));
  return 0;
}

std::string CompareJson(const Options& options, const Comparison& c) {
  JsonWriter json;
  json.BeginObject();
  json.Member("a", options.model);
  json.Member("b", options.other);
  json.Member("perplexity_a", c.a.perplexity());
  json.Member("perplexity_b", c.b.perplexity());
  json.Member("perplexity_ratio", std::exp(c.b.mean_nll - c.a.mean_nll));
  json.Member("mean_kl", c.mean_kl);
  json.Member("mean_kl_standard_error", c.kl_standard_error);
  json.Member("median_kl", c.median_kl);
  json.Member("kl_999", c.kl_999);
  json.Member("max_kl", c.max_kl);
  json.Member("top1_agreement", c.top1_agreement);
  json.Member("tokens", c.a.tokens);
  json.EndObject();
  return json.Text();
}

std::string CompareText(const Comparison& c) {
  const double ratio = std::exp(c.b.mean_nll - c.a.mean_nll);
  return Format(
      "perplexity a    %.4f +- %.4f\n"
      "perplexity b    %.4f +- %.4f\n"
      "ratio b / a     %.5f +- %.5f\n"
      "mean KL(a|b)    %.6f +- %.6f nats per token\n"
      "median KL       %.6f\n"
      "99.9%% KL        %.6f\n"
      "largest KL      %.6f\n"
      "same top-1      %.2f %%\n"
      "tokens          %zu\n",
      c.a.perplexity(), c.a.perplexity() * c.a.standard_error, c.b.perplexity(),
      c.b.perplexity() * c.b.standard_error, ratio, ratio * c.log_ratio_standard_error, c.mean_kl,
      c.kl_standard_error, c.median_kl, c.kl_999, c.max_kl, 100 * c.top1_agreement,
      static_cast<size_t>(c.a.tokens));
}

Result<int> RunCompare(const Options& options) {
  CatchInterrupts();
  ADDER_ASSIGN_OR_RETURN(const auto a, Model::Open(options.model, {.isa = options.isa}));
  ADDER_ASSIGN_OR_RETURN(const auto b, Model::Open(options.other, {.isa = options.isa}));
  ADDER_ASSIGN_OR_RETURN(const EvaluationText text, ReadEvaluationText(options, *a));
  ADDER_ASSIGN_OR_RETURN(const EvaluationText text_b, ReadEvaluationText(options, *b));
  if (!std::ranges::equal(text.tokens(), text_b.tokens())) {
    return Error(Code::kInvalidArgument, "the tokenizers of %s and %s make different tokens of %s",
                 options.model.c_str(), options.other.c_str(), options.text.c_str());
  }
  Progress bar(Progress::StyleOf(options.quiet));
  ADDER_ASSIGN_OR_RETURN(const Comparison result,
                         CompareModels(*a, *b, text, ProgressOf(&bar), options.kv_type));
  bar.Clear();
  ADDER_RETURN_IF_ERROR(Print(options.json ? CompareJson(options, result) : CompareText(result)));
  return 0;
}

}  // namespace

void AddPerplexity(CLI::App* app, Action* action) {
  CLI::App* command = app->add_subcommand("perplexity", "Measure how well a model predicts a text");
  auto options = std::make_shared<Options>();
  AddText(command, "MODEL", "", &options->model, "Model file")->required();
  AddText(command, "TEXT", "", &options->text,
          "Text file, documents separated by <|endoftext|>; - is standard input")
      ->required();
  AddEvaluationOptions(command, options.get());
  AddKvType(command, &options->kv_type);
  command->footer(
      "Examples:\n"
      "  adder perplexity model.adder text.txt\n"
      "  adder perplexity model.adder text.txt --ctx 2048 --windows 20 --json\n"
      "\n"
      "Perplexity is the exponential of the mean negative log-likelihood of the scored tokens. "
      "The\n"
      "text is cut into windows; tokens behind the last whole one are left out.");
  command->callback([=] { *action = [options] { return RunPerplexity(*options); }; });
}

void AddCompare(CLI::App* app, Action* action) {
  CLI::App* command =
      app->add_subcommand("compare", "Measure how far a model's predictions are from another's");
  auto options = std::make_shared<Options>();
  AddText(command, "A", "", &options->model, "Model file, the reference (f32 or f16, say)")
      ->required();
  AddText(command, "B", "", &options->other, "Model file with the same vocabulary")->required();
  AddText(command, "TEXT", "", &options->text,
          "Text file, documents separated by <|endoftext|>; not -, it is read twice")
      ->required();
  AddEvaluationOptions(command, options.get());
  AddKvType(command, &options->kv_type, "B's attention layers");
  command->footer(
      "Examples:\n"
      "  adder compare exact.adder small.adder text.txt\n"
      "  adder compare exact.adder small.adder text.txt --windows 60 --second-half --json\n"
      "  adder compare hybrid.adder hybrid.adder text.txt --kv int8   what 8-bit keys change\n"
      "\n"
      "KL is the Kullback-Leibler divergence of A's next-token distribution from B's: 0 for equal\n"
      "models. Under 0.001 nobody notices, at 0.1 texts differ visibly.");
  command->callback([=] { *action = [options] { return RunCompare(*options); }; });
}

}  // namespace adder::cli
