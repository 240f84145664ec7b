# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
# unit_tests are the C tests, which upstream's build makes, and build/tests/unit_*, which test
# the core of the registration cache on the host, without a kernel. unit_tsan and unit_asan run with
# the sanitizers.
check_lacking(lacking unit_tests Catch2_FOUND)
if(lacking)
  return()
endif()

set(mr_cache ${CMAKE_SOURCE_DIR}/libibverbs/mr_cache)

function(add_unit name sources)
  list(TRANSFORM sources PREPEND unit/)
  add_executable(unit_${name} ${sources})
  target_compile_options(unit_${name} PRIVATE -O1 ${ARGN})
  if(NOT ARGN)
    target_precompile_headers(unit_${name} REUSE_FROM child)
  endif()
  target_include_directories(unit_${name} PRIVATE ${mr_cache})
  target_link_options(unit_${name} PRIVATE ${ARGN})
  target_link_libraries(unit_${name} PRIVATE catch_main)
endfunction()

add_unit(cache "cache_test.cc;cache_lifetime_test.cc;cache_room_test.cc;cache_stress_test.cc;cache_union_test.cc")
add_unit(schedule cache_schedule_test.cc)
add_unit(fail_nth cache_fail_nth_test.cc)
add_unit(parts "entry_list_test.cc;hints_test.cc;operations_test.cc;oldest_idle_test.cc;range_index_test.cc;undo_test.cc")
set_source_files_properties(${mr_notify}/undo.cpp PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
target_sources(unit_parts PRIVATE ${mr_notify}/undo.cpp)
target_include_directories(unit_parts PRIVATE ${mr_notify})
# mr_view_test unloads this module.
set(mr_view ${CMAKE_SOURCE_DIR}/libibverbs/mr_view.c)
set_source_files_properties(${mr_view} PROPERTIES SKIP_PRECOMPILE_HEADERS ON COMPILE_OPTIONS -Wno-unused-parameter)
add_library(views MODULE ${mr_view})
target_link_libraries(views PRIVATE test_options)
add_unit(views mr_view_test.cc)
target_sources(unit_views PRIVATE ${mr_view})
target_compile_definitions(unit_views PRIVATE VIEWS_MODULE="$<TARGET_FILE:views>")
target_link_options(unit_views PRIVATE -Wl,--wrap=malloc,--wrap=free)
foreach(target views unit_views)
  target_include_directories(${target} PRIVATE ${CMAKE_SOURCE_DIR}/libibverbs)
  target_include_directories(${target} SYSTEM PRIVATE ${rdma_core}/include)
  add_dependencies(${target} essentials)
endforeach()
add_dependencies(unit_views views)
add_unit(tsan cache_stress_test.cc -fsanitize=thread)
add_unit(asan "cache_test.cc;cache_lifetime_test.cc;cache_room_test.cc;cache_stress_test.cc;cache_union_test.cc" -fsanitize=address,undefined
         -fno-sanitize-recover=all -O0)

add_set(unit_tests unit)
add_part(c_tests c_tests)
add_dependencies(c_tests essentials)
add_dependencies(unit_tests c_tests)
