// adder verify: is the file whole, and does it compute what a reference computed?
#include <cinttypes>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/json_writer.h"
#include "cli/options.h"
#include "cli/output.h"
#include "converter/golden_check.h"
#include "runtime/model.h"
#include "runtime/session.h"

namespace adder::cli {
namespace {

struct Options {
  std::string model;
  std::optional<std::string> golden;
  double max_error = 1e-4;
  std::string isa;
  SessionOptions session;
  bool json = false;
};

struct Check {
  std::string name;
  bool passed;
  std::string text;
};

Check CheckError(const std::string& name, double error, double limit) {
  return {name, error <= limit,  // NaN fails
          Format("largest error %.3g of a standard deviation, at most %.3g allowed", error, limit)};
}

std::vector<Check> GoldenChecks(const GoldenReport& report, double max_error) {
  std::vector<Check> checks = {CheckError("logits", report.logits_error, max_error)};
  if (report.hidden_layers > 0) {
    checks.push_back(CheckError("hidden", report.hidden_error, max_error));
  }
  if (report.greedy_expected > 0) {
    checks.push_back({"greedy", report.greedy_equal == report.greedy_expected,
                      Format("%zu of %zu tokens before the first difference", report.greedy_equal,
                             report.greedy_expected)});
  }
  return checks;
}

std::string Text(const std::vector<Check>& checks, const std::optional<GoldenReport>& report) {
  std::string text;
  for (const Check& check : checks) {
    text += Format("%s  %-10s ", check.passed ? "PASS" : "FAIL", check.name.c_str()) +
            Printable(check.text) + "\n";
  }
  if (report) {
    text += Format("      %-10s %zu of %zu positions have the same likeliest token\n", "top-1",
                   report->top1_equal, report->tokens);
  }
  return text;
}

std::string Json(const Options& options, const std::vector<Check>& checks,
                 const std::optional<GoldenReport>& report, bool passed) {
  JsonWriter json;
  json.BeginObject();
  json.Member("model", options.model);
  json.Member("passed", passed);
  json.Key("checks");
  json.BeginArray();
  for (const Check& check : checks) {
    json.BeginObject();
    json.Member("name", check.name);
    json.Member("passed", check.passed);
    json.Member("text", check.text);
    json.EndObject();
  }
  json.EndArray();
  if (report) {
    json.Key("golden");
    json.BeginObject();
    json.Member("tokens", report->tokens);
    json.Member("logits_error", report->logits_error);
    json.Member("top1_equal", report->top1_equal);
    json.Member("hidden_layers", report->hidden_layers);
    json.Member("hidden_error", report->hidden_error);
    json.Member("greedy_expected", report->greedy_expected);
    json.Member("greedy_equal", report->greedy_equal);
    json.Member("max_error", options.max_error);
    json.EndObject();
  }
  json.EndObject();
  return json.Text();
}

// Fills `checks` and `report` as far as it gets; errors are those that say nothing about the model.
Status RunChecks(const Options& options, std::vector<Check>* checks,
                 std::optional<GoldenReport>* report) {
  ModelOptions model_options;
  model_options.isa = options.isa;
  const auto model = Model::Open(options.model, model_options);
  if (model.status().code() == Code::kCorruptFile) {
    checks->push_back({"structure", false, model.status().message()});
    return {};
  }
  ADDER_RETURN_IF_ERROR(model.status());
  ADDER_RETURN_IF_ERROR(Session::Bytes(**model, options.session).status());
  const ModelFile& file = (*model)->file();
  checks->push_back(
      {"structure", true,
       Format("%zu tensors, %s", file.tensors().size(), FormatBytes(file.bytes()).c_str())});
  const Status data = file.VerifyData();
  checks->push_back({"checksums", data.ok(), data.ok() ? "of all tensors" : data.message()});
  if (!options.golden) return {};
  const auto golden = CheckGolden(**model, *options.golden, options.session);
  if (!golden.ok()) {
    checks->push_back({"golden", false, golden.status().message()});
    return {};
  }
  *report = *golden;
  for (Check& check : GoldenChecks(*golden, options.max_error)) checks->push_back(std::move(check));
  return {};
}

Result<int> Run(const Options& options) {
  std::vector<Check> checks;
  std::optional<GoldenReport> report;
  ADDER_RETURN_IF_ERROR(RunChecks(options, &checks, &report));
  bool passed = true;
  for (const Check& check : checks) passed = passed && check.passed;
  ADDER_RETURN_IF_ERROR(
      Print(options.json ? Json(options, checks, report, passed) : Text(checks, report)));
  return passed ? 0 : 1;
}

}  // namespace

void AddVerify(CLI::App* app, Action* action) {
  CLI::App* command =
      app->add_subcommand("verify", "Check a model file: checksums, and reference values");
  auto options = std::make_shared<Options>();
  AddText(command, "MODEL", "", &options->model, "Model file")->required();
  AddText(command, "--golden", "FILE", &options->golden,
          "Reference values to compare with: safetensors with input_ids, logits and optionally "
          "hidden_states and greedy_ids");
  AddNumber(
      command, "--max-error", "X (1e-4)", &options->max_error,
      "Error of logits and hidden states that passes, in standard deviations of the reference",
      {0.0, std::numeric_limits<double>::max()});
  AddContextSize(command, &options->session);
  AddKvType(command, &options->session.kv_type);
  AddIsa(command, &options->isa);
  command->add_flag("--json", options->json, "Print JSON");
  command->footer(
      "Examples:\n"
      "  adder verify model.adder\n"
      "  adder verify exact.adder --golden checkpoint/golden.safetensors\n"
      "  adder verify model-q8.adder --golden checkpoint/golden.safetensors --max-error 0.2\n"
      "  adder verify hybrid.adder --golden long.safetensors --context 16384 --kv int8\n"
      "\n"
      "Exit code 0 only if every line says PASS. Quantized models differ from the reference: give\n"
      "them a larger --max-error.");
  command->callback([=] { *action = [options] { return Run(*options); }; });
}

}  // namespace adder::cli
