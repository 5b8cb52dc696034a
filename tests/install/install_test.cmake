# Installs Adder to a prefix, moves the prefix, then builds and runs main.c against it: once through
# find_package, once through pkg-config. KIND "_shared": with a shared library, built for the
# purpose, that may export the C API only.

function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "${command}\nfailed: ${result}\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

function(run_consumer program)
  run(${CMAKE_COMMAND} -E env LD_LIBRARY_PATH=${libdir} ${program})
  if(NOT output STREQUAL "${VERSION} not_found\n")
    message(FATAL_ERROR "${program} printed \"${output}\", expected \"${VERSION} not_found\"")
  endif()
endfunction()

file(REMOVE_RECURSE ${WORK_DIR}/first ${WORK_DIR}/prefix ${WORK_DIR}/consumer)
if(KIND STREQUAL "_shared")
  run(${CMAKE_COMMAND} -S ${SOURCE_DIR} -B ${WORK_DIR}/build -G ${GENERATOR}
      -D CMAKE_C_COMPILER=${C_COMPILER} -D CMAKE_CXX_COMPILER=${CXX_COMPILER}
      -D CMAKE_BUILD_TYPE=Debug -D BUILD_SHARED_LIBS=ON
      -D ADDER_BUILD_CLI=OFF -D ADDER_BUILD_TESTS=OFF -D ADDER_BUILD_EXAMPLES=OFF)
  run(${CMAKE_COMMAND} --build ${WORK_DIR}/build --target adder)
  set(BUILD_DIR ${WORK_DIR}/build)
  set(CONFIG Debug)
endif()
run(${CMAKE_COMMAND} --install ${BUILD_DIR} --config ${CONFIG} --prefix ${WORK_DIR}/first)
file(RENAME ${WORK_DIR}/first ${WORK_DIR}/prefix)

file(GLOB_RECURSE headers RELATIVE ${WORK_DIR}/prefix ${WORK_DIR}/prefix/include/*)
if(NOT headers STREQUAL "include/adder/adder.h")
  message(FATAL_ERROR "installed headers: ${headers}, expected include/adder/adder.h alone")
endif()
file(GLOB_RECURSE pc ${WORK_DIR}/prefix/adder.pc)
get_filename_component(libdir ${pc}/../.. ABSOLUTE)

if(KIND STREQUAL "_shared")
  run(${NM} --dynamic --defined-only --extern-only ${libdir}/libadder.so)
  string(REGEX MATCHALL "[^ \n]+\n" symbols "${output}")
  list(FILTER symbols EXCLUDE REGEX "^adder_[a-z0-9_]+\n$")
  if(symbols)
    message(FATAL_ERROR "libadder.so exports more than the C API: ${symbols}")
  endif()
endif()

run(${CMAKE_COMMAND} -S ${SOURCE_DIR}/tests/install -B ${WORK_DIR}/consumer -G ${GENERATOR}
    -D CMAKE_C_COMPILER=${C_COMPILER} -D CMAKE_PREFIX_PATH=${WORK_DIR}/prefix)
run(${CMAKE_COMMAND} --build ${WORK_DIR}/consumer)
run_consumer(${WORK_DIR}/consumer/consumer)

find_program(PKG_CONFIG NAMES pkg-config pkgconf REQUIRED)
set(static)
if(EXISTS ${libdir}/libadder.a)
  set(static --static)
endif()
run(${CMAKE_COMMAND} -E env PKG_CONFIG_PATH=${libdir}/pkgconfig
    ${PKG_CONFIG} --cflags --libs ${static} adder)
separate_arguments(flags UNIX_COMMAND "${output}")
run(${C_COMPILER} ${SOURCE_DIR}/tests/install/main.c -o ${WORK_DIR}/consumer/pkg_config ${flags})
run_consumer(${WORK_DIR}/consumer/pkg_config)
