/* A user's C program; install_test.cmake compares what it prints. */
#include <adder/adder.h>
#include <stdio.h>

int main(void) {
  adder_model* model = NULL;
  adder_error error;
  const adder_status status = adder_model_open("no such file", NULL, &model, &error);
  printf("%s %s\n", adder_version_string(), adder_status_name(status));
  adder_model_free(model);
  return 0;
}
