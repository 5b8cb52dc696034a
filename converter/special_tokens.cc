#include "converter/special_tokens.h"

#include <algorithm>

namespace adder {
namespace {

// A token of tokenizer_config.json is a string or {"content": string}. Empty: none.
std::string TokenText(const std::optional<Config>& config, std::string_view key) {
  const Json* token = config ? config->Find({key}) : nullptr;
  if (token != nullptr && token->is_object()) token = token->Find("content");
  return token != nullptr && token->is_string() ? token->AsString() : "";
}

Result<std::string> ChatTemplate(const Checkpoint& checkpoint) {
  if (checkpoint.chat_template()) return *checkpoint.chat_template();
  const Json* value = checkpoint.tokenizer_config()
                          ? checkpoint.tokenizer_config()->Find({"chat_template"})
                          : nullptr;
  if (value == nullptr) return std::string();
  if (value->is_string()) return value->AsString();
  // A list of {"name", "template"}: take the one called default.
  for (const Json& entry : value->items()) {
    const Json* name = entry.Find("name");
    const Json* text = entry.Find("template");
    if (name != nullptr && text != nullptr && name->is_string() && text->is_string() &&
        name->AsString() == "default") {
      return text->AsString();
    }
  }
  return Error(Code::kCorruptFile,
               "%s: chat_template is neither a string nor a list with a \"default\" template",
               checkpoint.tokenizer_config()->name().c_str());
}

}  // namespace

Status ResolveSpecialTokens(const Checkpoint& checkpoint, const Tokenizer* tokenizer,
                            ModelConfig* config, std::vector<std::string>* warnings) {
  std::vector<int64_t> bos, eos;
  const auto add = [](const std::vector<int64_t>& from, std::vector<int64_t>* to) {
    to->insert(to->end(), from.begin(), from.end());
  };
  for (const auto* file : {&checkpoint.config(), &checkpoint.generation_config()}) {
    if (!*file) continue;
    ADDER_ASSIGN_OR_RETURN(const auto file_bos, (*file)->IntList({"bos_token_id"}));
    ADDER_ASSIGN_OR_RETURN(const auto file_eos, (*file)->IntList({"eos_token_id"}));
    add(file_bos, &bos);
    add(file_eos, &eos);
  }
  const auto add_by_text = [&](std::string_view key, std::vector<int64_t>* to) {
    const std::string text = TokenText(checkpoint.tokenizer_config(), key);
    if (text.empty() || tokenizer == nullptr) return;
    const int32_t id = tokenizer->FindPiece(text);
    if (id >= 0) {
      to->push_back(id);
    } else {
      warnings->push_back(std::string(key) + " \"" + text + "\" is not in the vocabulary");
    }
  };
  add_by_text("bos_token", &bos);
  add_by_text("eos_token", &eos);

  const auto valid = [&](int64_t id) {
    return id >= 0 && id < static_cast<int64_t>(config->vocab_size);
  };
  for (const int64_t id : eos) {
    if (!valid(id)) {
      warnings->push_back("eos token id " + std::to_string(id) + " is outside the vocabulary of " +
                          std::to_string(config->vocab_size));
    } else {
      config->eos.push_back(static_cast<int32_t>(id));
    }
  }
  std::sort(config->eos.begin(), config->eos.end());
  config->eos.erase(std::unique(config->eos.begin(), config->eos.end()), config->eos.end());
  if (!bos.empty() && valid(bos.front())) config->bos = static_cast<int32_t>(bos.front());
  ADDER_ASSIGN_OR_RETURN(config->chat_template, ChatTemplate(checkpoint));
  return {};
}

}  // namespace adder
