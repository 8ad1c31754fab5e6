# What most sources include is compiled once, not in each of them: a quarter of the time of a build. ccache is worth more
# where it is installed, and cannot look into such headers.
if(HETERO_CCACHE)
  set(precompile OFF)
else()
  set(precompile ON)
endif()
option(HETERO_PRECOMPILE "Compile what most sources include only once" ${precompile})
set(CMAKE_PCH_WARN_INVALID OFF)  # a source with other options reads the headers itself
if(HETERO_PRECOMPILE AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # Precompiled, std::string is no system header to GCC 12, which then warns of its own code.
  target_compile_options(hetero_warnings INTERFACE
    "$<$<COMPILE_LANGUAGE:CXX>:-Wno-array-bounds;-Wno-stringop-overread>")
endif()

# hetero_precompile(NAME [PIC] HEADERS header... LIBS target...): headers, beside those of the standard library, for targets
# that say hetero_use_precompiled(TARGET NAME) and have the same compiler options.
function(hetero_precompile name)
  cmake_parse_arguments(ARG "PIC" "" "HEADERS;LIBS" ${ARGN})
  if(HETERO_PRECOMPILE)
    file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/${name}.cpp CONTENT "")  # a target needs a source
    add_library(${name} OBJECT ${PROJECT_BINARY_DIR}/${name}.cpp)
    set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE ${ARG_PIC})
    target_link_libraries(${name} PRIVATE hetero_warnings fmt::fmt ${ARG_LIBS})
    target_precompile_headers(${name} PRIVATE <algorithm> <array> <chrono> <cmath> <cstdint> <cstring> <functional>
      <limits> <map> <memory> <optional> <span> <string> <string_view> <thread> <utility> <vector> <fmt/format.h>
      <tl/expected.hpp> ${ARG_HEADERS})
  endif()
endfunction()
function(hetero_use_precompiled target name)
  if(HETERO_PRECOMPILE)
    target_precompile_headers(${target} REUSE_FROM ${name})
  endif()
endfunction()
hetero_precompile(hetero_module_headers PIC)

# hetero_module(NAME [DEPS module...] [LIBS target...] [EXCLUDE file...])
# One folder under lib/ or kernels/ = one module = one target, hetero_<NAME>, from all .cpp files in the folder.
# DEPS are other modules (they may be used in headers), LIBS are external libraries (private to the module).
# A pair x_enabled.cpp / x_disabled.cpp is an optional part: the folder's CMakeLists.txt EXCLUDEs one of them.
function(hetero_module name)
  cmake_parse_arguments(ARG "" "" "DEPS;LIBS;EXCLUDE" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS RELATIVE ${CMAKE_CURRENT_SOURCE_DIR} *.cpp)
  if(ARG_EXCLUDE)
    list(REMOVE_ITEM sources ${ARG_EXCLUDE})
  endif()
  if(NOT sources)
    return()
  endif()
  add_library(hetero_${name} STATIC ${sources})
  set_target_properties(hetero_${name} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  target_include_directories(hetero_${name} PUBLIC ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/lib)
  target_link_libraries(hetero_${name} PUBLIC fmt::fmt PRIVATE hetero_warnings ${ARG_LIBS})
  foreach(dep IN LISTS ARG_DEPS)
    target_link_libraries(hetero_${name} PUBLIC hetero_${dep})
  endforeach()
  if(NOT name STREQUAL kernels)
    hetero_use_precompiled(hetero_${name} hetero_module_headers)
  endif()
  set_property(GLOBAL APPEND PROPERTY HETERO_MODULES hetero_${name})
endfunction()

# hetero_unit_tests(MODULE [DEPS module...] [LIBS target...]): one test program, test_<MODULE>, from the folder's .cpp
# files; ctest runs each file as a test of its own.
function(hetero_unit_tests module)
  cmake_parse_arguments(ARG "" "" "DEPS;LIBS" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS RELATIVE ${CMAKE_CURRENT_SOURCE_DIR} *.cpp)
  if(NOT sources)
    return()
  endif()
  add_executable(test_${module} ${sources})
  target_include_directories(test_${module} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  target_compile_definitions(test_${module} PRIVATE HETERO_TESTDATA="${PROJECT_SOURCE_DIR}/testdata")
  target_link_libraries(test_${module} PRIVATE hetero_test_main hetero_warnings nlohmann_json::nlohmann_json ${ARG_LIBS})
  hetero_use_precompiled(test_${module} hetero_test_headers)
  foreach(dep IN ITEMS ${module} LISTS ARG_DEPS)
    if(TARGET hetero_${dep})
      target_link_libraries(test_${module} PRIVATE hetero_${dep})
    endif()
  endforeach()
  foreach(source IN LISTS sources)
    get_filename_component(stem ${source} NAME_WE)
    add_test(NAME unit.${module}.${stem} COMMAND test_${module} --source-file=*/${source} --no-skipped-summary)
    set_tests_properties(unit.${module}.${stem} PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 600)
  endforeach()
endfunction()
