# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
# Builds build/tests/bench_*, the programs of tests/bench/run.
find_library(BENCHMARK benchmark)
foreach(library ucs ucm ucp uct fabric)
  find_library(PEER_${library} ${library})
endforeach()
check_lacking(lacking benchmarks Catch2_FOUND BENCHMARK PEER_ucs PEER_ucm PEER_ucp PEER_uct
             PEER_fabric)
if(lacking)
  return()
endif()

# Builds the benchmark of the core with libibverbs' compiler options for the core. bench_cache is
# for this checkout. -DBENCH_BEFORE=PATH adds bench_cache_before, which has the same source and the
# core of the checkout PATH.
function(add_core_benchmark name checkout)
  file(GLOB core CONFIGURE_DEPENDS ${checkout}/libibverbs/mr_cache/*.cc)
  add_executable(${name} bench/cache_benchmark.cc ${core})
  target_include_directories(${name} PRIVATE ${checkout}/libibverbs/mr_cache)
  target_compile_options(${name} PRIVATE -O2 -fno-exceptions -fno-rtti -fno-threadsafe-statics)
  target_link_libraries(${name} PRIVATE test_options Threads::Threads ${BENCHMARK})
endfunction()

add_core_benchmark(bench_cache ${CMAKE_SOURCE_DIR})
set(BENCH_BEFORE "" CACHE PATH "another checkout, to compare with")
if(BENCH_BEFORE)
  add_core_benchmark(bench_cache_before ${BENCH_BEFORE})
  set_target_properties(bench_cache_before PROPERTIES EXCLUDE_FROM_ALL ON)
endif()

# The other programs of tests/bench/run. The first loop is for our verbs, the next for Debian's UCX
# and libfabric.
foreach(name verbs transfer cost paging views)
  add_executable(bench_${name} bench/${name}_benchmark.cc)
  target_link_libraries(bench_${name} PRIVATE guest_support ${BENCHMARK})
endforeach()
foreach(peer "ucx;ucs;ucm" "ucx_md;ucp;uct;ucs" "libfabric;fabric" "libfabric_transfer;fabric")
  list(POP_FRONT peer name)
  set(libraries "")
  foreach(library ${peer})
    list(APPEND libraries ${PEER_${library}})
  endforeach()
  add_executable(bench_${name} bench/${name}_benchmark.cc)
  target_link_libraries(bench_${name} PRIVATE test_options Threads::Threads ${BENCHMARK} ${libraries})
endforeach()

add_set(benchmarks bench)
