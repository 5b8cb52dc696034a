// adder run: text from a model, as it is made.
#include <charconv>
#include <chrono>
#include <cinttypes>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/input.h"
#include "cli/interrupt.h"
#include "cli/json_writer.h"
#include "cli/options.h"
#include "cli/output.h"
#include "runtime/generate.h"
#include "runtime/model.h"
#include "runtime/session_buffer.h"
#include "runtime/session_file.h"

namespace adder::cli {
namespace {

struct Options {
  std::string model;
  InputOptions input;
  ModelOptions model_options;
  SessionOptions session;
  GenerateOptions generate;
  std::optional<std::string> state;  // file
  bool seeded = false;
  bool echo = false, json = false, quiet = false;
};

// Shows text at once: each piece is one write, past any buffer.
class TextToOutput final : public TextSink {
 public:
  explicit TextToOutput(bool has_text) : has_text_(has_text) {}

  bool OnText(std::string_view text, int32_t token) override {
    if (has_text_) return Show(text);
    // Without a tokenizer the ids are all there is.
    return token < 0 || Show(std::to_string(token) + " ");
  }

  bool Show(std::string_view text) {
    if (status_.ok() && !text.empty()) {
      status_ = Print(text);
      line_open_ = text.back() != '\n';
    }
    return status_.ok();
  }

  // Leaves the terminal at the beginning of a line.
  void Finish() {
    if (line_open_) Show("\n");
  }
  const Status& status() const { return status_; }

 private:
  const bool has_text_;
  bool line_open_ = false;
  Status status_;
};

class TextToMemory final : public TextSink {
 public:
  bool OnText(std::string_view piece, int32_t token) override {
    text += piece;
    if (token >= 0) tokens.push_back(token);
    return true;
  }

  std::string text;
  std::vector<int32_t> tokens;
};

double PerSecond(uint64_t count, double seconds) {
  return seconds > 0 ? static_cast<double>(count) / seconds : 0;
}

struct Statistics {
  GenerateResult result;
  double load_ms;
  uint64_t seed;
  std::string isa;
  uint64_t reused;  // tokens of the text that came from the state file
};

std::string Text(const Statistics& s, bool sampled) {
  const GenerateResult& r = s.result;
  const uint64_t fed = r.prompt_tokens - r.reused_tokens;
  std::string text = Format("prompt     %6" PRIu64 " tokens %9.1f tok/s\ngenerated  %6" PRIu64
                            " tokens %9.1f tok/s  ended by: %s\nloaded in %.1f ms, kernels %s",
                            r.prompt_tokens, PerSecond(fed, r.prompt_seconds), r.generated_tokens,
                            PerSecond(r.generated_tokens, r.generate_seconds),
                            FinishReasonName(r.reason), s.load_ms, s.isa.c_str());
  if (sampled) text += Format(", --seed %" PRIu64, s.seed);
  return text + "\n";
}

std::string Json(const Options& options, const Input& input, const TextToMemory& made,
                 const Statistics& s) {
  const GenerateResult& r = s.result;
  JsonWriter json;
  json.BeginObject();
  json.Member("model", options.model);
  json.Member("prompt", input.text);
  json.ListMember("prompt_ids", input.tokens);
  json.Member("text", made.text);
  json.ListMember("tokens", made.tokens);
  json.Member("finish_reason", FinishReasonName(r.reason));
  json.Member("prompt_tokens", r.prompt_tokens);
  json.Member("prompt_seconds", r.prompt_seconds);
  json.Member("prompt_tokens_per_second",
              PerSecond(r.prompt_tokens - r.reused_tokens, r.prompt_seconds));
  if (options.state) {
    json.Member("reused_tokens", s.reused);
    json.Member("fed_tokens", r.prompt_tokens - r.reused_tokens);
  }
  json.Member("generated_tokens", r.generated_tokens);
  json.Member("generate_seconds", r.generate_seconds);
  json.Member("generated_tokens_per_second", PerSecond(r.generated_tokens, r.generate_seconds));
  json.Member("seed", s.seed);
  json.Member("load_ms", s.load_ms);
  json.Member("kernels", s.isa);
  json.EndObject();
  return json.Text();
}

uint64_t RandomSeed() {
  std::random_device device;
  return device();  // 32 bits: short enough to type again
}

Status CheckInput(const Options& options, const Input& input, const Model& model) {
  if (!input.tokens.empty()) return {};
  if (!options.input.add_special) {
    return Status(Code::kInvalidArgument,
                  "the prompt is empty and --no-bos leaves nothing to start with");
  }
  if (model.config().bos < 0) {
    return Status(Code::kInvalidArgument,
                  "the prompt is empty and this model has no BOS to start with: give one with -p");
  }
  return {};
}

// Loads the state file, if there is one.
Status LoadState(const Options& options, Session& session) {
  if (!options.state) return {};
  const Status loaded = LoadStateFile(session, *options.state);
  return loaded.code() == Code::kNotFound ? Status() : loaded;
}

// How a text goes on that a state file may have the beginning of.
void UseState(const Options& options, const Session& session, Input* input,
              GenerateOptions* generate) {
  if (!options.state) return;
  generate->keep_open = true;
  const bool given = !input->text.empty() || options.input.ids;
  if (given || session.position() == 0) {
    generate->prompt_from_start = true;
  } else {  // no prompt: the text of the file
    input->tokens.clear();
    generate->resume = session.open_generation() != nullptr;
  }
}

Result<int> Run(const Options& options) {
  if (options.generate.max_tokens == 0 && !options.state) {
    return Status(Code::kInvalidArgument,
                  "-n: is 0, expected 1 or more, -1 for no limit, or 0 with --state only");
  }
  CatchInterrupts();
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  ADDER_ASSIGN_OR_RETURN(const auto model, Model::Open(options.model, options.model_options));
  ADDER_ASSIGN_OR_RETURN(const SessionBuffer buffer,
                         SessionBuffer::Create(*model, options.session));
  const double load_ms = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
  Session& session = buffer.session();
  ADDER_RETURN_IF_ERROR(LoadState(options, session));
  const uint64_t loaded = session.position();
  ADDER_ASSIGN_OR_RETURN(Input input, ReadInput(options.input, *model));
  GenerateOptions generate = options.generate;
  UseState(options, session, &input, &generate);
  if (loaded == 0) ADDER_RETURN_IF_ERROR(CheckInput(options, input, *model));

  if (!options.seeded) generate.sampler.seed = RandomSeed();
  TextToOutput output(model->tokenizer() != nullptr);
  TextToMemory memory;
  if (options.echo && !options.json) output.Show(input.text);
  TextSink& sink = options.json ? static_cast<TextSink&>(memory) : output;
  const Result<GenerateResult> result = [&] {
    const CancelOnInterrupt cancel(session);
    return Generate(session, input.tokens, generate, sink);
  }();
  if (result.ok() && options.state) {
    ADDER_RETURN_IF_ERROR(SaveStateFile(session, *options.state));
  }
  output.Finish();
  ADDER_RETURN_IF_ERROR(output.status());
  ADDER_RETURN_IF_ERROR(result.status());

  const uint64_t reused = generate.prompt_from_start ? result->reused_tokens : loaded;
  const Statistics statistics = {*result, load_ms, generate.sampler.seed, model->kernels().name,
                                 reused};
  if (options.state && !options.quiet) {
    Note(Format("\n%s: %" PRIu64 " tokens reused, %" PRIu64 " fed, %" PRIu64 " saved\n",
                options.state->c_str(), reused, result->prompt_tokens - result->reused_tokens,
                session.position()));
    if (loaded > 0 && reused == 0) {
      Note("The prompt does not begin with the text of the file: it was begun anew\n");
    }
  }
  if (options.json) {
    ADDER_RETURN_IF_ERROR(Print(Json(options, input, memory, statistics)));
  } else if (!options.quiet) {
    Note("\n" + Text(statistics, generate.sampler.temperature > 0));
  }
  return Interrupted() ? InterruptExitCode() : 0;
}

void AddSamplerOptions(CLI::App* command, Options* options) {
  SamplerOptions* s = &options->generate.sampler;
  s->temperature = 0.8f;
  s->top_p = 0.95f;
  const char* group = "Sampling";
  AddNumber(command, "--temp,--temperature", "X (0.8)", &s->temperature,
            "Lower is safer, higher more surprising; 0 always takes the likeliest token")
      ->group(group);
  AddNumber(command, "--top-k", "N (off)", &s->top_k, "Only the N likeliest tokens; 0: off")
      ->group(group);
  AddNumber(command, "--top-p", "X (0.95)", &s->top_p,
            "Only the likeliest tokens that together reach probability X; 1: off")
      ->group(group);
  AddNumber(command, "--min-p", "X (off)", &s->min_p,
            "Only tokens at least X times as likely as the likeliest; 0: off")
      ->group(group);
  AddNumber(command, "--repeat-penalty", "X (off)", &s->repetition_penalty,
            "Make tokens of the last text less likely by this factor; 1: off")
      ->group(group);
  AddNumber(command, "--presence-penalty", "X (off)", &s->presence_penalty,
            "Subtract X from the logits of tokens that occur in the last text; 0: off")
      ->group(group);
  AddNumber(command, "--frequency-penalty", "X (off)", &s->frequency_penalty,
            "The same, for each time that the token occurs; 0: off")
      ->group(group);
  AddNumber(command, "--penalty-window", "N (64)", &s->penalty_window,
            "How many tokens back the penalties look")
      ->group(group);
  const auto add_bias = [s](const CLI::results_t& arguments) {
    for (const std::string& argument : arguments) {
      const size_t equals = std::min(argument.find('='), argument.size());
      const std::string_view all = argument;
      if (equals == argument.size()) {
        throw CLI::ValidationError("--logit-bias", "is \"" + argument + "\", expected ID=BIAS");
      }
      constexpr Range<float> kBias = {-std::numeric_limits<float>::infinity(),
                                      std::numeric_limits<float>::max()};
      s->logit_bias.push_back({ParseNumber<int32_t>("--logit-bias", all.substr(0, equals), {0}),
                               ParseNumber<float>("--logit-bias", all.substr(equals + 1), kBias)});
    }
    return true;
  };
  command
      ->add_option("--logit-bias", add_bias,
                   "Add BIAS to the logit of token ID, -inf forbids it; may be repeated")
      ->option_text("ID=BIAS")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->group(group);
  AddNumber(command, "--seed", "N (random)", &s->seed,
            "The same seed gives the same text, on every machine")
      ->each([options](const std::string&) { options->seeded = true; })
      ->group(group);
}

}  // namespace

void AddRun(CLI::App* app, Action* action) {
  CLI::App* command = app->add_subcommand("run", "Continue a text");
  auto options = std::make_shared<Options>();
  AddText(command, "MODEL", "", &options->model, "Model file")->required();
  AddInputOptions(command, &options->input);

  const char* ending = "Length";
  GenerateOptions* generate = &options->generate;
  const auto set_length = [generate](const CLI::results_t& arguments) {
    generate->max_tokens = ParseNumber<int64_t>("-n", arguments[0], {-1});
    return true;
  };
  command
      ->add_option(
          "-n,--tokens", set_length,
          "At most N tokens; -1: until the text ends; 0, with --state: only read the prompt")
      ->option_text("N (256)")
      ->group(ending);
  const auto add_stops = [generate](const CLI::results_t& arguments) {
    generate->stops = arguments;
    return true;
  };
  command->add_option("--stop", add_stops, "End before this text would appear; may be repeated")
      ->option_text("TEXT")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->group(ending);
  command->add_flag("--ignore-eos", generate->ignore_eos, "Go on when the model ends the text")
      ->group(ending);
  AddSamplerOptions(command, options.get());

  AddNumber(command, "--tile", "N (64)", &options->session.tile,
            "Tokens of the prompt that go through a layer together; changes speed and memory only",
            {1, kMaxTile});
  AddNumber(command, "--threads", "N (1)", &options->session.threads,
            "Threads that share the work; changes speed only", {1u, kMaxThreads});
  const auto set_state = [options](const CLI::results_t& arguments) {
    if (arguments[0] == "f32" || arguments[0] == "int16" || arguments[0].empty()) {
      throw CLI::ValidationError("--state", "is \"" + arguments[0] +
                                                "\", expected a file; types of numbers are "
                                                "those of --state-type");
    }
    options->state = arguments[0];
    return true;
  };
  command
      ->add_option("--state", set_state,
                   "Go on from the state in FILE, if it exists, and save it there at the end")
      ->option_text("FILE");
  AddStateType(command, &options->session.state_type);
  AddContext(command, &options->session);
  AddKvType(command, &options->session.kv_type);
  AddIsa(command, &options->model_options.isa);
  command->add_flag("--echo", options->echo, "Print the prompt, too");
  command->add_flag("--json", options->json, "Print text, ids and statistics as JSON, at the end");
  command->add_flag("-q,--quiet", options->quiet, "No statistics");
  command->footer(
      "Examples:\n"
      "  adder run model.adder -p \"Once upon a time\" -n 100\n"
      "  adder run model.adder -f story.txt --temp 0 --stop \"The end\"\n"
      "  git log -5 | adder run model.adder -n -1 --seed 7 --json > result.json\n"
      "  adder run model.adder -f manual.txt -n 0 --state manual.state    (reads it once)\n"
      "  adder run model.adder -f manual-and-question.txt --state manual.state\n"
      "  adder run model.adder --state manual.state < /dev/null           (goes on)\n"
      "\n"
      "Text goes to standard output as it is made, statistics to standard error. Without a prompt\n"
      "the model starts a text of its own. Ctrl-C ends the text and prints the statistics.\n"
      "Models without a tokenizer take and print token ids.\n"
      "\n"
      "With --state a prompt is the whole text: of what the file already has, nothing is read\n"
      "again; if the prompt begins differently, the text begins anew. Without a prompt the text "
      "of\n"
      "the file goes on as if it had never stopped, with the same sampling options and --stop; "
      "the\n"
      "seed is the saved one. The file is replaced when all is done, also after Ctrl-C.");
  command->callback([=] { *action = [options] { return Run(*options); }; });
}

}  // namespace adder::cli
