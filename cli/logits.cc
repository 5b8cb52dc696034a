// adder logits: the model's output for every token of an input, for anyone's own comparison.
#include <algorithm>
#include <memory>
#include <string>

#include "cli/commands.h"
#include "cli/input.h"
#include "cli/interrupt.h"
#include "cli/npy_writer.h"
#include "cli/options.h"
#include "cli/output.h"
#include "runtime/model.h"
#include "runtime/session_buffer.h"

namespace adder::cli {
namespace {

struct Options {
  std::string model, output;
  InputOptions input;
  ModelOptions model_options;
  SessionOptions session;
  uint64_t split = 0;  // 0: all tokens in one call
};

class LogitsToFile final : public FeedObserver {
 public:
  LogitsToFile(Session* session, NpyWriter* writer) : session_(session), writer_(writer) {}

  void OnLogits(size_t, std::span<const float> logits) override {
    if (!status_.ok()) return;
    status_ = writer_->Append(logits);
    if (!status_.ok()) session_->Cancel();
  }
  const Status& status() const { return status_; }

 private:
  Session* session_;
  NpyWriter* writer_;
  Status status_;
};

Result<int> Run(const Options& options) {
  CatchInterrupts();
  ADDER_ASSIGN_OR_RETURN(const auto model, Model::Open(options.model, options.model_options));
  ADDER_ASSIGN_OR_RETURN(const Input input, ReadInput(options.input, *model));
  const std::span<const int32_t> tokens = input.tokens;
  if (tokens.empty()) {
    return Status(Code::kInvalidArgument, "there are no tokens: give some with --ids or -p");
  }
  ADDER_ASSIGN_OR_RETURN(const SessionBuffer buffer,
                         SessionBuffer::Create(*model, options.session));
  ADDER_ASSIGN_OR_RETURN(NpyWriter writer, NpyWriter::Create(options.output, tokens.size(),
                                                             model->config().vocab_rows));
  Session& session = buffer.session();
  const CancelOnInterrupt cancel(session);
  LogitsToFile observer(&session, &writer);
  const size_t chunk = options.split == 0 ? tokens.size() : options.split;
  for (size_t done = 0; done < tokens.size();) {
    const size_t count = std::min(chunk, tokens.size() - done);
    const Status fed = session.Feed(tokens.subspan(done, count), &observer);
    ADDER_RETURN_IF_ERROR(observer.status());
    ADDER_RETURN_IF_ERROR(fed);
    done += count;
  }
  ADDER_RETURN_IF_ERROR(writer.Finish());
  Note(Format("%s: float32 [%zu, %u]\n", Printable(options.output).c_str(), tokens.size(),
              model->config().vocab_rows));
  return 0;
}

}  // namespace

void AddLogits(CLI::App* app, Action* action) {
  CLI::App* command = app->add_subcommand("logits", "Write the logits of an input as a NumPy file");
  auto options = std::make_shared<Options>();
  AddText(command, "MODEL", "", &options->model, "Model file")->required();
  AddText(command, "-o,--out", "FILE (required)", &options->output,
          "NumPy file to make: float32 [tokens, vocab_rows], row i behind token i")
      ->required();
  AddNumber(command, "--split", "N", &options->split,
            "Feed N tokens at a time; the logits do not change by a bit", Range<uint64_t>{1});
  AddNumber(command, "--tile", "N (64)", &options->session.tile,
            "Tokens that go through a layer together; changes speed and memory only",
            {1, kMaxTile});
  AddStateType(command, &options->session.state_type);
  AddContext(command, &options->session);
  AddKvType(command, &options->session.kv_type);
  AddIsa(command, &options->model_options.isa);
  AddInputOptions(command, &options->input);
  command->footer(
      "Examples:\n"
      "  adder logits model.adder --ids \"1 2 3\" --out logits.npy\n"
      "  adder logits model.adder -f text.txt --out logits.npy --split 1\n"
      "  python3 -c 'import numpy; print(numpy.load(\"logits.npy\").argmax(1))'");
  command->callback([=] { *action = [options] { return Run(*options); }; });
}

}  // namespace adder::cli
