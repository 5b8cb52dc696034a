/* A user's C program; install_test.cmake compares what it prints. */
#include <adder/adder.h>
#include <stdio.h>

int main(void) {
  printf("%s %s\n", adder_version_string(), adder_status_name(ADDER_OK));
  return 0;
}
