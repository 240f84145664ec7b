# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
# Options for the C++ of libibverbs. The library must load without libstdc++, so its code must not need
# the C++ run time or the checks of debug builds, which call the run time.

# The last option is for verbs.h, which mixes enumeration types. C++20 warns about such a mix.
set(MR_CACHE_WARNINGS -Wall -Wextra -Wshadow -Wconversion -Wno-deprecated-enum-enum-conversion)
set(MR_CACHE_NO_RUNTIME -fno-exceptions -fno-rtti -fno-threadsafe-statics -fno-use-cxa-atexit
    -fvisibility=hidden -U_GLIBCXX_ASSERTIONS -D_GLIBCXX_NO_ASSERTIONS)

foreach(target ibverbs ibverbs-static)
  if(TARGET ${target})
    target_compile_options(${target} PRIVATE
      "$<$<COMPILE_LANGUAGE:CXX>:${MR_CACHE_WARNINGS};${MR_CACHE_NO_RUNTIME}>")
    set_target_properties(${target} PROPERTIES LINKER_LANGUAGE C
                          CXX_STANDARD 20 CXX_STANDARD_REQUIRED ON CXX_EXTENSIONS OFF)
  endif()
endforeach()

# Fails the build if code needs the C++ run time, or if a backtrace would end in the core.
set(MR_CACHE_PROOF ${PROJECT_BINARY_DIR}/libibverbs/no-cxx-runtime.checked)
add_custom_command(OUTPUT ${MR_CACHE_PROOF} DEPENDS ibverbs
  COMMAND sh -c "! readelf -dW $<TARGET_FILE:ibverbs> | grep -E 'libstdc|libgcc_s'"
  COMMAND sh -c "readelf -SW $<FILTER:$<TARGET_OBJECTS:ibverbs>,INCLUDE,mr_cache_core> | grep -q '[.]eh_frame'"
  COMMAND sh -c "! ${CMAKE_NM} -D -u $<TARGET_FILE:ibverbs> | grep -E ' _Z|CXXABI|GLIBCXX'"
  COMMAND ${CMAKE_COMMAND} -E touch ${MR_CACHE_PROOF}
  COMMENT "Checking that libibverbs needs no C++ run time" VERBATIM)
add_custom_target(check-no-cxx-runtime ALL DEPENDS ${MR_CACHE_PROOF})
