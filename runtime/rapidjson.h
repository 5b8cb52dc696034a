// RapidJSON as the project uses it.
//
// RapidJSON 1.1 adds an offset to the null pointer of its empty stack before it allocates:
// harmless, but undefined, and clang's sanitizer stops there. Nobody may use
// kParseFullPrecisionFlag on untrusted text: it reads outside its table of powers on long numbers.
#pragma once

// Standard headers that RapidJSON includes come first, so that the attribute does not reach them.
#include <algorithm>
#include <istream>
#include <limits>
#include <new>
#include <string>
#include <utility>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((no_sanitize("pointer-overflow"))), apply_to = function)
#endif
#include <rapidjson/document.h>
#include <rapidjson/error/en.h>
#include <rapidjson/memorystream.h>
#include <rapidjson/prettywriter.h>
#include <rapidjson/reader.h>
#include <rapidjson/stringbuffer.h>
#include <rapidjson/writer.h>
#if defined(__clang__)
#pragma clang attribute pop
#endif
