# Every library from outside, found once and given a name of ours: adder_dep_NAME. Users point CMake
# at newer versions with CMAKE_PREFIX_PATH. All that is missing is named in one message.
include(${CMAKE_CURRENT_LIST_DIR}/find_library.cmake)

adder_find_runtime_libraries()
adder_find(rapidjson rapidjson/document.h "" "" rapidjson-dev)
if(ADDER_BUILD_CLI)
  adder_find(cli11 CLI/CLI.hpp "" "" libcli11-dev)
endif()

if(adder_missing)
  list(JOIN adder_missing "\n  " adder_missing)
  message(FATAL_ERROR "adder needs libraries that were not found:\n  ${adder_missing}\n"
    "On Debian and Ubuntu ./demo.sh installs them.")
endif()
