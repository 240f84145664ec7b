# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
# Adds our sources to upstream's targets without changing upstream's CMake files. ../CMakeLists.txt and
# debian/rules set CMAKE_PROJECT_rdma-core_INCLUDE, so upstream's project() includes this file. Calls that
# need the targets are deferred to the end of the top-level directory. All paths are in the built tree.

cmake_policy(SET CMP0079 NEW) # allow link libraries for a target of another directory
enable_language(CXX)
string(APPEND CMAKE_CXX_FLAGS " -Werror")

# The absolute paths of our C and C++ sources in libibverbs. no_cxx_runtime.cmake has the flags of
# the C++ sources.
file(GLOB INJECT_LIBIBVERBS_SOURCES CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/libibverbs/mr_*.c
     ${PROJECT_SOURCE_DIR}/libibverbs/mr_cache/*.cc)
set(INJECT_UAPI_HEADERS kernel-headers/rdma/ib_user_mr_notify.h)
set(INJECT_PUBLIC_HEADERS libibverbs/mr_notify.h libibverbs/mr_cache.h libibverbs/mr_all.h)
set(INJECT_TESTS tests/test_mr_notify.py tests/test_mr_cache.py tests/test_mr_all.py)

# Replaces the overlay's symbolic links by their targets, because upstream's install() would install
# the links.
function(inject_real_paths OUT)
  set(paths "")
  foreach(path ${ARGN})
    file(REAL_PATH ${path} real BASE_DIRECTORY ${PROJECT_SOURCE_DIR})
    file(RELATIVE_PATH relative ${PROJECT_SOURCE_DIR} ${real})
    list(APPEND paths ${relative})
  endforeach()
  set(${OUT} ${paths} PARENT_SCOPE)
endfunction()

# Appends our symbol version nodes to the map that upstream's configure_file() generated. A second
# --version-script would be enough for the shared library. But sanitize_static_lib.py takes one map
# per static library, and makes all symbols outside of this map local. A hook in libibverbs.map.in
# would have to change whenever upstream adds a node. The names of our nodes differ from the names of
# upstream's next nodes. check-build sorts nodes by the part after the "_", so our nodes come first.
function(inject_symbol_versions)
  set(map ${PROJECT_BINARY_DIR}/libibverbs/libibverbs.map)
  set(node ${PROJECT_SOURCE_DIR}/libibverbs/libibverbs_mr_notify.map)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${node})
  file(READ ${map} upstream)
  file(READ ${node} ours)
  string(REGEX MATCHALL "IBVERBS_[0-9.]+ {" nodes "${upstream}")
  list(POP_BACK nodes newest)
  string(REPLACE " {" "" IBVERBS_NEWEST "${newest}")
  # If nothing changes, file(CONFIGURE) keeps the time stamp of its output, and the map gets this time
  # stamp. So configuring again does not link all programs again.
  file(CONFIGURE OUTPUT ${map}.ours CONTENT "${upstream}\n${ours}" @ONLY)
  execute_process(COMMAND cp --preserve=timestamps ${map}.ours ${map} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

function(inject_libibverbs)
  foreach(target ibverbs ibverbs-static)
    if(TARGET ${target})
      target_sources(${target} PRIVATE ${INJECT_LIBIBVERBS_SOURCES})
      # Otherwise the compiler assumes that an undeclared function returns an int, which has half the
      # bits of a pointer.
      target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:C>:-Werror=implicit-function-declaration>")
    endif()
  endforeach()
  include(${PROJECT_SOURCE_DIR}/libibverbs/no_cxx_runtime.cmake)
  inject_symbol_versions()
endfunction()

function(inject_headers)
  publish_internal_headers(rdma ${INJECT_UAPI_HEADERS})
  inject_real_paths(headers ${INJECT_PUBLIC_HEADERS})
  publish_headers(infiniband ${headers})
endfunction()

function(inject_man_pages)
  set(folder ${PROJECT_SOURCE_DIR}/libibverbs/man)
  file(GLOB pages CONFIGURE_DEPENDS ${folder}/ibv_mr_*.[17].md)
  file(STRINGS ${PROJECT_SOURCE_DIR}/libibverbs/libibverbs_mr_notify.map verbs REGEX "^\t\tibv_")
  list(TRANSFORM verbs REPLACE "^\t\t([a-z_]+).*" "${folder}/\\1.3.md")
  list(REMOVE_DUPLICATES verbs)
  list(APPEND pages ${verbs})
  # Upstream's functions use the folders in these variables.
  set(CMAKE_CURRENT_SOURCE_DIR ${PROJECT_SOURCE_DIR}/libibverbs/man)
  set(CMAKE_CURRENT_BINARY_DIR ${PROJECT_BINARY_DIR}/libibverbs/man)
  rdma_man_pages(${pages})
endfunction()

# Includes our CMakeLists.txt. Upstream's CMake files would call add_subdirectory() instead.
function(inject_programs)
  foreach(folder libibverbs/examples/mr_notify libibverbs/tests providers/rxe/tests)
    include(${PROJECT_SOURCE_DIR}/${folder}/CMakeLists.txt)
  endforeach()
  if(NOT TARGET ibv_mr_notify)
    message(FATAL_ERROR "ibv_mr_notify can't be built: buildlib/setup installs what it needs")
  endif()
  add_custom_target(c_tests DEPENDS mr_notify_test mr_cache_test mr_cache_sanitized_test rxe_wr_test)
endfunction()

function(inject_python_tests)
  if(CYTHON_EXECUTABLE)
    inject_real_paths(tests ${INJECT_TESTS})
    rdma_python_test(tests ${tests})
  endif()
endfunction()

# Sets OUT to all libraries and programs of a folder and its subfolders.
function(inject_targets OUT FOLDER)
  get_property(targets DIRECTORY ${FOLDER} PROPERTY BUILDSYSTEM_TARGETS)
  get_property(folders DIRECTORY ${FOLDER} PROPERTY SUBDIRECTORIES)
  set(found "")
  foreach(target ${targets})
    get_target_property(type ${target} TYPE)
    if(NOT type STREQUAL UTILITY)
      list(APPEND found ${target})
    endif()
  endforeach()
  foreach(folder ${folders})
    inject_targets(below ${folder})
    list(APPEND found ${below})
  endforeach()
  set(${OUT} ${found} PARENT_SCOPE)
endfunction()

# Turns optimization off for Python modules that are used in place, because compiling Cython's C takes
# most of the time of a build.
function(inject_quick_python)
  if(INJECT_QUICK_PYTHON AND CYTHON_EXECUTABLE)
    inject_targets(modules ${PROJECT_SOURCE_DIR}/pyverbs)
    foreach(module ${modules})
      target_compile_options(${module} PRIVATE -O0 -g0)
    endforeach()
  endif()
endfunction()

# Adds targets for parts of the build. libibverbs loads every driver that has a file in libibverbs.d,
# and warns if the library of the driver is missing. So a build in place makes a driver's file together
# with the driver.
function(inject_parts)
  if(NOT IN_PLACE)
    return()
  endif()
  set(providers ${RDMA_PROVIDER_LIST})
  while(providers)
    list(POP_FRONT providers name target)
    set(file ${BUILD_ETC}/libibverbs.d/${name}.driver)
    if(NOT EXISTS ${BUILD_LIB}/lib${name}${IBVERBS_PROVIDER_SUFFIX})
      file(REMOVE ${file})
    endif()
    add_custom_command(OUTPUT ${file} DEPENDS ${target} VERBATIM
      COMMAND sh -c "echo 'driver ${BUILD_LIB}/lib${name}' >'${file}'")
    add_custom_target(driver-${name} ALL DEPENDS ${file})
  endwhile()

  add_custom_target(essentials)
  add_dependencies(essentials ibverbs check-no-cxx-runtime rdmacm driver-rxe driver-siw ibv_mr_notify)
  if(CYTHON_EXECUTABLE)
    inject_targets(modules ${PROJECT_SOURCE_DIR}/pyverbs)
    add_custom_target(pyverbs)
    add_dependencies(pyverbs essentials ${modules})
  endif()
endfunction()

foreach(step libibverbs headers man_pages programs python_tests quick_python parts)
  cmake_language(DEFER CALL inject_${step})
endforeach()
