/* Uses of the C API, right and wrong, as a C11 program sees them. api_test.cc runs it. */
#include "tests/api_test.h"

#include <adder/adder.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failures = 0;
static adder_error last; /* of the call that CHECK_STATUS made */

static void Fail(int line, const char* what) {
  printf("api_test.c:%d: %s (last error: %d \"%s\")\n", line, what, (int)last.code, last.message);
  ++failures;
}
#define CHECK(condition) \
  if (!(condition)) Fail(__LINE__, #condition)
/* `call` must report through &last. */
#define CHECK_STATUS(call, expected)                                                       \
  do {                                                                                     \
    memset(&last, 0, sizeof(last));                                                        \
    CHECK((call) == (expected));                                                           \
    CHECK((expected) == ADDER_OK || (last.code == (expected) && last.message[0] != '\0')); \
  } while (0)
#define REFUSED(call) CHECK_STATUS(call, ADDER_INVALID_ARGUMENT)
#define WORKS(call) CHECK_STATUS(call, ADDER_OK)

static void NullArguments(adder_model* model, adder_session* session) {
  const int32_t ids[1] = {1};
  adder_model* out_model = NULL;
  adder_session* out_session = NULL;
  adder_detokenizer* out_detokenizer = NULL;
  adder_detokenizer* detokenizer = NULL;
  int32_t out_ids[4];
  char text[4];
  const char* piece;
  const float* logits;
  size_t n;
  uint64_t position;
  adder_model_info info = ADDER_INIT(adder_model_info);

  REFUSED(adder_model_open(NULL, NULL, &out_model, &last));
  REFUSED(adder_model_open("x", NULL, NULL, &last));
  REFUSED(adder_model_from_memory(NULL, 0, NULL, &out_model, &last));
  REFUSED(adder_model_from_memory(ids, 4, NULL, NULL, &last));
  REFUSED(adder_model_describe(NULL, &info, &last));
  REFUSED(adder_model_describe(model, NULL, &last));
  REFUSED(adder_tokenize(NULL, "a", 1, 0, out_ids, 4, &n, &last));
  REFUSED(adder_tokenize(model, NULL, 1, 0, out_ids, 4, &n, &last));
  REFUSED(adder_tokenize(model, "a", 1, 0, NULL, 4, &n, &last));
  REFUSED(adder_tokenize(model, "a", 1, 0, out_ids, 4, NULL, &last));
  REFUSED(adder_detokenize(NULL, ids, 1, 0, text, 4, &n, &last));
  REFUSED(adder_detokenize(model, NULL, 1, 0, text, 4, &n, &last));
  REFUSED(adder_detokenize(model, ids, 1, 0, NULL, 4, &n, &last));
  REFUSED(adder_detokenize(model, ids, 1, 0, text, 4, NULL, &last));
  REFUSED(adder_detokenizer_create(NULL, 0, &out_detokenizer, &last));
  REFUSED(adder_detokenizer_create(model, 0, NULL, &last));
  WORKS(adder_detokenizer_create(model, 0, &detokenizer, &last));
  REFUSED(adder_detokenizer_push(NULL, 1, &piece, &n, &last));
  REFUSED(adder_detokenizer_push(detokenizer, 1, NULL, &n, &last));
  REFUSED(adder_detokenizer_push(detokenizer, 1, &piece, NULL, &last));
  REFUSED(adder_detokenizer_flush(NULL, &piece, &n, &last));
  REFUSED(adder_detokenizer_flush(detokenizer, NULL, &n, &last));
  REFUSED(adder_detokenizer_flush(detokenizer, &piece, NULL, &last));
  adder_detokenizer_free(detokenizer);
  REFUSED(adder_session_create(NULL, NULL, &out_session, &last));
  REFUSED(adder_session_create(model, NULL, NULL, &last));
  REFUSED(adder_session_bytes(NULL, NULL, &n, &last));
  REFUSED(adder_session_bytes(model, NULL, NULL, &last));
  REFUSED(adder_session_init(NULL, NULL, text, 4, &out_session, &last));
  REFUSED(adder_session_init(model, NULL, NULL, 4, &out_session, &last));
  REFUSED(adder_session_init(model, NULL, text, 4, NULL, &last));
  REFUSED(adder_session_reset(NULL, &last));
  REFUSED(adder_session_position(NULL, &position, &last));
  REFUSED(adder_session_position(session, NULL, &last));
  REFUSED(adder_session_feed(NULL, ids, 1, &last));
  REFUSED(adder_session_feed(session, NULL, 1, &last));
  REFUSED(adder_session_logits(NULL, &logits, &n, &last));
  REFUSED(adder_session_logits(session, NULL, &n, &last));
  REFUSED(adder_session_logits(session, &logits, NULL, &last));
  REFUSED(adder_session_generate(NULL, ids, 1, NULL, NULL, NULL, NULL, &last));
  REFUSED(adder_session_generate(session, NULL, 1, NULL, NULL, NULL, NULL, &last));
  REFUSED(adder_session_feed_from_start(NULL, ids, 1, &position, &last));
  REFUSED(adder_session_feed_from_start(session, NULL, 1, &position, &last));
  REFUSED(adder_session_state_bytes(NULL, &n, &last));
  REFUSED(adder_session_state_bytes(session, NULL, &last));
  REFUSED(adder_session_save(NULL, text, 4, &n, &last));
  REFUSED(adder_session_save(session, NULL, 4, &n, &last));
  REFUSED(adder_session_load(NULL, text, 4, &last));
  REFUSED(adder_session_load(session, NULL, 4, &last));
  REFUSED(adder_session_save_file(NULL, "x", &last));
  REFUSED(adder_session_save_file(session, NULL, &last));
  REFUSED(adder_session_load_file(NULL, "x", &last));
  REFUSED(adder_session_load_file(session, NULL, &last));
  REFUSED(adder_session_fork(NULL, session, &last));
  REFUSED(adder_session_fork(session, NULL, &last));
  REFUSED(adder_session_fork(session, session, &last));
  REFUSED(adder_session_checkpoint(NULL, &last));
  REFUSED(adder_session_rollback(NULL, 0, &last));
  REFUSED(adder_session_checkpoints(NULL, &position, 1, &n, &last));
  REFUSED(adder_session_checkpoints(session, NULL, 1, &n, &last));
  REFUSED(adder_session_checkpoints(session, &position, 1, NULL, &last));
  CHECK(adder_session_cancel(NULL) == ADDER_INVALID_ARGUMENT);
  CHECK(adder_session_free(NULL) == ADDER_OK);
  adder_model_free(NULL);
  adder_detokenizer_free(NULL);
  /* The error itself is optional. */
  CHECK(adder_model_open(NULL, NULL, NULL, NULL) == ADDER_INVALID_ARGUMENT);
  CHECK(out_model == NULL && out_session == NULL && out_detokenizer == NULL);
}

/* A struct as a later version of the library would have it. */
#define LATER(type)        \
  struct {                 \
    type now;              \
    unsigned char tail[8]; \
  }

static void StructSizes(const char* path, adder_model* model, adder_session* session) {
  const int32_t ids[1] = {1};
  adder_model* opened = NULL;
  adder_session* made = NULL;
  const size_t wrong[] = {0, 1, sizeof(size_t) - 1};
  LATER(adder_model_options) model_options = {ADDER_INIT(adder_model_options), {0}};
  LATER(adder_session_options) session_options = {ADDER_INIT(adder_session_options), {0}};
  LATER(adder_generate_options) generate_options = {ADDER_INIT(adder_generate_options), {0}};
  LATER(adder_model_info) info = {ADDER_INIT(adder_model_info), {0}};
  LATER(adder_generate_result) result = {ADDER_INIT(adder_generate_result), {0}};
  size_t i;

  for (i = 0; i < sizeof(wrong) / sizeof(wrong[0]); ++i) {
    model_options.now.struct_size = session_options.now.struct_size =
        generate_options.now.struct_size = info.now.struct_size = result.now.struct_size = wrong[i];
    REFUSED(adder_model_open(path, &model_options.now, &opened, &last));
    REFUSED(adder_session_create(model, &session_options.now, &made, &last));
    REFUSED(
        adder_session_generate(session, ids, 1, &generate_options.now, NULL, NULL, NULL, &last));
    REFUSED(adder_model_describe(model, &info.now, &last));
    REFUSED(adder_session_generate(session, ids, 1, NULL, NULL, NULL, &result.now, &last));
  }
  /* Of an earlier version: what is not there has its default. */
  model_options.now.struct_size = session_options.now.struct_size = sizeof(size_t);
  WORKS(adder_model_open(path, &model_options.now, &opened, &last));
  adder_model_free(opened);
  WORKS(adder_session_create(model, &session_options.now, &made, &last));
  CHECK(adder_session_free(made) == ADDER_OK);
  info.now.struct_size = offsetof(adder_model_info, n_layers);
  info.now.n_layers = 12345;
  WORKS(adder_model_describe(model, &info.now, &last));
  CHECK(info.now.n_layers == 12345 && info.now.family != NULL);

  /* Of a later version: fine as long as it asks for nothing new. */
  model_options.now.struct_size = sizeof(model_options);
  session_options.now.struct_size = sizeof(session_options);
  generate_options.now.struct_size = sizeof(generate_options);
  info.now.struct_size = sizeof(info);
  generate_options.now.max_tokens = 1;
  WORKS(adder_model_open(path, &model_options.now, &opened, &last));
  adder_model_free(opened);
  WORKS(adder_session_create(model, &session_options.now, &made, &last));
  CHECK(adder_session_free(made) == ADDER_OK);
  WORKS(adder_session_generate(session, ids, 1, &generate_options.now, NULL, NULL, NULL, &last));
  WORKS(adder_model_describe(model, &info.now, &last));
  CHECK(info.now.n_layers == 2 && info.now.struct_size == sizeof(info));
  model_options.tail[7] = session_options.tail[7] = generate_options.tail[7] = 1;
  opened = NULL, made = NULL;
  CHECK_STATUS(adder_model_open(path, &model_options.now, &opened, &last), ADDER_UNSUPPORTED);
  CHECK_STATUS(adder_session_create(model, &session_options.now, &made, &last), ADDER_UNSUPPORTED);
  CHECK_STATUS(
      adder_session_generate(session, ids, 1, &generate_options.now, NULL, NULL, NULL, &last),
      ADDER_UNSUPPORTED);
  CHECK(opened == NULL && made == NULL);
}

static void Sessions(adder_model* model) {
  const int32_t good[3] = {1, 2, 3};
  adder_model_info info = ADDER_INIT(adder_model_info);
  adder_session_options options = ADDER_INIT(adder_session_options);
  adder_session* session = NULL;
  adder_session* placed = NULL;
  const float* logits;
  size_t n, bytes, i;
  uint64_t position = 99;
  unsigned char* memory;
  int32_t bad[4];

  WORKS(adder_model_describe(model, &info, &last));
  WORKS(adder_session_create(model, NULL, &session, &last));
  REFUSED(adder_session_logits(session, &logits, &n, &last));
  WORKS(adder_session_feed(session, NULL, 0, &last));
  WORKS(adder_session_feed(session, good, 0, &last));
  REFUSED(adder_session_logits(session, &logits, &n, &last));
  bad[0] = -1, bad[1] = INT32_MIN, bad[2] = INT32_MAX, bad[3] = (int32_t)info.n_logits;
  for (i = 0; i < 4; ++i) {
    int32_t ids[2];
    ids[0] = 1, ids[1] = bad[i];
    REFUSED(adder_session_feed(session, ids, 2, &last));
    REFUSED(adder_session_generate(session, ids, 2, NULL, NULL, NULL, NULL, &last));
  }
  WORKS(adder_session_position(session, &position, &last));
  CHECK(position == 0);
  WORKS(adder_session_feed(session, good, 3, &last));
  WORKS(adder_session_logits(session, &logits, &n, &last));
  CHECK(n == info.n_logits && isfinite(logits[0]) && isfinite(logits[n - 1]));
  WORKS(adder_session_position(session, &position, &last));
  CHECK(position == 3);

  /* Cancelled twice ends one call. */
  CHECK(adder_session_cancel(session) == ADDER_OK);
  CHECK(adder_session_cancel(session) == ADDER_OK);
  CHECK_STATUS(adder_session_feed(session, good, 3, &last), ADDER_CANCELLED);
  WORKS(adder_session_feed(session, good, 3, &last));
  WORKS(adder_session_position(session, &position, &last));
  CHECK(position == 6);
  WORKS(adder_session_reset(session, &last));
  REFUSED(adder_session_logits(session, &logits, &n, &last));
  CHECK(adder_session_free(session) == ADDER_OK);

  options.tile = 4097;
  REFUSED(adder_session_bytes(model, &options, &bytes, &last));
  options.tile = 3;
  WORKS(adder_session_bytes(model, &options, &bytes, &last));
  memory = aligned_alloc(64, (bytes + 127) / 64 * 64);
  CHECK_STATUS(adder_session_init(model, &options, memory, bytes - 1, &placed, &last),
               ADDER_BUFFER_TOO_SMALL);
  CHECK_STATUS(adder_session_init(model, &options, memory, 0, &placed, &last),
               ADDER_BUFFER_TOO_SMALL);
  REFUSED(adder_session_init(model, &options, memory + 8, bytes, &placed, &last));
  CHECK(placed == NULL);
  WORKS(adder_session_init(model, &options, memory, bytes, &placed, &last));
  WORKS(adder_session_feed(placed, good, 3, &last));
  CHECK(adder_session_free(placed) == ADDER_OK);
  free(memory);
}

/* Whether both are where the same tokens led. */
static int SameLogits(const adder_session* a, const adder_session* b) {
  const float *x = NULL, *y = NULL;
  size_t n = 0, m = 0;
  WORKS(adder_session_logits(a, &x, &n, &last));
  WORKS(adder_session_logits(b, &y, &m, &last));
  return n > 0 && n == m && memcmp(x, y, n * sizeof(float)) == 0;
}

static void States(adder_model* model, const char* path) {
  const int32_t ids[6] = {1, 2, 3, 4, 5, 6};
  adder_session_options options = ADDER_INIT(adder_session_options);
  adder_session *a = NULL, *b = NULL;
  uint64_t position, reused = 99, marks[3] = {0, 0, 0};
  unsigned char* blob;
  size_t bytes = 0, needed = 0, n = 0;
  options.checkpoints = 4097;
  REFUSED(adder_session_create(model, &options, &a, &last));
  options.checkpoints = 2;
  WORKS(adder_session_create(model, &options, &a, &last));
  WORKS(adder_session_create(model, NULL, &b, &last));
  REFUSED(adder_session_checkpoint(b, &last)); /* was made for none */
  CHECK_STATUS(adder_session_rollback(a, 0, &last), ADDER_NOT_FOUND);

  WORKS(adder_session_feed(a, ids, 3, &last));
  WORKS(adder_session_checkpoint(a, &last));
  WORKS(adder_session_feed(a, ids + 3, 2, &last));
  WORKS(adder_session_checkpoint(a, &last));
  CHECK_STATUS(adder_session_checkpoints(a, marks, 1, &n, &last), ADDER_BUFFER_TOO_SMALL);
  CHECK(n == 2 && marks[0] == 0);
  WORKS(adder_session_checkpoints(a, marks, 3, &n, &last));
  CHECK(n == 2 && marks[0] == 3 && marks[1] == 5);
  WORKS(adder_session_rollback(a, 3, &last));
  WORKS(adder_session_feed(b, ids, 3, &last));
  CHECK(SameLogits(a, b));
  WORKS(adder_session_feed_from_start(a, ids, 6, &reused, &last));
  CHECK(reused == 3);
  WORKS(adder_session_feed_from_start(b, ids, 6, NULL, &last));
  CHECK(SameLogits(a, b));
  WORKS(adder_session_position(a, &position, &last));
  CHECK(position == 6);

  WORKS(adder_session_state_bytes(a, &needed, &last));
  blob = malloc(needed + 1);
  CHECK_STATUS(adder_session_save(a, blob, needed - 1, &bytes, &last), ADDER_BUFFER_TOO_SMALL);
  CHECK(bytes == needed);
  CHECK_STATUS(adder_session_save(a, NULL, 0, NULL, &last), ADDER_BUFFER_TOO_SMALL);
  bytes = 0;
  WORKS(adder_session_save(a, blob, needed + 1, &bytes, &last));
  CHECK(bytes == needed);
  WORKS(adder_session_reset(b, &last));
  CHECK_STATUS(adder_session_load(b, blob, bytes - 1, &last), ADDER_CORRUPT_FILE);
  CHECK_STATUS(adder_session_load(b, blob, 0, &last), ADDER_CORRUPT_FILE);
  WORKS(adder_session_load(b, blob, bytes, &last));
  CHECK(SameLogits(a, b));
  blob[bytes - 1] ^= 1;
  CHECK_STATUS(adder_session_load(b, blob, bytes, &last), ADDER_CORRUPT_FILE);
  CHECK(SameLogits(a, b));
  blob[8] = 9; /* the version */
  CHECK_STATUS(adder_session_load(b, blob, bytes, &last), ADDER_UNSUPPORTED);
  free(blob);
  CHECK_STATUS(adder_session_load_file(b, path, &last), ADDER_NOT_FOUND);
  WORKS(adder_session_save_file(a, path, &last));
  WORKS(adder_session_reset(b, &last));
  WORKS(adder_session_load_file(b, path, &last));
  CHECK(SameLogits(a, b));
  CHECK_STATUS(adder_session_save_file(a, "/no/such/folder/state", &last), ADDER_IO);
  CHECK(remove(path) == 0);
  WORKS(adder_session_reset(b, &last));
  WORKS(adder_session_fork(a, b, &last));
  CHECK(SameLogits(a, b));
  CHECK(adder_session_free(a) == ADDER_OK);
  CHECK(adder_session_free(b) == ADDER_OK);
}

static void OpenGenerations(adder_model* model) {
  const int32_t prompt[2] = {1, 2}, longer[4] = {1, 2, 3, 4};
  adder_generate_options options = ADDER_INIT(adder_generate_options);
  adder_generate_result result = ADDER_INIT(adder_generate_result);
  adder_session *a = NULL, *b = NULL;
  WORKS(adder_session_create(model, NULL, &a, &last));
  WORKS(adder_session_create(model, NULL, &b, &last));
  options.temperature = 1, options.ignore_eos = 1;
  options.max_tokens = 9;
  WORKS(adder_session_generate(a, prompt, 2, &options, NULL, NULL, &result, &last));
  options.max_tokens = 4, options.keep_open = 1;
  WORKS(adder_session_generate(b, prompt, 2, &options, NULL, NULL, &result, &last));
  options.max_tokens = 5, options.keep_open = 0, options.resume = 1;
  REFUSED(adder_session_generate(b, prompt, 2, &options, NULL, NULL, &result, &last));
  WORKS(adder_session_generate(b, NULL, 0, &options, NULL, NULL, &result, &last));
  CHECK(result.generated_tokens == 5 && SameLogits(a, b));
  REFUSED(adder_session_generate(b, NULL, 0, &options, NULL, NULL, &result, &last));
  options.resume = 0, options.prompt_from_start = 1;
  WORKS(adder_session_reset(a, &last));
  WORKS(adder_session_feed(a, prompt, 2, &last));
  WORKS(adder_session_generate(a, longer, 4, &options, NULL, NULL, &result, &last));
  CHECK(result.prompt_tokens == 4 && result.reused_tokens == 2);
  CHECK(adder_session_free(a) == ADDER_OK);
  CHECK(adder_session_free(b) == ADDER_OK);
}

static void Text(adder_model* model) {
  const char text[] = "Once upon a time";
  const int32_t unknown[3] = {-1, INT32_MAX, INT32_MIN};
  int32_t ids[32];
  char back[64];
  size_t n = 0, bytes = 0, needed, i;
  adder_detokenizer* detokenizer = NULL;
  const char* piece;

  WORKS(adder_tokenize(model, text, strlen(text), 0, ids, 32, &n, &last));
  CHECK(n > 0 && n < 16);
  needed = n;
  ids[0] = 77;
  CHECK_STATUS(adder_tokenize(model, text, strlen(text), 0, ids, n - 1, &n, &last),
               ADDER_BUFFER_TOO_SMALL);
  CHECK(n == needed && ids[0] == 77);
  CHECK_STATUS(adder_tokenize(model, text, strlen(text), 0, NULL, 0, &n, &last),
               ADDER_BUFFER_TOO_SMALL);
  WORKS(adder_tokenize(model, NULL, 0, 0, NULL, 0, &n, &last));
  CHECK(n == 0);
  REFUSED(adder_tokenize(model, text, strlen(text), 4, ids, 32, &n, &last));
  REFUSED(adder_tokenize(model, text, strlen(text), -1, ids, 32, &n, &last));
  REFUSED(adder_tokenize(model, "\xff", 1, 0, ids, 32, &n, &last));
  WORKS(adder_tokenize(model, text, strlen(text), 0, ids, 32, &n, &last));
  WORKS(adder_detokenize(model, ids, n, 0, back, sizeof(back), &bytes, &last));
  CHECK(bytes == strlen(text) && memcmp(back, text, bytes) == 0);
  CHECK_STATUS(adder_detokenize(model, ids, n, 0, back, 3, &bytes, &last), ADDER_BUFFER_TOO_SMALL);
  CHECK(bytes == strlen(text));
  WORKS(adder_detokenize(model, NULL, 0, 0, NULL, 0, &bytes, &last));
  REFUSED(adder_detokenize(model, ids, n, 1, back, sizeof(back), &bytes, &last));
  REFUSED(adder_detokenizer_create(model, 1, &detokenizer, &last));
  WORKS(adder_detokenizer_create(model, 0, &detokenizer, &last));
  for (i = 0; i < 3; ++i) {
    memset(&last, 0, sizeof(last));
    CHECK(adder_detokenize(model, &unknown[i], 1, 0, back, sizeof(back), &bytes, &last) !=
          ADDER_OK);
    CHECK(last.message[0] != '\0');
    CHECK(adder_detokenizer_push(detokenizer, unknown[i], &piece, &bytes, &last) != ADDER_OK);
  }
  needed = 0;
  for (i = 0; i < n; ++i) {
    WORKS(adder_detokenizer_push(detokenizer, ids[i], &piece, &bytes, &last));
    CHECK(needed + bytes <= strlen(text) && memcmp(text + needed, piece, bytes) == 0);
    needed += bytes;
  }
  WORKS(adder_detokenizer_flush(detokenizer, &piece, &bytes, &last));
  CHECK(needed + bytes == strlen(text));
  adder_detokenizer_free(detokenizer);
}

static void SamplingOptions(adder_session* session) {
  const int32_t prompt[2] = {1, 2};
  const char* stops[2] = {"stop", NULL};
  const adder_logit_bias outside = {INT32_MAX, 1}, not_a_number = {1, NAN};
  adder_generate_options good = ADDER_INIT(adder_generate_options);
  adder_generate_options bad[32];
  size_t n = 0, i;
  good.max_tokens = 2;
  for (i = 0; i < 32; ++i) bad[i] = good;
  bad[n++].max_tokens = -2;
  bad[n++].max_tokens = INT64_MIN;
  bad[n++].temperature = -1;
  bad[n++].temperature = NAN;
  bad[n++].temperature = INFINITY;
  bad[n++].top_k = -1;
  bad[n++].top_p = -0.5f;
  bad[n++].top_p = 1.5f;
  bad[n++].top_p = NAN;
  bad[n++].min_p = -1;
  bad[n++].min_p = NAN;
  bad[n++].repetition_penalty = -1;
  bad[n++].repetition_penalty = NAN;
  bad[n++].presence_penalty = NAN;
  bad[n++].frequency_penalty = INFINITY;
  bad[n++].penalty_window = -1;
  bad[n++].penalty_window = INT32_MAX;
  bad[n].logit_bias = &outside, bad[n++].n_logit_bias = 1;
  bad[n].logit_bias = &not_a_number, bad[n++].n_logit_bias = 1;
  bad[n++].n_logit_bias = 1;
  bad[n++].n_stops = 1;
  bad[n].stops = stops, bad[n++].n_stops = 2;
  for (i = 0; i < n; ++i) {
    if (adder_session_generate(session, prompt, 2, &bad[i], NULL, NULL, NULL, &last) !=
            ADDER_INVALID_ARGUMENT ||
        last.message[0] == '\0') {
      printf("bad[%d] ", (int)i);
      Fail(__LINE__, "bad options were taken");
    }
  }
  stops[0] = "";
  good.stops = stops, good.n_stops = 1;
  REFUSED(adder_session_generate(session, prompt, 2, &good, NULL, NULL, NULL, &last));
  stops[0] = "\xff";
  REFUSED(adder_session_generate(session, prompt, 2, &good, NULL, NULL, NULL, &last));
  good.n_stops = 0;
  good.temperature = FLT_MAX, good.top_k = INT32_MAX, good.seed = UINT64_MAX;
  WORKS(adder_session_generate(session, prompt, 2, &good, NULL, NULL, NULL, &last));
  good.temperature = FLT_MIN;
  WORKS(adder_session_generate(session, prompt, 2, &good, NULL, NULL, NULL, &last));
}

typedef struct Reentry {
  adder_session* session;
  adder_session* other;
  int calls;
  int stop_at; /* 0: never */
  int cancel_at;
} Reentry;

static int Reenter(void* user, const char* text, size_t text_bytes, int32_t token) {
  Reentry* r = user;
  const int32_t id = 1;
  const float* logits;
  size_t n;
  uint64_t position;
  adder_generate_options options = ADDER_INIT(adder_generate_options);
  (void)text, (void)text_bytes, (void)token;
  ++r->calls;
  REFUSED(adder_session_feed(r->session, &id, 1, &last));
  REFUSED(adder_session_reset(r->session, &last));
  REFUSED(adder_session_logits(r->session, &logits, &n, &last));
  REFUSED(adder_session_position(r->session, &position, &last));
  REFUSED(adder_session_state_bytes(r->session, &n, &last));
  REFUSED(adder_session_save(r->session, NULL, 0, &n, &last));
  REFUSED(adder_session_load(r->session, &id, sizeof(id), &last));
  REFUSED(adder_session_fork(r->session, r->other, &last));
  REFUSED(adder_session_fork(r->other, r->session, &last));
  REFUSED(adder_session_rollback(r->session, 0, &last));
  REFUSED(adder_session_feed_from_start(r->session, &id, 1, NULL, &last));
  REFUSED(adder_session_generate(r->session, &id, 1, NULL, NULL, NULL, NULL, &last));
  CHECK(adder_session_free(r->session) == ADDER_INVALID_ARGUMENT);
  options.max_tokens = 2;
  WORKS(adder_session_generate(r->other, &id, 1, &options, NULL, NULL, NULL, &last));
  if (r->calls == r->cancel_at) CHECK(adder_session_cancel(r->session) == ADDER_OK);
  return r->calls == r->stop_at;
}

static void Callbacks(adder_model* model) {
  const int32_t prompt[2] = {1, 2};
  adder_generate_options options = ADDER_INIT(adder_generate_options);
  adder_generate_result result = ADDER_INIT(adder_generate_result);
  Reentry r = {NULL, NULL, 0, 0, 0};
  uint64_t position;
  options.max_tokens = 5;
  options.ignore_eos = 1;
  WORKS(adder_session_create(model, NULL, &r.session, &last));
  WORKS(adder_session_create(model, NULL, &r.other, &last));
  WORKS(adder_session_generate(r.session, prompt, 2, &options, Reenter, &r, &result, &last));
  CHECK(result.reason == ADDER_FINISH_LENGTH && result.generated_tokens == 5 && r.calls >= 5);
  CHECK(result.prompt_tokens == 2);
  WORKS(adder_session_position(r.session, &position, &last));
  CHECK(position == 7);

  r.calls = 0, r.stop_at = 2;
  WORKS(adder_session_generate(r.session, NULL, 0, &options, Reenter, &r, &result, &last));
  CHECK(result.reason == ADDER_FINISH_CANCELLED && result.generated_tokens == 2);
  r.stop_at = 0, r.calls = 0, r.cancel_at = 3;
  WORKS(adder_session_generate(r.session, prompt, 2, &options, Reenter, &r, &result, &last));
  CHECK(result.reason == ADDER_FINISH_CANCELLED && result.generated_tokens == 3);
  WORKS(adder_session_position(r.session, &position, &last));
  CHECK(position == 7 + 2 + 2 + 3);
  /* At the last token: nothing of it is left for the next call. */
  r.calls = 0, r.cancel_at = 5;
  WORKS(adder_session_generate(r.session, prompt, 2, &options, Reenter, &r, &result, &last));
  CHECK(result.reason == ADDER_FINISH_CANCELLED && result.generated_tokens == 5);
  WORKS(adder_session_feed(r.session, prompt, 2, &last));
  /* Before. */
  CHECK(adder_session_cancel(r.session) == ADDER_OK);
  WORKS(adder_session_generate(r.session, prompt, 2, &options, NULL, NULL, &result, &last));
  CHECK(result.reason == ADDER_FINISH_CANCELLED && result.generated_tokens == 0);
  CHECK(adder_session_free(r.session) == ADDER_OK);
  CHECK(adder_session_free(r.other) == ADDER_OK);
}

static void LifeTimes(const char* path) {
  const int32_t id = 1;
  adder_model* model = NULL;
  adder_session* session = NULL;
  adder_detokenizer* detokenizer = NULL;
  const char* piece;
  size_t n;
  WORKS(adder_model_open(path, NULL, &model, &last));
  WORKS(adder_session_create(model, NULL, &session, &last));
  WORKS(adder_detokenizer_create(model, 0, &detokenizer, &last));
  adder_model_free(model);
  WORKS(adder_session_feed(session, &id, 1, &last));
  CHECK(adder_session_free(session) == ADDER_OK);
  WORKS(adder_detokenizer_push(detokenizer, 5, &piece, &n, &last));
  adder_detokenizer_free(detokenizer);
}

static void WithoutTokenizer(const char* path) {
  const int32_t prompt[2] = {1, 2};
  adder_model* model = NULL;
  adder_session* session = NULL;
  adder_detokenizer* detokenizer = NULL;
  adder_model_info info = ADDER_INIT(adder_model_info);
  adder_generate_options options = ADDER_INIT(adder_generate_options);
  adder_generate_result result = ADDER_INIT(adder_generate_result);
  int32_t ids[4];
  size_t n;
  options.max_tokens = 3;
  WORKS(adder_model_open(path, NULL, &model, &last));
  WORKS(adder_model_describe(model, &info, &last));
  CHECK(!info.has_tokenizer && info.chat_template == NULL);
  CHECK_STATUS(adder_tokenize(model, "a", 1, 0, ids, 4, &n, &last), ADDER_NOT_FOUND);
  CHECK_STATUS(adder_detokenize(model, prompt, 2, 0, NULL, 0, &n, &last), ADDER_NOT_FOUND);
  CHECK_STATUS(adder_detokenizer_create(model, 0, &detokenizer, &last), ADDER_NOT_FOUND);
  WORKS(adder_session_create(model, NULL, &session, &last));
  WORKS(adder_session_generate(session, prompt, 2, &options, NULL, NULL, &result, &last));
  CHECK(result.generated_tokens == 3 || result.reason == ADDER_FINISH_EOS);
  CHECK(adder_session_free(session) == ADDER_OK);
  adder_model_free(model);
}

int adder_c_api_failures(const char* text_model, const char* id_model, const char* state_file) {
  adder_model* model = NULL;
  adder_session* session = NULL;
  int i;
  CHECK(strcmp(adder_status_name(ADDER_BUFFER_TOO_SMALL), "buffer_too_small") == 0);
  CHECK(strcmp(adder_status_name(ADDER_CONTEXT_LOST), "context_lost") == 0);
  CHECK(ADDER_OTHER_MODEL == 11 && ADDER_OTHER_TYPE == 12 && ADDER_CONTEXT_LOST == 13);
  CHECK(strcmp(adder_status_name(1234), "unknown") == 0);
  CHECK(adder_version_string()[0] != '\0');
  WORKS(adder_model_open(text_model, NULL, &model, &last));
  if (model == NULL) return failures;
  WORKS(adder_session_create(model, NULL, &session, &last));
  NullArguments(model, session);
  StructSizes(text_model, model, session);
  SamplingOptions(session);
  CHECK(adder_session_free(session) == ADDER_OK);
  Sessions(model);
  States(model, state_file);
  OpenGenerations(model);
  Text(model);
  Callbacks(model);
  for (i = 0; i < 3; ++i) LifeTimes(text_model);
  WithoutTokenizer(id_model);
  adder_model_free(model);
  return failures;
}
