// adder bench: how fast a model runs here, against the limit of this machine's memory.
#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "cli/bandwidth.h"
#include "cli/commands.h"
#include "cli/json_writer.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/peaks.h"
#include "runtime/model.h"
#include "runtime/session_buffer.h"

namespace adder::cli {
namespace {

struct Options {
  std::string model, isa;
  uint32_t prompt = 512, tokens = 64, repeats = 5, endurance = 0;
  SessionOptions session;
  bool bandwidth = false, profile = false, json = false;
};

double Seconds(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Repeated measurements of one thing.
class Samples {
 public:
  // Room for `count`, touched, so that adding takes no memory.
  void Reserve(size_t count) {
    values_.assign(count, 0);
    values_.clear();
  }
  void Add(double value) { values_.push_back(value); }
  double Median() const { return Sorted(0.5); }
  double Min() const { return Sorted(0); }
  double Max() const { return Sorted(1); }

 private:
  double Sorted(double part) const {
    if (values_.empty()) return 0;
    std::vector<double> values = values_;
    const auto nth =
        values.begin() + static_cast<std::ptrdiff_t>(part * static_cast<double>(values.size() - 1));
    std::nth_element(values.begin(), nth, values.end());
    return *nth;
  }
  std::vector<double> values_;
};

// Ids that are the same on every machine.
std::vector<int32_t> Prompt(const Model& model, size_t n) {
  std::vector<int32_t> ids(n);
  for (size_t i = 0; i < n; ++i) {
    ids[i] = static_cast<int32_t>((i * 7919 + 13) % model.config().vocab_size);
  }
  return ids;
}

// Anonymous memory of this process, MB; the pages of mapped files are not among it. 0: unknown.
double ResidentMegabytes() {
  std::ifstream status("/proc/self/status");
  std::string key;
  while (status >> key) {
    if (key == "RssAnon:") {
      double kilobytes = 0;
      status >> kilobytes;
      return kilobytes * 1024 / 1e6;
    }
  }
  return 0;
}

// Bytes that one token behind the prompt reads and writes: its weights once, the state twice, and
// keys and values of as many tokens as it sees halfway through.
uint64_t KvBytesPerToken(const Model& model, const Options& options) {
  return model.KvBytesPerToken(options.session.kv_type);
}

uint64_t BytesPerToken(const Model& model, const Options& options) {
  const uint64_t seen = std::min(options.session.context, options.prompt + options.tokens / 2 + 1);
  return model.BytesPerToken() + 2 * model.StateFloats(options.session.state_type) * sizeof(float) +
         seen * KvBytesPerToken(model, options);
}

struct Measured {
  Samples open_ms, prefill, decode, read_gb_s, fraction;
  double resident_mb = 0, session_mb = 0;
  size_t threads = 1;
  Telemetry prefill_profile, decode_profile;
  double prefill_seconds = 0, decode_seconds = 0;  // of all repeats together
  double int8_peak = 0, float_peak = 0;            // Gmultiply-adds/s of one core; 0: unknown
  double context_ms = 0;  // that 1,000 tokens of context add to a token; models with attention only
};

Result<double> FeedTimed(Session& session, std::span<const int32_t> ids) {
  const auto start = std::chrono::steady_clock::now();
  ADDER_RETURN_IF_ERROR(session.Feed(ids));
  return Seconds(start);
}

// The shortest time of a token behind `position` tokens that were fed.
Result<double> ShortestToken(Session& session) {
  double shortest = 1e9;
  for (int32_t token = 1; token <= 16; ++token) {
    ADDER_ASSIGN_OR_RETURN(const double seconds, FeedTimed(session, {&token, 1}));
    shortest = std::min(shortest, seconds);
  }
  return shortest;
}

// What 1,000 more tokens of context cost each token, milliseconds.
Result<double> ContextCost(const Model& model, Session& session) {
  session.Reset();
  ADDER_ASSIGN_OR_RETURN(const double before, ShortestToken(session));
  ADDER_RETURN_IF_ERROR(session.Feed(Prompt(model, 984)));
  ADDER_ASSIGN_OR_RETURN(const double after, ShortestToken(session));
  return (after - before) * 1e3;
}

Result<Measured> Measure(const Options& options, const Model& model) {
  Measured m;
  ADDER_ASSIGN_OR_RETURN(const SessionBuffer buffer, SessionBuffer::Create(model, options.session));
  Session& session = buffer.session();
  m.threads = session.threads();
  ADDER_ASSIGN_OR_RETURN(const size_t session_bytes, Session::Bytes(model, options.session));
  m.session_mb = static_cast<double>(session_bytes) / 1e6;
  const std::vector<int32_t> prompt = Prompt(model, options.prompt);
  const std::vector<int32_t> tokens = Prompt(model, options.tokens);
  // Once unmeasured: brings the file's pages into memory, and the processor to speed.
  ADDER_RETURN_IF_ERROR(session.Feed(std::span(tokens).first(std::min<size_t>(tokens.size(), 4))));
  m.resident_mb = ResidentMegabytes();  // before the region below is there
  if (options.profile) {
    m.int8_peak = MeasurePeak(model.kernels().name, /*int8=*/true);
    m.float_peak = MeasurePeak(model.kernels().name, /*int8=*/false);
  }
  if (KvBytesPerToken(model, options) > 0 && options.session.context >= 1016) {
    ADDER_ASSIGN_OR_RETURN(m.context_ms, ContextCost(model, session));
  }
  const ReadBandwidth region;
  double before = region.Measure(m.threads);
  for (uint32_t repeat = 0; repeat < options.repeats; ++repeat) {
    session.Reset();
    if (options.profile) session.SetTelemetry(&m.prefill_profile);
    ADDER_ASSIGN_OR_RETURN(const double prefill, FeedTimed(session, prompt));
    if (options.profile) session.SetTelemetry(&m.decode_profile);
    double decode = 0;
    for (const int32_t& token : tokens) {
      ADDER_ASSIGN_OR_RETURN(const double seconds, FeedTimed(session, {&token, 1}));
      decode += seconds;
    }
    session.SetTelemetry(nullptr);
    m.prefill_seconds += prefill;
    m.decode_seconds += decode;
    const double after = region.Measure(m.threads);
    const double bandwidth = (before + after) / 2;
    before = after;
    const double tokens_per_s = static_cast<double>(tokens.size()) / decode;
    m.read_gb_s.Add(bandwidth);
    m.prefill.Add(static_cast<double>(prompt.size()) / prefill);
    m.decode.Add(tokens_per_s);
    m.fraction.Add(static_cast<double>(BytesPerToken(model, options)) * tokens_per_s / 1e9 /
                   bandwidth);
  }
  return m;
}

// How the last tokens of a long stream compare with the first.
Result<std::string> Endurance(const Options& options, const Model& model) {
  ADDER_ASSIGN_OR_RETURN(const SessionBuffer buffer, SessionBuffer::Create(model, options.session));
  Session& session = buffer.session();
  const std::vector<int32_t> ids = Prompt(model, 1009);
  const size_t part = std::max<size_t>(options.endurance / 100, 1);
  ADDER_RETURN_IF_ERROR(session.Feed(std::span(ids).first(std::min<size_t>(ids.size(), 64))));
  session.Reset();
  Samples first, last;
  first.Reserve(part);
  last.Reserve(part);
  double resident_first = 0;
  for (size_t i = 0; i < options.endurance; ++i) {
    ADDER_ASSIGN_OR_RETURN(const double seconds, FeedTimed(session, {&ids[i % ids.size()], 1}));
    if (i < part) first.Add(seconds * 1e6);
    if (i + part >= options.endurance) last.Add(seconds * 1e6);
    if (i + 1 == part) resident_first = ResidentMegabytes();
  }
  const double resident_last = ResidentMegabytes();
  if (options.json) {
    JsonWriter json;
    json.BeginObject();
    json.Member("tokens", options.endurance);
    json.Member("first_us", first.Median());
    json.Member("last_us", last.Median());
    json.Member("first_resident_mb", resident_first);
    json.Member("last_resident_mb", resident_last);
    json.EndObject();
    return json.Text();
  }
  return Format(
      "first %zu tokens  %9.2f us each (median)  resident %.2f MB\n"
      "last %zu of %u  %9.2f us each (median)  resident %.2f MB\n"
      "ratio %.3f\n",
      part, first.Median(), resident_first, part, options.endurance, last.Median(), resident_last,
      last.Median() / first.Median());
}

Status MeasureOpening(const Options& options, const ModelOptions& model_options, Samples* open_ms) {
  for (uint32_t repeat = 0; repeat < std::max(options.repeats, 5u); ++repeat) {
    const auto start = std::chrono::steady_clock::now();
    ADDER_ASSIGN_OR_RETURN(const auto model, Model::Open(options.model, model_options));
    open_ms->Add(Seconds(start) * 1e3);
  }
  return {};
}

bool IsInt8(Op op) { return op == Op::kMatmulQ8 || op == Op::kMatmulQ4; }
bool IsFloat(Op op) { return op == Op::kMatmulF16 || op == Op::kMatmulF32; }

// One line per operation: its share of the time, what it read and how much of the read bandwidth
// that is, what it computed and how much of the peak.
std::string ProfileText(const char* title, const Telemetry& profile, double seconds,
                        const Measured& m) {
  std::string text = Format("\n%s\n  %-12s %7s %10s %10s %10s %10s\n", title, "operation", "share",
                            "GB/s", "of read", "GOP/s", "of peak");
  double accounted = 0;
  for (size_t i = 0; i < kOps; ++i) {
    const OpTotals& op = profile.ops[i];
    if (op.nanoseconds == 0) continue;
    const double nanoseconds = static_cast<double>(op.nanoseconds);
    accounted += nanoseconds * 1e-9;
    const double gb_s = static_cast<double>(op.bytes) / nanoseconds;
    const double gop_s = static_cast<double>(op.operations) / nanoseconds;
    text +=
        Format("  %-12s %6.1f%% %10.1f %9.0f%% %10.1f", kOpNames[i],
               100 * nanoseconds * 1e-9 / seconds, gb_s, 100 * gb_s / m.read_gb_s.Median(), gop_s);
    const double peak = IsInt8(Op{i}) ? m.int8_peak : IsFloat(Op{i}) ? m.float_peak : 0;
    if (peak > 0) text += Format(" %9.0f%%", 100 * gop_s / (2 * peak));
    text += "\n";
  }
  return text + Format("  %-12s %6.1f%%\n", "together", 100 * accounted / seconds);
}

void ProfileJson(const char* key, const Telemetry& profile, JsonWriter* json) {
  json->Key(key);
  json->BeginObject();
  for (size_t i = 0; i < kOps; ++i) {
    const OpTotals& op = profile.ops[i];
    if (op.calls == 0) continue;
    json->Key(kOpNames[i]);
    json->BeginObject();
    json->Member("calls", op.calls);
    json->Member("seconds", static_cast<double>(op.nanoseconds) * 1e-9);
    json->Member("bytes", op.bytes);
    json->Member("operations", op.operations);
    json->EndObject();
  }
  json->EndObject();
}

std::string Line(const char* name, const Samples& samples, const char* unit) {
  return Format("%-15s %9.1f %s  (%.1f to %.1f)\n", name, samples.Median(), unit, samples.Min(),
                samples.Max());
}

std::string Report(const Options& options, const Model& model, const Measured& m) {
  if (!options.json) {
    std::string text = Line("decode", m.decode, "tok/s") + Line("prefill", m.prefill, "tok/s");
    text += Format("%-15s %9.1f MB: weights%s and twice the state\n", "bytes/token",
                   static_cast<double>(BytesPerToken(model, options)) / 1e6,
                   KvBytesPerToken(model, options) > 0 ? ", keys, values" : "");
    text += Line("read bandwidth", m.read_gb_s, "GB/s");
    text += Format("%-15s %9.0f %%  of it (%.0f to %.0f)\n", "decode uses",
                   100 * m.fraction.Median(), 100 * m.fraction.Min(), 100 * m.fraction.Max());
    if (KvBytesPerToken(model, options) > 0) {
      text +=
          Format("%-15s %9.3f ms more per token for 1,000 tokens of it, %.1f MB\n", "context",
                 m.context_ms, static_cast<double>(KvBytesPerToken(model, options)) * 1000 / 1e6);
    }
    text += Line("open", m.open_ms, "ms");
    text += Format("%-15s %9.1f MB beside the file's pages, %.1f MB of it the session\n",
                   "resident", m.resident_mb, m.session_mb);
    text += Format(
        "kernels %s, %zu thread%s, prompt %u, %u tokens, medians of %u (lowest to highest)\n",
        model.kernels().name, m.threads, m.threads == 1 ? "" : "s", options.prompt, options.tokens,
        options.repeats);
    if (options.profile) {
      text += Format("peak of one core %.0f (int8) and %.0f (f32) GOP/s\n", 2 * m.int8_peak,
                     2 * m.float_peak);
      text += ProfileText("decode", m.decode_profile, m.decode_seconds, m);
      text += ProfileText("prefill", m.prefill_profile, m.prefill_seconds, m);
    }
    return text;
  }
  JsonWriter json;
  json.BeginObject();
  json.Member("model", options.model);
  json.Member("isa", model.kernels().name);
  json.Member("threads", m.threads);
  json.Member("decode_tokens_per_s", m.decode.Median());
  json.Member("decode_tokens_per_s_min", m.decode.Min());
  json.Member("decode_tokens_per_s_max", m.decode.Max());
  json.Member("prefill_tokens_per_s", m.prefill.Median());
  json.Member("prefill_tokens_per_s_min", m.prefill.Min());
  json.Member("prefill_tokens_per_s_max", m.prefill.Max());
  json.Member("bytes_per_token", BytesPerToken(model, options));
  json.Member("read_bandwidth_gb_s", m.read_gb_s.Median());
  json.Member("bandwidth_fraction", m.fraction.Median());
  json.Member("context_ms_per_1000", m.context_ms);
  json.Member("kv_bytes_per_token", KvBytesPerToken(model, options));
  json.Member("open_ms", m.open_ms.Median());
  json.Member("resident_mb", m.resident_mb);
  json.Member("session_mb", m.session_mb);
  if (options.profile) {
    json.Member("peak_int8_gop_s", 2 * m.int8_peak);
    json.Member("peak_f32_gop_s", 2 * m.float_peak);
    json.Member("decode_seconds", m.decode_seconds);
    json.Member("prefill_seconds", m.prefill_seconds);
    ProfileJson("decode_profile", m.decode_profile, &json);
    ProfileJson("prefill_profile", m.prefill_profile, &json);
  }
  json.EndObject();
  return json.Text();
}

Result<int> Run(const Options& options) {
  if (options.bandwidth && options.model.empty()) {
    const double gb_s = ReadBandwidth().Measure(options.session.threads);
    JsonWriter json;
    json.BeginObject();
    json.Member("read_bandwidth_gb_s", gb_s);
    json.EndObject();
    ADDER_RETURN_IF_ERROR(
        Print(options.json ? json.Text() : Format("read bandwidth %9.1f GB/s\n", gb_s)));
    return 0;
  }
  if (options.model.empty()) return Status(Code::kInvalidArgument, "bench needs a MODEL");
  const ModelOptions model_options = {.isa = options.isa};
  Samples open_ms;
  ADDER_RETURN_IF_ERROR(MeasureOpening(options, model_options, &open_ms));
  ADDER_ASSIGN_OR_RETURN(const auto model, Model::Open(options.model, model_options));
  if (options.endurance > 0) {
    ADDER_ASSIGN_OR_RETURN(const std::string text, Endurance(options, *model));
    ADDER_RETURN_IF_ERROR(Print(text));
    return 0;
  }
  ADDER_ASSIGN_OR_RETURN(Measured measured, Measure(options, *model));
  measured.open_ms = open_ms;
  ADDER_RETURN_IF_ERROR(Print(Report(options, *model, measured)));
  return 0;
}

}  // namespace

void AddBench(CLI::App* app, Action* action) {
  CLI::App* command = app->add_subcommand("bench", "Measure how fast a model runs here");
  auto options = std::make_shared<Options>();
  AddText(command, "MODEL", "", &options->model, "Model file");
  AddNumber(command, "--prompt", "N (512)", &options->prompt, "Tokens of the prompt",
            {1u, 1u << 20});
  AddNumber(command, "-n,--tokens", "N (64)", &options->tokens, "Tokens behind it, one by one",
            {1u, 1u << 20});
  AddNumber(command, "--repeats", "N (5)", &options->repeats, "Times that all is measured",
            {1u, 1000u});
  AddNumber(command, "--endurance", "N", &options->endurance,
            "Instead: feed N tokens one by one, and compare the last with the first",
            {2u, 1u << 30});
  AddNumber(command, "--threads", "N (1)", &options->session.threads, "Threads of the session",
            {1u, kMaxThreads});
  AddNumber(command, "--tile", "N (64)", &options->session.tile,
            "Tokens of the prompt that go through a layer together", {1u, kMaxTile});
  options->session.when_full = ContextPolicy::kSlide;  // any context will do
  AddContext(command, &options->session);
  AddKvType(command, &options->session.kv_type);
  AddStateType(command, &options->session.state_type);
  AddIsa(command, &options->isa);
  command->add_flag("--bandwidth", options->bandwidth,
                    "Without MODEL: measure the read bandwidth only");
  command->add_flag("--profile", options->profile, "Also what each operation takes");
  command->add_flag("--json", options->json, "Print the result as JSON");
  command->footer(
      "Examples:\n"
      "  taskset -c 0 adder bench model.adder\n"
      "  adder synth --like mamba-2.8b --type q4 -o m.adder && adder bench m.adder --profile\n"
      "\n"
      "Decoding reads every weight once per token, so its limit is the read bandwidth. That is\n"
      "measured before and after each repeat (1 GiB, the better of a plain and a four-stream\n"
      "loop). The model is warm: opened and run once before. --profile times the calling thread;\n"
      "\"of peak\" compares with the multiply-add instructions of one core, measured.");
  command->callback([=] { *action = [options] { return Run(*options); }; });
}

}  // namespace adder::cli
