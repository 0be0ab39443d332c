# vb_add_test(NAME COMMAND program argument...)
#
# Adds a test that leaves its wall and processor time in build/PRESET/times/NAME, for the table of .ci/run.  The program
# may be a target.  All tests are added by this function, so that ctest knows their costs in a clean clone, too:
# tests/costs.txt has the times of an earlier run in preset dev.  ctest starts the longest tests first.
#
# `ctest -j` counts quarters of a processor (scripts/test): a test that computes counts as two jobs, and a test that
# mostly waits counts as one.  So many tests wait at a time, and few compute.  Tests that compute start first.  They do
# not count as four jobs, because ctest does not reserve processors: such a test would wait until few tests are left.
set(vb_costs_file ${PROJECT_SOURCE_DIR}/tests/costs.txt)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${vb_costs_file})
file(STRINGS ${vb_costs_file} lines REGEX "^[^#]")
foreach(line IN LISTS lines)
  if(NOT line MATCHES "^([^ ]+) +([0-9]+) +([0-9]+)$")
    message(FATAL_ERROR "${vb_costs_file}: cannot read '${line}'")
  endif()
  set(vb_wall_${CMAKE_MATCH_1} ${CMAKE_MATCH_2})
  set(vb_processor_${CMAKE_MATCH_1} ${CMAKE_MATCH_3})
endforeach()
file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/times)

function(vb_add_test NAME)
  cmake_parse_arguments(PARSE_ARGV 1 T "" "" "COMMAND")
  list(POP_FRONT T_COMMAND program)
  if(TARGET ${program})
    set(program $<TARGET_FILE:${program}>)
  endif()
  add_test(NAME ${NAME}
           COMMAND ${PROJECT_SOURCE_DIR}/tests/measured ${PROJECT_BINARY_DIR}/times/${NAME} ${program} ${T_COMMAND})
  set(jobs 1)
  set(wall 0)
  if(vb_wall_${NAME})
    set(wall ${vb_wall_${NAME}})
    math(EXPR percent "${vb_processor_${NAME}} * 100 / ${wall}")
    if(percent GREATER 60)
      set(jobs 2)
      math(EXPR wall "${wall} + 10000")
    endif()
  endif()
  set_tests_properties(${NAME} PROPERTIES COST ${wall} PROCESSORS ${jobs})
endfunction()
