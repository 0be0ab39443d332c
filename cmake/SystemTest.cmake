# system_test(NAME COMMAND program argument... [TIMEOUT seconds] [SERIAL] [PLAIN] [FIXTURE name])
#
# Adds system.NAME to ctest, a test of the built products.  It runs in user, network and process
# namespaces of its own (scripts/isolated), so that several tests can run at a time, each with its own
# agent and port 4791.  SERIAL runs it without any other test.  PLAIN leaves it out of preset asan: it
# finds no memory errors, cannot run with AddressSanitizer's runtime, or takes long there and runs code
# that other tests run there.  FIXTURE runs it after the tests that set this fixture up.
#
# The test has these variables:
#
#   VB_PREFIX      the directory with bin/verbena and lib/verbena/
#   VB_SOURCE      the repository
#   VB_PRELOAD     the beginning of LD_PRELOAD for programs that load Verbena's libraries: the
#                  sanitizer's runtime in preset asan, else empty
#
# PATH begins with the directory of the Python interpreter, if python3 is a script that starts the
# interpreter.  Such a script (pyenv has one) needs half a second, and 3 s with a sanitizer's runtime.
#
# Exit code 77 means that it cannot run here; the last line of the output is the reason.  Preset tsan has
# no system tests, because unmodified programs cannot load the runtime of ThreadSanitizer.
#
# tests/CMakeLists.txt calls this for each tests/system/NAME.sh and NAME.py.
function(system_test NAME)
  cmake_parse_arguments(PARSE_ARGV 1 T "SERIAL;PLAIN" "TIMEOUT;FIXTURE" "COMMAND")
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
    set(preload ${VERBENA_ASAN_RUNTIME})
    set(link ";VERBENA_LINK=udp")  # other presets run the tests with the default, which is lane
  endif()
  vb_add_test(system.${NAME} COMMAND ${PROJECT_SOURCE_DIR}/scripts/isolated ${T_COMMAND})
  set_tests_properties(system.${NAME} PROPERTIES
    TIMEOUT ${T_TIMEOUT} SKIP_RETURN_CODE 77 LABELS system
    ENVIRONMENT "VB_PREFIX=${PROJECT_BINARY_DIR};VB_SOURCE=${PROJECT_SOURCE_DIR};VB_PRELOAD=${preload}${link}")
  if(VERBENA_PYTHON_PATH)
    set_tests_properties(system.${NAME} PROPERTIES
      ENVIRONMENT_MODIFICATION "PATH=path_list_prepend:${VERBENA_PYTHON_PATH}")
  endif()
  if(T_FIXTURE)
    set_tests_properties(system.${NAME} PROPERTIES FIXTURES_REQUIRED ${T_FIXTURE})
  endif()
  if(T_SERIAL)
    set_tests_properties(system.${NAME} PROPERTIES RUN_SERIAL ON)
  endif()
endfunction()

# Sets the directory of the Python interpreter, or nothing if python3 is no script.
set(VERBENA_PYTHON_PATH "")
find_program(VERBENA_PYTHON python3)
if(VERBENA_PYTHON)
  file(READ ${VERBENA_PYTHON} begins_with LIMIT 2 HEX)
  if(begins_with STREQUAL "2321")  # "#!"
    execute_process(COMMAND ${VERBENA_PYTHON} -c "import os, sys; print(os.path.dirname(sys.executable))"
                    OUTPUT_VARIABLE VERBENA_PYTHON_PATH OUTPUT_STRIP_TRAILING_WHITESPACE)
  endif()
endif()
