/* Adder: an edge CPU runtime for quantized Mamba models. C API.
 *
 * Objects. A model is a file opened for reading: constant, shared by any number of sessions and
 * threads. A session is one stream of tokens: its memory has a fixed size. What adder_..._open,
 * _create and _init give must be freed with the matching _free, in any order: a model lives on
 * until the last session and detokenizer made from it is freed.
 *
 * Threads. A session, and a detokenizer, is used by one thread at a time; a call into one that is
 * already in a call (from another thread, or from its own callback) is refused with
 * ADDER_INVALID_ARGUMENT. Only adder_session_cancel may be called at any time.
 *
 * Errors. Functions that can fail return adder_status and describe what went wrong in the caller's
 * adder_error (may be NULL). After a failure outputs are unchanged unless said otherwise. NULL for
 * a required argument is ADDER_INVALID_ARGUMENT. The library never prints, exits or aborts.
 *
 * Options and results are structs whose first member is struct_size: set it to sizeof the struct
 * and everything else to zero (ADDER_INIT does), then set what should differ. Zero means the
 * default. NULL options are all defaults.
 *
 * Environment: ADDER_ISA names the kernels that models use when their options name none.
 */
#ifndef ADDER_ADDER_H_
#define ADDER_ADDER_H_

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define ADDER_API __attribute__((visibility("default")))
#else
#define ADDER_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* adder_session_options options = ADDER_INIT(adder_session_options); */
#ifdef __cplusplus
#define ADDER_INIT(type)              \
  ([] {                               \
    type value = {};                  \
    value.struct_size = sizeof(type); \
    return value;                     \
  }())
#else
#define ADDER_INIT(type) ((type){.struct_size = sizeof(type)})
#endif

/* Values are pinned for ever. */
typedef enum adder_status {
  ADDER_OK = 0,
  ADDER_INVALID_ARGUMENT = 1, /* the caller's mistake */
  ADDER_NOT_FOUND = 2,        /* no such file, tensor or token */
  ADDER_CORRUPT_FILE = 3,     /* a file contradicts itself or its format */
  ADDER_UNSUPPORTED = 4,      /* well formed, but not something this build can do */
  ADDER_OUT_OF_MEMORY = 5,
  ADDER_IO = 6,        /* the operating system refused to read or write */
  ADDER_CANCELLED = 7, /* adder_session_cancel was called */
  ADDER_INTERNAL = 8,  /* a fault of the library */
  ADDER_BUFFER_TOO_SMALL = 9,
  ADDER_CONTEXT_FULL = 10, /* attention layers look back on no more tokens */
  ADDER_OTHER_MODEL = 11,  /* a session state of another model file */
  ADDER_OTHER_TYPE = 12,   /* a session state of another state_type or kv_type */
  ADDER_CONTEXT_LOST = 13  /* keys and values that attention needs are not there */
} adder_status;

typedef struct adder_error {
  adder_status code;
  char message[248]; /* UTF-8, NUL-terminated, cut if too long */
} adder_error;

ADDER_API const char* adder_version_string(void);  /* "0.1.0" */
ADDER_API const char* adder_status_name(int code); /* "invalid_argument"; else "unknown" */

/* ---- Models ---- */

typedef struct adder_model adder_model;

typedef struct adder_model_options {
  size_t struct_size;
  const char* isa;      /* kernels to force: "scalar", "avx2", ...; NULL: the best for this CPU */
  int verify_checksums; /* also check the tensor data: reads the whole file */
} adder_model_options;

/* Maps the model file at `path` (made by `adder convert`). Milliseconds, whatever its size. */
ADDER_API adder_status adder_model_open(const char* path, const adder_model_options* options,
                                        adder_model** model, adder_error* error);
/* The same from memory, which must be aligned to 64 bytes and outlive the model. */
ADDER_API adder_status adder_model_from_memory(const void* data, size_t bytes,
                                               const adder_model_options* options,
                                               adder_model** model, adder_error* error);
ADDER_API void adder_model_free(adder_model* model); /* NULL is fine */

typedef struct adder_model_info {
  size_t struct_size;
  const char* family; /* "mamba", ...; strings live as long as the model */
  const char* type;   /* "f32", "f16", "q8", "q4" */
  const char* isa;    /* kernels that run: "avx2", ... */
  uint32_t n_layers;
  uint32_t d_model;
  uint32_t vocab_size; /* ids below it may be sampled */
  uint32_t n_logits;   /* length of the logits and limit of ids to feed, >= vocab_size */
  int32_t bos;         /* -1: none */
  const int32_t* eos;  /* [n_eos], ascending: each of them ends a text */
  size_t n_eos;
  int has_tokenizer;
  const char* chat_template; /* Jinja text, or NULL */
  uint64_t file_bytes;
  uint64_t state_bytes;        /* recurrent state of one session; does not grow with the text */
  uint64_t kv_bytes_per_token; /* keys and values that attention layers keep of each token of a
                                  session's context, with ADDER_KV_DEFAULT; 0: no such layers, the
                                  context has no limit */
} adder_model_info;

ADDER_API adder_status adder_model_describe(const adder_model* model, adder_model_info* info,
                                            adder_error* error);

/* ---- Text and tokens ---- */

enum {
  ADDER_ADD_SPECIAL = 1,   /* tokenize: add what the tokenizer puts around a text (BOS) */
  ADDER_PARSE_SPECIAL = 2, /* tokenize: special tokens written in the text become their ids */
  ADDER_SKIP_SPECIAL = 4   /* detokenize: leave special tokens out */
};

/* Token ids of `text` (UTF-8, `text_bytes` long). *n_ids becomes their number; if that is above
 * `capacity`, nothing is written to `ids` and the status is ADDER_BUFFER_TOO_SMALL. */
ADDER_API adder_status adder_tokenize(const adder_model* model, const char* text, size_t text_bytes,
                                      int flags, int32_t* ids, size_t capacity, size_t* n_ids,
                                      adder_error* error);

/* Text of `ids`, not NUL-terminated. *text_bytes becomes its length; too long: as adder_tokenize.
 * Bytes that are no UTF-8 become U+FFFD. */
ADDER_API adder_status adder_detokenize(const adder_model* model, const int32_t* ids, size_t n_ids,
                                        int flags, char* text, size_t capacity, size_t* text_bytes,
                                        adder_error* error);

/* Token by token, in whole UTF-8 characters: bytes of a character that later tokens complete are
 * held back. */
typedef struct adder_detokenizer adder_detokenizer;
ADDER_API adder_status adder_detokenizer_create(const adder_model* model, int flags,
                                                adder_detokenizer** detokenizer,
                                                adder_error* error);
/* *text is valid until the next call, not NUL-terminated, often empty. */
ADDER_API adder_status adder_detokenizer_push(adder_detokenizer* detokenizer, int32_t id,
                                              const char** text, size_t* text_bytes,
                                              adder_error* error);
/* What is held back; afterwards a new text begins. */
ADDER_API adder_status adder_detokenizer_flush(adder_detokenizer* detokenizer, const char** text,
                                               size_t* text_bytes, adder_error* error);
ADDER_API void adder_detokenizer_free(adder_detokenizer* detokenizer); /* NULL is fine */

/* ---- Sessions ---- */

typedef struct adder_session adder_session;

/* How Mamba-2 layers keep their state between tokens. 16-bit values with a scale per channel take
 * half the memory and traffic, and change the logits a little (mean KL below 1e-6 on the story
 * models); results stay the same on every machine. Refused (ADDER_UNSUPPORTED) by models without
 * such layers. */
typedef enum adder_state_type { ADDER_STATE_F32 = 0, ADDER_STATE_INT16 = 1 } adder_state_type;
/* What becomes of tokens beyond the context of a model with attention layers. */
typedef enum adder_context_policy {
  ADDER_CONTEXT_STOP = 0, /* they are refused: ADDER_CONTEXT_FULL, ADDER_FINISH_CONTEXT */
  ADDER_CONTEXT_SLIDE = 1 /* attention forgets the oldest token, recurrent state nothing */
} adder_context_policy;

/* How attention layers keep keys and values. 8-bit values with a scale per token and head take
 * about half the memory of f16, and change the logits a little (docs/models.md has figures);
 * results stay the same on every machine. Refused (ADDER_UNSUPPORTED) by models without
 * such layers. */
typedef enum adder_kv_type {
  ADDER_KV_DEFAULT = 0, /* f16; f32 in models of f32 weights */
  ADDER_KV_INT8 = 1
} adder_kv_type;

typedef struct adder_session_options {
  size_t struct_size;
  uint32_t tile; /* prompt tokens that pass a layer together: speed against scratch memory; 0: 64 */
  uint32_t threads;   /* that share the work, the caller's included, at most as many as processors;
                         0: 1. Results depend on neither. */
  int32_t state_type; /* adder_state_type */
  uint32_t context; /* tokens that attention layers look back on, the current one included; 0: 4096.
                       Takes kv_bytes_per_token each. Models without such layers ignore it. */
  int32_t when_full;    /* adder_context_policy */
  int32_t kv_type;      /* adder_kv_type */
  uint32_t checkpoints; /* states that adder_session_checkpoint can keep, each of state_bytes in the
                           session's memory; at most 4096 */
} adder_session_options;

ADDER_API adder_status adder_session_create(const adder_model* model,
                                            const adder_session_options* options,
                                            adder_session** session, adder_error* error);
/* The same in the caller's memory of adder_session_bytes, aligned to 64 bytes, which must stay
 * until adder_session_free. With more than one thread, the threads themselves are kept elsewhere.
 */
ADDER_API adder_status adder_session_bytes(const adder_model* model,
                                           const adder_session_options* options, size_t* bytes,
                                           adder_error* error);
ADDER_API adder_status adder_session_init(const adder_model* model,
                                          const adder_session_options* options, void* memory,
                                          size_t bytes, adder_session** session,
                                          adder_error* error);
/* NULL is fine. A session that is in a call is not freed: ADDER_INVALID_ARGUMENT. */
ADDER_API adder_status adder_session_free(adder_session* session);

/* Back to the state after creation. */
ADDER_API adder_status adder_session_reset(adder_session* session, adder_error* error);
/* Tokens fed since then. */
ADDER_API adder_status adder_session_position(const adder_session* session, uint64_t* position,
                                              adder_error* error);

/* Runs tokens through the model. An id outside 0 .. n_logits - 1, or more tokens than the context
 * has room for, are refused before anything happens. After ADDER_CANCELLED, adder_session_position
 * tells how many went in. */
ADDER_API adder_status adder_session_feed(adder_session* session, const int32_t* ids, size_t n_ids,
                                          adder_error* error);
/* Scores of the next token, [n_logits]; valid until the session's next call. Refused before the
 * first token. */
ADDER_API adder_status adder_session_logits(const adder_session* session, const float** logits,
                                            size_t* n_logits, adder_error* error);

/* Makes the session hold exactly `ids`, a whole text from its start, and feeds only what is
 * missing: it goes on from its present state, or else from its latest checkpoint, whose tokens are
 * the beginning of `ids`, or else from the start. *reused (may be NULL) becomes the number of
 * tokens that were not fed again. Errors as of adder_session_feed. */
ADDER_API adder_status adder_session_feed_from_start(adder_session* session, const int32_t* ids,
                                                     size_t n_ids, uint64_t* reused,
                                                     adder_error* error);

/* Ends the session's running feed or generation soon, or else its next one. Any thread, any time.
 */
ADDER_API adder_status adder_session_cancel(adder_session* session);

/* ---- States of sessions ---- */

/* Everything that makes a session go on as it would have, bit for bit, on any machine: recurrent
 * state, keys and values, and a generation that was kept open. docs/state.md has the format.
 *
 * A state goes into sessions of the same model file, state_type and kv_type; tile, threads and
 * kernels may differ. With attention layers the contexts must be equal, or the text fit both:
 * ADDER_CONTEXT_LOST otherwise. A load or fork that fails changes nothing; one that succeeds drops
 * the session's checkpoints. */

/* Bytes that adder_session_save would write now. */
ADDER_API adder_status adder_session_state_bytes(const adder_session* session, size_t* bytes,
                                                 adder_error* error);
/* *bytes (may be NULL) becomes what was written, or is needed with ADDER_BUFFER_TOO_SMALL. */
ADDER_API adder_status adder_session_save(const adder_session* session, void* memory,
                                          size_t capacity, size_t* bytes, adder_error* error);
/* Any bytes are safe: what is not a whole, undamaged state is ADDER_CORRUPT_FILE; a later format
 * ADDER_UNSUPPORTED; others ADDER_OTHER_MODEL, ADDER_OTHER_TYPE, ADDER_CONTEXT_LOST. */
ADDER_API adder_status adder_session_load(adder_session* session, const void* data, size_t bytes,
                                          adder_error* error);
/* The same in a file. An older file keeps its content until the new one is complete and on disk;
 * the new one is readable by its owner only. */
ADDER_API adder_status adder_session_save_file(const adder_session* session, const char* path,
                                               adder_error* error);
ADDER_API adder_status adder_session_load_file(adder_session* session, const char* path,
                                               adder_error* error);
/* Copies the state of `from` into `to`. */
ADDER_API adder_status adder_session_fork(const adder_session* from, adder_session* to,
                                          adder_error* error);

/* Keeps the present state in the session's memory (option `checkpoints`). One at the same position
 * is replaced; when there are as many as the option says, the oldest goes. */
ADDER_API adder_status adder_session_checkpoint(adder_session* session, adder_error* error);
/* Back to the checkpoint at exactly this position (ADDER_NOT_FOUND: there is none); later ones go.
 * Keys and values are not copied: with ADDER_CONTEXT_SLIDE they may be overwritten by then, which
 * is ADDER_CONTEXT_LOST. */
ADDER_API adder_status adder_session_rollback(adder_session* session, uint64_t position,
                                              adder_error* error);
/* Positions of the checkpoints, ascending. *n becomes their number; if that is above `capacity`,
 * nothing is written to `positions` and the status is ADDER_BUFFER_TOO_SMALL. */
ADDER_API adder_status adder_session_checkpoints(const adder_session* session, uint64_t* positions,
                                                 size_t capacity, size_t* n, adder_error* error);

/* ---- Generation ---- */

typedef struct adder_logit_bias {
  int32_t token;
  float bias; /* added to the logit; -INFINITY forbids the token */
} adder_logit_bias;

typedef struct adder_generate_options {
  size_t struct_size;
  int64_t max_tokens;                 /* 0: 256; -1: no limit */
  float temperature;                  /* 0: greedy */
  int32_t top_k;                      /* 0: off */
  float top_p;                        /* 0 or 1: off */
  float min_p;                        /* 0: off */
  float repetition_penalty;           /* 0 or 1: off */
  float presence_penalty;             /* 0: off */
  float frequency_penalty;            /* 0: off */
  int32_t penalty_window;             /* tokens that penalties look back; 0: 64 */
  uint64_t seed;                      /* same seed, same text, on every machine */
  const adder_logit_bias* logit_bias; /* [n_logit_bias] */
  size_t n_logit_bias;
  const char* const* stops; /* [n_stops] NUL-terminated texts that end the generation, not shown */
  size_t n_stops;
  int ignore_eos;        /* treat end-of-text tokens as any other */
  int prompt_from_start; /* the prompt is the whole text: see adder_session_feed_from_start */
  int keep_open; /* unless the text ended (eos, stop), hold back what may become a character or a
                    stop, and keep it with the sampler's state in the session (and in a saved
                    state); penalty_window and bytes of a stop are at most 1024 then */
  int resume;    /* go on with the generation that was kept open here as if it had never stopped:
                    no prompt, same sampler options and stops, the seed is not used */
} adder_generate_options;

typedef enum adder_finish_reason {
  ADDER_FINISH_LENGTH = 1,    /* max_tokens */
  ADDER_FINISH_EOS = 2,       /* an end-of-text token */
  ADDER_FINISH_STOP = 3,      /* one of `stops` */
  ADDER_FINISH_CANCELLED = 4, /* adder_session_cancel, or the callback */
  ADDER_FINISH_CONTEXT = 5    /* the context is full: session option when_full */
} adder_finish_reason;

typedef struct adder_generate_result {
  size_t struct_size;
  adder_finish_reason reason;
  uint64_t prompt_tokens;
  uint64_t generated_tokens;
  double prompt_seconds;
  double generate_seconds;
  uint64_t reused_tokens; /* of prompt_tokens, not fed again: prompt_from_start */
} adder_generate_result;

/* Called for every token. `text` is whole UTF-8 characters, safe to show, not NUL-terminated; empty
 * while a character is incomplete or a stop text may have begun. `token` is -1 for text held back
 * to the end. Return 0 to go on, anything else to stop. The session must not be used inside. */
typedef int (*adder_text_callback)(void* user, const char* text, size_t text_bytes, int32_t token);

/* Feeds the prompt, then samples, shows and feeds tokens. With an empty prompt it goes on from the
 * session's state, or starts from BOS. Tokens that were shown are part of the state afterwards, an
 * end-of-text token is not. `callback` and `result` may be NULL. A cancelled generation is a
 * success with reason ADDER_FINISH_CANCELLED. */
ADDER_API adder_status adder_session_generate(adder_session* session, const int32_t* prompt,
                                              size_t n_prompt,
                                              const adder_generate_options* options,
                                              adder_text_callback callback, void* user,
                                              adder_generate_result* result, adder_error* error);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* ADDER_ADDER_H_ */
