# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
# Each build/tests/guest_* runs in a guest of the lab, on a real device.
check_lacking(lacking guest_tests Catch2_FOUND)
if(lacking)
  return()
endif()

# This library is not optimized, because optimizing takes longer than it saves.
add_library(guest_support STATIC support/frame.cpp support/lossy_wire.cpp support/odp.cpp
  support/raw_peer.cpp support/slow_memory.cpp)
target_link_libraries(guest_support PUBLIC child mr_notify)

# This is an object library, because the linker would omit the requirements of a static library.
add_library(guest_requirements OBJECT support/requirements.cpp)
target_link_libraries(guest_requirements PRIVATE guest_support)

add_library(odp_support STATIC guest/paging/odp/arena.cpp guest/paging/odp/random_access.cpp)
target_include_directories(odp_support PUBLIC guest/paging)
target_link_libraries(odp_support PUBLIC guest_support)

# guest_TEST of guest/FOLDER/TEST_test.cpp, for each TEST.
function(add_guest_tests folder support)
  foreach(test ${ARGN})
    add_executable(guest_${test} guest/${folder}/${test}_test.cpp
      $<TARGET_OBJECTS:guest_requirements>)
    target_compile_options(guest_${test} PRIVATE -O1)
    target_precompile_headers(guest_${test} REUSE_FROM child)
    target_link_libraries(guest_${test} PRIVATE ${support})
  endforeach()
endfunction()

add_guest_tests(notify guest_support changes contract in_use interleaving lifetime nodes no_cross_process_wait
  observe offline race reclaim revoke transfer word worker)
add_guest_tests(cache guest_support adversary cache differential idle nested owner peer pressure)
add_guest_tests(paging odp_support odp odp_memory odp_oracle odp_packets odp_stress odp_wait)
add_guest_tests(upstream guest_support errors fuzz invalidate lookup lossy odp_upstream qp_state retransmit retransmit_answers
  rights siw wqe_ring)

# guest_contract runs this program in its cases with many mappings.
add_executable(first_arming guest/notify/first_arming.cpp)
target_compile_options(first_arming PRIVATE -O1)
target_link_libraries(first_arming PRIVATE mr_notify)
add_dependencies(guest_contract first_arming)

target_sources(guest_nodes PRIVATE guest/notify/nodes/owner.cpp guest/notify/nodes/remote.cpp
  guest/notify/nodes/traffic.cpp)

# Documentation/testing.md describes this library in "Tests that fail now and then".
add_library(slow_machine MODULE support/slow_machine.cpp)
target_link_libraries(slow_machine PRIVATE test_options)

# guest_stress runs many operations at the same time and at random, and injects failures.
add_executable(guest_stress
  guest/notify/stress_test.cpp
  guest/notify/fault_test.cpp
  guest/notify/fail_nth_test.cpp
  guest/notify/stress/many_threads.cpp
  guest/notify/stress/faults.cpp
  guest/notify/stress/given_back.cpp
  guest/notify/stress/peer.cpp
  guest/notify/stress/slot.cpp)
target_sources(guest_stress PRIVATE $<TARGET_OBJECTS:guest_requirements>)
target_link_libraries(guest_stress PRIVATE guest_support)

# These programs are started by the test `tools`.
add_part(guest_programs ibv_mr_cache)
add_set(guest_tests guest)
add_dependencies(guest_tests slow_machine guest_programs)
