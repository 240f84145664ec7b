# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
# build/tests/guest_*: each runs in a guest of the lab, on a real device.
find_package(Catch2 QUIET) # a header (version 2), or a library (3)
check_lacking(lacking guest_tests Catch2_FOUND)
if(lacking)
  return()
endif()

# The part that all tests have; it is slow to compile (Catch2), so it is compiled once, and not
# optimized much.
set_source_files_properties(guest/main.cpp PROPERTIES COMPILE_OPTIONS "-Og;-g0")
add_library(catch_main OBJECT guest/main.cpp)
target_include_directories(catch_main PUBLIC guest support)
target_link_libraries(catch_main PUBLIC test_options Threads::Threads Catch2::Catch2)

# The parts of a guest's test. The tests are not optimized much: that would take longer than it
# makes them faster. Half of that time are the headers that nearly all of them include.
add_library(guest_support STATIC guest/child.cpp)
target_compile_options(guest_support PRIVATE -O1)
target_precompile_headers(guest_support PRIVATE support/catch.h <algorithm> <atomic> <chrono> <fstream> <functional>
  <memory> <string> <thread> <vector>)
target_link_libraries(guest_support PUBLIC catch_main mr_notify)

foreach(test adversary cache contract differential idle in_use invalidate lifetime lookup nested observe offline owner peer
        pressure race reclaim retransmit revoke rights siw stranger transfer window word worker)
  add_executable(guest_${test} guest/${test}_test.cpp)
  target_compile_options(guest_${test} PRIVATE -O1)
  target_precompile_headers(guest_${test} REUSE_FROM guest_support)
  target_link_libraries(guest_${test} PRIVATE guest_support)
endforeach()

# On-demand paging, the MR of all memory, and packets one by one.
add_library(odp_support STATIC guest/odp/arena.cpp guest/odp/operations.cpp
  guest/odp/raw_peer.cpp guest/odp/slow_memory.cpp guest/odp/wild.cpp)
target_link_libraries(odp_support PUBLIC guest_support)
foreach(test answers odp odp_memory odp_oracle odp_packets odp_stress odp_wait rings states)
  add_executable(guest_${test} guest/${test}_test.cpp)
  target_compile_options(guest_${test} PRIVATE -O1)
  target_precompile_headers(guest_${test} REUSE_FROM guest_support)
  target_link_libraries(guest_${test} PRIVATE odp_support)
endforeach()

# Two nodes.
add_executable(guest_nodes guest/nodes_test.cpp guest/nodes/owner.cpp guest/nodes/remote.cpp guest/nodes/traffic.cpp)
target_compile_options(guest_nodes PRIVATE -O1)
target_precompile_headers(guest_nodes REUSE_FROM guest_support)
target_link_libraries(guest_nodes PRIVATE guest_support)

# Documentation/testing.md, "Tests that fail now and then".
add_library(slow_machine MODULE support/slow_machine.cpp)
target_link_libraries(slow_machine PRIVATE test_options)

# Everything at once, at random, and with failures on purpose.
add_executable(guest_stress
  guest/stress_test.cpp
  guest/fault_test.cpp
  guest/stress/crowd.cpp
  guest/stress/faults.cpp
  guest/stress/given_back.cpp
  guest/stress/peer.cpp
  guest/stress/slot.cpp)
target_link_libraries(guest_stress PRIVATE guest_support)

# With the programs that run beside them (tools).
add_part(guest_programs ibv_mr_cache)
add_set(guest_tests guest)
add_dependencies(guest_tests slow_machine guest_programs)
