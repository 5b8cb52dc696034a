// The four components around the model of a tokenizer.json, as steps of the tokenizer section.
// Each takes the component's JSON value (an object) and adds to `parts`; a component outside the
// supported set is kUnsupported with its type.
#pragma once

#include "converter/tokenizer_fields.h"
#include "converter/tokenizer_section_writer.h"
#include "runtime/status.h"

namespace adder {

// NFC, NFD, NFKC, NFKD, Prepend, Replace, and Sequences of them.
Status AddNormalizer(const JsonValue& json, TokenizerParts* parts);

// ByteLevel, Split, Punctuation, Digits, Metaspace, and Sequences of them.
Status AddPreTokenizer(const JsonValue& json, TokenizerParts* parts);

// ByteLevel (which adds nothing), TemplateProcessing, and Sequences with one TemplateProcessing.
// Ids are checked against parts->pieces.
Status AddPostProcessor(const JsonValue& json, TokenizerParts* parts);

// ByteLevel; Metaspace; or Replace, ByteFallback, Fuse, Strip in this order, each optional.
Status SetDecoder(const JsonValue& json, TokenizerParts* parts);

}  // namespace adder
