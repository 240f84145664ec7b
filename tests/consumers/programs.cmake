# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
# build/tests/consumers_*: programs that run over libfabric and UCX.
check_lacking(lacking consumers_programs PEER_fabric PEER_ucp PEER_uct PEER_ucs)
if(lacking)
  return()
endif()

# For tests/consumers/probing.py.
add_executable(consumers_registrations consumers/registrations.cpp mpi/interception.cpp)
target_include_directories(consumers_registrations PRIVATE bench mpi)
target_link_libraries(consumers_registrations PRIVATE test_options ${PEER_fabric} ${PEER_uct} ${PEER_ucs})
add_executable(consumers_mapping consumers/mapping.cpp)
target_link_libraries(consumers_mapping PRIVATE test_options ${PEER_ucp} ${PEER_ucs})
add_executable(consumers_unreleased consumers/unreleased.cpp)
target_link_libraries(consumers_unreleased PRIVATE test_options ${PEER_ucp} ${PEER_uct} ${PEER_ucs})
add_library(consumers_not_capable MODULE consumers/not_capable.cpp)
target_include_directories(consumers_not_capable SYSTEM PRIVATE ${rdma_core}/include)
target_link_libraries(consumers_not_capable PRIVATE test_options ${rdma_core}/lib/libibverbs.so)
add_dependencies(consumers_not_capable essentials)

# hits tests libfabric's cache with threads, also with ThreadSanitizer. notify_ops tests the words
# that libfabric gives to caches above libfabric. Both programs count the verbs that libfabric
# calls.
foreach(name hits hits_tsan notify_ops)
  string(REPLACE _tsan "" source ${name})
  add_executable(consumers_${name} consumers/${source}.cpp)
  target_include_directories(consumers_${name} PRIVATE bench support)
  target_include_directories(consumers_${name} SYSTEM PRIVATE ${rdma_core}/include)
  target_link_libraries(consumers_${name} PRIVATE test_options Threads::Threads ${PEER_fabric})
  set_target_properties(consumers_${name} PROPERTIES ENABLE_EXPORTS ON)
  add_dependencies(consumers_${name} essentials)
endforeach()
target_compile_options(consumers_hits_tsan PRIVATE -fsanitize=thread)
target_link_options(consumers_hits_tsan PRIVATE -fsanitize=thread)
