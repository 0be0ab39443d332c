# system_test(NAME COMMAND program argument... [TIMEOUT seconds] [SERIAL] [PLAIN])
#
# A test of the built products from outside, as ctest's system.NAME.  It runs in user, network and
# process namespaces of its own (scripts/isolated), so its agent, its port 4791 and its left-overs
# are nobody else's and several run at a time; SERIAL keeps every other test away.  PLAIN leaves the
# test out of preset asan: it finds no errors of memory, or cannot run with AddressSanitizer's runtime.
# It finds
#
#   VB_PREFIX      the tree with bin/verbena and lib/verbena/
#   VB_SOURCE      the repository
#   VB_PRELOAD     what LD_PRELOAD must begin with in programs that load our libraries: the
#                  sanitizer's runtime in preset asan, else empty
#
# and says by exit code 77 that it cannot run here, with the reason as its last line.
# In preset tsan there are none: a program that is not built for it cannot load its runtime.
#
# Most need no call: every tests/system/NAME.sh and NAME.py is one (tests/CMakeLists.txt).
function(system_test NAME)
  cmake_parse_arguments(PARSE_ARGV 1 T "SERIAL;PLAIN" "TIMEOUT" "COMMAND")
  if(VERBENA_SANITIZER STREQUAL "thread" OR NOT VERBENA_PRODUCTS OR (T_PLAIN AND VERBENA_SANITIZER))
    return()
  endif()
  if(NOT T_TIMEOUT)
    set(T_TIMEOUT ${VERBENA_TEST_TIMEOUT})
  endif()
  if(T_TIMEOUT LESS VERBENA_TIMEOUT_MIN)
    set(T_TIMEOUT ${VERBENA_TIMEOUT_MIN})
  endif()
  set(preload "")
  set(link "")
  if(VERBENA_SANITIZER STREQUAL "address")
    execute_process(COMMAND ${CMAKE_CXX_COMPILER} -print-file-name=libasan.so
                    OUTPUT_VARIABLE preload OUTPUT_STRIP_TRAILING_WHITESPACE)
    get_filename_component(preload ${preload} REALPATH)
    set(link ";VERBENA_LINK=udp")  # other presets run the tests with the default, which is lane
  endif()
  add_test(NAME system.${NAME} COMMAND ${PROJECT_SOURCE_DIR}/scripts/isolated ${T_COMMAND})
  set_tests_properties(system.${NAME} PROPERTIES
    TIMEOUT ${T_TIMEOUT} SKIP_RETURN_CODE 77 LABELS system
    ENVIRONMENT "VB_PREFIX=${PROJECT_BINARY_DIR};VB_SOURCE=${PROJECT_SOURCE_DIR};VB_PRELOAD=${preload}${link}")
  if(T_SERIAL)
    set_tests_properties(system.${NAME} PROPERTIES RUN_SERIAL ON)
  endif()
endfunction()
