# adder_find(NAME header library module package): interface target adder_dep_NAME, by pkg-config
# where the module is known, else by header and library. What cannot be found is added to
# adder_missing with the name of its Debian package. Installed beside the package config, which
# looks for the libraries behind a static libadder in the same way.
find_package(PkgConfig QUIET)
set(adder_missing "")

function(adder_find name header library module package)
  if(TARGET adder_dep_${name})
    return()
  endif()
  add_library(adder_dep_${name} INTERFACE IMPORTED GLOBAL)
  if(PkgConfig_FOUND AND module)
    pkg_check_modules(adder_${name} QUIET IMPORTED_TARGET GLOBAL ${module})
    if(adder_${name}_FOUND)
      set_property(TARGET adder_dep_${name} PROPERTY
        INTERFACE_LINK_LIBRARIES PkgConfig::adder_${name})
      return()
    endif()
  endif()
  find_path(adder_${name}_INCLUDE_DIR ${header})
  if(library)
    find_library(adder_${name}_LIBRARY ${library})
  endif()
  if(NOT adder_${name}_INCLUDE_DIR OR (library AND NOT adder_${name}_LIBRARY))
    list(APPEND adder_missing "${name} (Debian package ${package})")
    set(adder_missing "${adder_missing}" PARENT_SCOPE)
    return()
  endif()
  mark_as_advanced(adder_${name}_INCLUDE_DIR adder_${name}_LIBRARY)
  set_property(TARGET adder_dep_${name} PROPERTY
    INTERFACE_INCLUDE_DIRECTORIES ${adder_${name}_INCLUDE_DIR})
  if(library)
    set_property(TARGET adder_dep_${name} PROPERTY
      INTERFACE_LINK_LIBRARIES ${adder_${name}_LIBRARY})
  endif()
endfunction()

# The libraries behind libadder: targets, and pkg-config modules for adder.pc.
macro(adder_find_runtime_libraries)
  adder_find(cpuinfo cpuinfo.h cpuinfo libcpuinfo libcpuinfo-dev)
  adder_find(pcre2 pcre2.h pcre2-8 libpcre2-8 libpcre2-dev)
  adder_find(utf8proc utf8proc.h utf8proc libutf8proc libutf8proc-dev)
  adder_find(xxhash xxhash.h xxhash libxxhash libxxhash-dev)
  adder_find(pthreadpool pthreadpool.h pthreadpool "" libpthreadpool-dev)
  set(adder_runtime_libraries adder_dep_cpuinfo adder_dep_pcre2 adder_dep_utf8proc adder_dep_xxhash
    adder_dep_pthreadpool)
  set(adder_runtime_modules libcpuinfo libpcre2-8 libutf8proc libxxhash)
endmacro()
