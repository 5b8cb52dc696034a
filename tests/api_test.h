/* The part of the API test that is C. */
#ifndef ADDER_TESTS_API_TEST_H_
#define ADDER_TESTS_API_TEST_H_

#ifdef __cplusplus
extern "C" {
#endif

/* Number of checks that failed; each was printed. `text_model` has a tokenizer, `id_model` none;
 * `state_file` is not there yet. */
int adder_c_api_failures(const char* text_model, const char* id_model, const char* state_file);

#ifdef __cplusplus
}
#endif

#endif
