# Flags of every translation unit of the project, as one interface target.
add_library(adder_flags INTERFACE)
target_compile_options(adder_flags INTERFACE -Wall -Wextra -Wconversion -ffp-contract=off)
target_compile_options(adder_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wshadow -Wnon-virtual-dtor>)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  target_compile_options(adder_flags INTERFACE -Wno-restrict)  # false alarms in std::string, PR105651
endif()
if(ADDER_WERROR)
  target_compile_options(adder_flags INTERFACE -Werror)
endif()
if(ADDER_SANITIZE)
  target_compile_options(adder_flags INTERFACE -fsanitize=${ADDER_SANITIZE} -fno-omit-frame-pointer
    -fno-sanitize-recover=all)
  target_link_options(adder_flags INTERFACE -fsanitize=${ADDER_SANITIZE})
endif()
if(ADDER_BUILD_FUZZERS)
  target_compile_options(adder_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()
