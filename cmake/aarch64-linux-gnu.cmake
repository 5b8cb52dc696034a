# Toolchain: Linux on 64-bit ARM from another machine, with Debian's cross compiler; programs run
# under qemu-aarch64 (the environment variable QEMU_CPU picks the CPU that it imitates).
# ADDER_SYSROOT: folder that scripts/arm64_sysroot.sh made. CMake reads this file again for its
# compiler checks, which know the variable through the list below.
if(NOT ADDER_SYSROOT)
  set(ADDER_SYSROOT ${CMAKE_CURRENT_LIST_DIR}/../build/arm64-sysroot)
endif()
get_filename_component(ADDER_SYSROOT "${ADDER_SYSROOT}" ABSOLUTE)
if(NOT EXISTS ${ADDER_SYSROOT}/.packages)
  message(FATAL_ERROR "no arm64 sysroot in ${ADDER_SYSROOT}: run scripts/arm64_sysroot.sh first")
endif()
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES ADDER_SYSROOT)

set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_C_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_CXX_LIBRARY_ARCHITECTURE aarch64-linux-gnu)

# The folder holds libraries only; libc and libstdc++ are the cross compiler's own.
set(CMAKE_FIND_ROOT_PATH ${ADDER_SYSROOT} /usr/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${ADDER_SYSROOT})
set(ENV{PKG_CONFIG_LIBDIR} ${ADDER_SYSROOT}/usr/lib/aarch64-linux-gnu/pkgconfig)

set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64;-L;/usr/aarch64-linux-gnu)
