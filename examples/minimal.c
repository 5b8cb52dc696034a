/* Streams a story: minimal MODEL [PROMPT]. cc minimal.c -ladder */
#include <adder/adder.h>
#include <stdio.h>
#include <string.h>

static int show(void* user, const char* text, size_t text_bytes, int32_t token) {
  (void)user, (void)token;
  fwrite(text, 1, text_bytes, stdout);
  fflush(stdout);
  return 0; /* go on */
}

static int fail(const adder_error* error) {
  fprintf(stderr, "%s: %s\n", adder_status_name((int)error->code), error->message);
  return 1;
}

int main(int argc, char** argv) {
  const char* prompt = argc > 2 ? argv[2] : "Once upon a time";
  adder_model* model;
  adder_session* session;
  adder_error error;
  int32_t ids[512];
  size_t n_ids;
  if (argc < 2) return fprintf(stderr, "usage: minimal MODEL [PROMPT]\n"), 2;
  if (adder_model_open(argv[1], NULL, &model, &error)) return fail(&error);
  if (adder_session_create(model, NULL, &session, &error)) return fail(&error);
  if (adder_tokenize(model, prompt, strlen(prompt), ADDER_ADD_SPECIAL, ids, 512, &n_ids, &error)) {
    return fail(&error);
  }
  adder_generate_options options = ADDER_INIT(adder_generate_options);
  options.temperature = 0.8f;
  options.max_tokens = 200;
  adder_generate_result result = ADDER_INIT(adder_generate_result);
  if (adder_session_generate(session, ids, n_ids, &options, show, NULL, &result, &error)) {
    return fail(&error);
  }
  printf("\n%.1f tokens/s\n", (double)result.generated_tokens / result.generate_seconds);
  adder_session_free(session);
  adder_model_free(model);
  return 0;
}
