// BOS, EOS and the chat template of a checkpoint, from its configuration files and tokenizer.
#pragma once

#include "converter/checkpoint.h"
#include "runtime/model_config.h"
#include "runtime/tokenizer.h"

namespace adder {

// Fills bos, eos and chat_template of `config`. eos is the union of config.json,
// generation_config.json and tokenizer_config.json, which often disagree. `tokenizer` may be
// nullptr.
Status ResolveSpecialTokens(const Checkpoint& checkpoint, const Tokenizer* tokenizer,
                            ModelConfig* config, std::vector<std::string>* warnings);

}  // namespace adder
