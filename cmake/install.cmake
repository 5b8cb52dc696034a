# Installs libadder, adder.h, the command, and what find_package(adder) and pkg-config read.
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/adder)

set(ADDER_IS_SHARED ${BUILD_SHARED_LIBS})

install(TARGETS adder EXPORT adder-targets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(FILES runtime/include/adder/adder.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/adder)
install(EXPORT adder-targets NAMESPACE adder:: DESTINATION ${package_dir})
if(TARGET adder_cli)
  install(TARGETS adder_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()

configure_package_config_file(cmake/adder-config.cmake.in adder-config.cmake
  INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(adder-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/adder-config.cmake
              ${PROJECT_BINARY_DIR}/adder-config-version.cmake cmake/find_library.cmake
        DESTINATION ${package_dir})

# Paths in adder.pc are relative to it, so that the prefix can be moved. With a shared libadder its
# users need nothing else, not even the packages of the private libraries.
file(RELATIVE_PATH ADDER_PC_INCLUDEDIR
  ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_FULL_INCLUDEDIR})
set(ADDER_PC_PRIVATE "")
if(NOT BUILD_SHARED_LIBS)
  list(JOIN adder_runtime_modules " " modules)
  list(JOIN adder_cxx_libraries " -l" libraries)
  # pthreadpool has no pkg-config module.
  set(ADDER_PC_PRIVATE "Requires.private: ${modules}\nLibs.private: -lpthreadpool -l${libraries}")
endif()
configure_file(cmake/adder.pc.in adder.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/adder.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
