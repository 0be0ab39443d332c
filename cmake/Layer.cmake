# layer(NAME [PURE] [THREADS] [LONG_TESTS] [SLOW] [DATA_PATH] [BUILD_ID] [SEPARATE_OBJECTS] [DEPENDS layer...] [LINK target...]
#       [THREAD_TESTS file...])
#
# Declares src/NAME.  One folder is at once
#   the namespace   verbena::NAME
#   the target      vb_NAME, a static library (INTERFACE as long as the folder has no *.cc)
#   the test        NAME, run by ctest: src/NAME_test, made of the folder's *_test.cc
#   fuzz targets    fuzz.NAME.x, one for each x_fuzz.cc (see fuzz/CMakeLists.txt)
#
# DEPENDS names layers, and LINK names targets from outside.  A layer may include base, wire, the layers
# that DEPENDS names, and what those may include.  All of them must be declared above, so the table in
# src/CMakeLists.txt shows the architecture in order and has no cycle.  Tests of a layer may also use
# sim.  The test tidy.includes checks all this, because CMake cannot: all layers share the root src/.
# PURE says that the layer never touches the operating system; tidy.pure checks the object code.
#
# THREADS says that tests of the layer use threads.  Only these are built with ThreadSanitizer, which
# finds nothing in others.  THREAD_TESTS names the test files that use threads.  If it is given, only these
# are built with ThreadSanitizer, because the others would take long.  It must name each that uses std::thread.
#
# LONG_TESTS says that optimizing the layer's tests takes less time than it saves when they run.  Models and
# simulations run up to seven times as fast with -O1.
#
# SLOW says that the layer's speed does not matter.  VERBENA_SLOW_FLAGS let the compiler save time there.
#
# DATA_PATH says that libraries that programs load contain the layer, and that its speed matters there.  With
# VERBENA_LTO these libraries are optimized at link time.  Daemons and the command link the same objects without that,
# because it took a third of the build's processor time.
#
# BUILD_ID lets the layer's sources include verbena_build.h.
#
# VERBENA_SOURCES_AT_ONCE and VERBENA_TESTS_AT_ONCE let the compiler take that many sources, or tests,
# of a layer as one, which saves most of its time.  CMake's own UNITY_BUILD does the same, but its files
# contain absolute paths, so ccache would have to preprocess them to share results between checkouts.
# Names in unnamed namespaces must differ within a layer.
#
# SEPARATE_OBJECTS keeps one object for each source of the layer and its tests.  Then a product can choose
# objects by the names of their sources (Product.cmake), and names need to differ only within a file.
#
# A main.cc belongs to a product of the folder (Product.cmake), not to the layer.
#
# Subfolders only sort the files of a large layer: the layer stays one namespace, target and test,
# and includes name the whole path ("abi/verbs/ops.h").
function(layer NAME)
  cmake_parse_arguments(PARSE_ARGV 1 L "PURE;THREADS;LONG_TESTS;SLOW;DATA_PATH;BUILD_ID;SEPARATE_OBJECTS" "" "DEPENDS;LINK;THREAD_TESTS")
  if(L_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "layer(${NAME}): cannot read '${L_UNPARSED_ARGUMENTS}'")
  endif()
  if(TARGET vb_${NAME})
    message(FATAL_ERROR "layer(${NAME}): declared twice")
  endif()

  get_property(above GLOBAL PROPERTY VB_LAYERS)
  set(named ${L_DEPENDS})
  foreach(everyones IN ITEMS wire base)
    if(everyones IN_LIST above)
      list(APPEND named ${everyones})
    endif()
  endforeach()
  set(may "")
  foreach(dep IN LISTS named)
    if(NOT dep IN_LIST above)
      message(FATAL_ERROR "layer(${NAME}): '${dep}' is not declared above it")
    endif()
    get_property(may_of_dep GLOBAL PROPERTY VB_LAYER_MAY_${dep})
    list(APPEND may ${dep} ${may_of_dep})
  endforeach()
  list(REMOVE_DUPLICATES may)

  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${NAME}/*.cc)
  file(GLOB_RECURSE headers CONFIGURE_DEPENDS ${NAME}/*.h)
  file(GLOB_RECURSE tests CONFIGURE_DEPENDS ${NAME}/*_test.cc)
  list(FILTER sources EXCLUDE REGEX "(_test|_fuzz|/main)\\.cc$")

  set(kind INTERFACE)
  set(scope INTERFACE)
  if(sources)
    set(kind STATIC)
    set(scope PUBLIC)
  endif()
  set(compiled ${sources})
  if(VERBENA_SOURCES_AT_ONCE GREATER 1 AND NOT L_SEPARATE_OBJECTS)
    vb_join(compiled ${NAME} ${VERBENA_SOURCES_AT_ONCE} ${sources})
  endif()
  add_library(vb_${NAME} ${kind} ${compiled})
  target_include_directories(vb_${NAME} ${scope} ${CMAKE_CURRENT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include)
  if(L_BUILD_ID)
    target_include_directories(vb_${NAME} ${scope} ${VB_GENERATED})
    add_dependencies(vb_${NAME} vb_build_id)
  endif()
  if(headers)
    target_sources(vb_${NAME} ${scope} FILE_SET HEADERS BASE_DIRS ${CMAKE_CURRENT_SOURCE_DIR}
                   FILES ${headers})
  endif()
  list(TRANSFORM named PREPEND vb_ OUTPUT_VARIABLE dep_targets)
  target_link_libraries(vb_${NAME} ${scope} ${dep_targets} ${L_LINK})

  if(sources AND L_SLOW)
    separate_arguments(slow_flags UNIX_COMMAND "${VERBENA_SLOW_FLAGS}")
    target_compile_options(vb_${NAME} PRIVATE ${slow_flags})
  endif()

  if(sources AND L_DATA_PATH AND VERBENA_LTO)
    set(fat -ffat-lto-objects)  # the objects can also be linked without LTO
    if(L_SEPARATE_OBJECTS)
      set(fat -fno-fat-lto-objects)  # only libraries link them
    endif()
    target_compile_options(vb_${NAME} PRIVATE -flto=auto ${fat})
  endif()

  set_property(GLOBAL APPEND PROPERTY VB_LAYERS ${NAME})
  set_property(GLOBAL PROPERTY VB_LAYER_MAY_${NAME} ${may})
  if(L_PURE AND sources)
    set_property(GLOBAL APPEND PROPERTY VB_PURE_LAYERS ${NAME})
  endif()

  if(L_THREAD_TESTS)
    list(TRANSFORM L_THREAD_TESTS PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/${NAME}/)
    foreach(test IN LISTS tests)
      file(STRINGS ${test} threads REGEX "std::j?thread" LIMIT_COUNT 1)
      if(threads AND NOT test IN_LIST L_THREAD_TESTS)
        message(FATAL_ERROR "layer(${NAME}): ${test} uses threads, but THREAD_TESTS does not name it")
      endif()
    endforeach()
  endif()

  set(threads_only FALSE)
  if(VERBENA_SANITIZER STREQUAL "thread")
    set(threads_only TRUE)
    set_target_properties(vb_${NAME} PROPERTIES EXCLUDE_FROM_ALL ON)
    if(L_THREAD_TESTS)
      set(tests ${L_THREAD_TESTS})
    endif()
  endif()
  if(tests AND VERBENA_TESTS AND (L_THREADS OR NOT threads_only))
    set(joined FALSE)
    if(VERBENA_TESTS_AT_ONCE GREATER 1 AND NOT L_SEPARATE_OBJECTS)
      set(joined TRUE)
      vb_join(tests ${NAME}_test ${VERBENA_TESTS_AT_ONCE} ${tests})
    endif()
    add_executable(${NAME}_test ${tests})
    if(joined)
      # In files that are compiled as one, a name of one file may hide a name of another.
      target_compile_options(${NAME}_test PRIVATE -Wno-shadow)
    endif()
    target_link_libraries(${NAME}_test PRIVATE vb_${NAME} vb_sim GTest::gmock_main)
    set(test_flags ${VERBENA_TEST_FLAGS})
    if(L_LONG_TESTS)
      set(test_flags ${VERBENA_LONG_TEST_FLAGS})
    endif()
    separate_arguments(test_flags UNIX_COMMAND "${test_flags}")
    target_compile_options(${NAME}_test PRIVATE ${test_flags})
    vb_add_test(${NAME} COMMAND ${NAME}_test)
    set_tests_properties(${NAME} PROPERTIES TIMEOUT ${VERBENA_TEST_TIMEOUT}
                         ENVIRONMENT "VB_SOURCE=${PROJECT_SOURCE_DIR}")
  endif()
endfunction()

# vb_join(VARIABLE NAME AT_ONCE SOURCE...) replaces the sources in VARIABLE by files of the build tree that
# include up to AT_ONCE of them each.
function(vb_join VARIABLE NAME AT_ONCE)
  set(joined "")
  list(LENGTH ARGN left)
  set(next 0)
  set(number 1)
  while(next LESS left)
    list(SUBLIST ARGN ${next} ${AT_ONCE} batch)
    set(text "")
    foreach(source IN LISTS batch)
      file(RELATIVE_PATH name ${CMAKE_CURRENT_SOURCE_DIR} ${source})
      string(APPEND text "#include \"${name}\"\n")
    endforeach()
    set(file ${CMAKE_CURRENT_BINARY_DIR}/joined/${NAME}_${number}.cc)
    file(CONFIGURE OUTPUT ${file} CONTENT "${text}" @ONLY)
    list(APPEND joined ${file})
    math(EXPR next "${next} + ${AT_ONCE}")
    math(EXPR number "${number} + 1")
  endwhile()
  set(${VARIABLE} ${joined} PARENT_SCOPE)
endfunction()
