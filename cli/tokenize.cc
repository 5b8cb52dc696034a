// adder tokenize: text to token ids and back.
#include <cinttypes>
#include <memory>
#include <string>

#include "cli/commands.h"
#include "cli/input.h"
#include "cli/json_writer.h"
#include "cli/options.h"
#include "cli/output.h"
#include "runtime/model.h"

namespace adder::cli {
namespace {

struct Options {
  std::string model;
  InputOptions input;
  bool decode = false, pieces = false, json = false;
};

std::string Text(const Tokenizer& tokenizer, const std::vector<int32_t>& ids, bool pieces) {
  std::string text;
  for (const int32_t id : ids) {
    if (!text.empty() && !pieces) text += ' ';
    text += Format("%" PRId32, id);
    if (pieces) text += "\t" + Printable(tokenizer.PieceText(id)) + "\n";
  }
  return pieces ? text : text + "\n";
}

std::string Json(const Tokenizer& tokenizer, const std::vector<int32_t>& ids,
                 const std::string& text) {
  JsonWriter json;
  json.BeginObject();
  json.Member("text", text);
  json.ListMember("tokens", ids);
  json.Key("pieces");
  json.BeginArray();
  for (const int32_t id : ids) json.Value(tokenizer.PieceText(id));
  json.EndArray();
  json.EndObject();
  return json.Text();
}

Result<int> Decode(const Options& options, const Tokenizer& tokenizer) {
  std::vector<int32_t> ids;
  if (options.input.ids) {
    ADDER_ASSIGN_OR_RETURN(ids, ReadIds(*options.input.ids));
  } else {
    ADDER_ASSIGN_OR_RETURN(const std::string list, ReadText(options.input));
    ADDER_ASSIGN_OR_RETURN(ids, ParseIds(list));
  }
  ADDER_ASSIGN_OR_RETURN(std::string text, tokenizer.Decode(ids));
  if (options.json) {
    ADDER_RETURN_IF_ERROR(Print(Json(tokenizer, ids, text)));
    return 0;
  }
  if (options.pieces) {
    text = Text(tokenizer, ids, true);
  } else if (!text.ends_with('\n')) {
    text += '\n';
  }
  ADDER_RETURN_IF_ERROR(Print(text));
  return 0;
}

Result<int> Run(const Options& options) {
  ADDER_ASSIGN_OR_RETURN(const auto model, Model::Open(options.model));
  if (model->tokenizer() == nullptr) {
    return Status(Code::kInvalidArgument, options.model + ": this model has no tokenizer");
  }
  const Tokenizer& tokenizer = *model->tokenizer();
  if (options.decode) return Decode(options, tokenizer);
  if (options.input.ids) {
    return Status(Code::kInvalidArgument, "--ids are tokens already; --decode gives their text");
  }
  ADDER_ASSIGN_OR_RETURN(const Input input, ReadInput(options.input, *model));
  ADDER_RETURN_IF_ERROR(Print(options.json ? Json(tokenizer, input.tokens, input.text)
                                           : Text(tokenizer, input.tokens, options.pieces)));
  return 0;
}

}  // namespace

void AddTokenize(CLI::App* app, Action* action) {
  CLI::App* command = app->add_subcommand("tokenize", "Turn text into token ids, or ids into text");
  auto options = std::make_shared<Options>();
  AddText(command, "MODEL", "", &options->model, "Model file")->required();
  AddInputOptions(command, &options->input);
  command->add_flag("-d,--decode", options->decode, "The input is token ids; print their text");
  command->add_flag("--pieces", options->pieces, "One token per line, with its vocabulary entry");
  command->add_flag("--json", options->json, "Print text, ids and pieces as JSON");
  command->footer(
      "Examples:\n"
      "  adder tokenize model.adder -p \"Once upon a time\" --pieces\n"
      "  adder tokenize model.adder --decode --ids \"1 2 3\"\n"
      "  adder tokenize model.adder -f text.txt | wc -w        how many tokens a file has");
  command->callback([=] { *action = [options] { return Run(*options); }; });
}

}  // namespace adder::cli
