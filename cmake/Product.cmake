# What users get.  It lies the same way in the build tree (build/PRESET/...) and, installed, below
# the prefix, so that nothing ever has to ask which of the two it runs from:
#
#   bin/verbena
#   lib/verbena/{libverbena.so.0, libibverbs.so.1, librdmacm.so.1, verbenad}
#   lib/verbena/adapter/libverbena.so.0
#
# The folders of client, adapter, agent, abi and cli each own theirs, in a CMakeLists.txt that
# src/CMakeLists.txt picks up as soon as it exists.  Complete examples:
#
#   # src/client/CMakeLists.txt: the engine, one per process; its border is C
#   vb_shared_library(verbena OUTPUT verbena SOVERSION 0 VERSION_SCRIPT libverbena.map FROM client)
#
#   # src/abi/CMakeLists.txt: ONLY picks objects by how the source's path in the layer begins, each
#   # library its own subfolder; the engine is libverbena.so.0, so vb_client is deliberately not linked: using more of it than its
#   # C border is a link error
#   vb_shared_library(ibverbs OUTPUT ibverbs SOVERSION 1 VERSION_SCRIPT libibverbs.map
#                     FROM abi ONLY "verbs/|common" LINK verbena vb_hca vb_ipc)
#
#   # src/agent/CMakeLists.txt and src/cli/CMakeLists.txt: programs, main.cc and the layer
#   vb_program(verbenad DIRECTORY lib/verbena SOURCES main.cc LINK vb_agent)
#   vb_program(verbena_cli OUTPUT verbena DIRECTORY bin SOURCES main.cc LINK vb_cli)
#
# There is one engine in a process: a product links either vb_client (then it carries the engine:
# the command line) or verbena (the drop-ins, native programs), and both is a configure error.
#
# A symbol leaves a library if its definition is marked [[gnu::visibility("default")]] and the
# version script names it; a name in the script that nobody defines is a link error.  Two versions
# of one function are made with
#   extern "C" __attribute__((visibility("default"), symver("f@@V2"))) int f_v2() { ... }
# in this spelling: GCC 12 ignores [[gnu::symver]] in C++ without a word, and asm(".symver") gets
# lost in LTO.  tests/tidy/exports.py checks what came out.

function(vb_check_one_engine TARGET)
  if(NOT "verbena" IN_LIST ARGN)
    return()
  endif()
  foreach(item IN LISTS ARGN)
    string(REGEX REPLACE "^vb_" "" layer ${item})
    get_property(may GLOBAL PROPERTY VB_LAYER_MAY_${layer})
    if(item STREQUAL "vb_client" OR "client" IN_LIST may)
      message(FATAL_ERROR "${TARGET}: links verbena, and ${item} brings a second engine")
    endif()
  endforeach()
endfunction()

# vb_shared_library(TARGET OUTPUT name SOVERSION n VERSION_SCRIPT file
#                   [FROM layer [ONLY regex]] [DIRECTORY dir] [SOURCES file...] [LINK target...])
# Takes whole objects of the layer, since a linker would leave out of an archive what nobody calls.
function(vb_shared_library TARGET)
  cmake_parse_arguments(PARSE_ARGV 1 P "" "OUTPUT;SOVERSION;VERSION_SCRIPT;FROM;ONLY;DIRECTORY" "SOURCES;LINK")
  foreach(needed IN ITEMS OUTPUT SOVERSION VERSION_SCRIPT)
    if(NOT DEFINED P_${needed})
      message(FATAL_ERROR "vb_shared_library(${TARGET}): ${needed} is missing")
    endif()
  endforeach()
  get_filename_component(script ${P_VERSION_SCRIPT} ABSOLUTE)

  set(objects "")
  if(P_FROM)
    get_target_property(kind vb_${P_FROM} TYPE)
    if(kind STREQUAL "INTERFACE_LIBRARY")
      message(FATAL_ERROR "vb_shared_library(${TARGET}): layer ${P_FROM} has no *.cc yet")
    endif()
    if(P_ONLY)  # an object is .../LAYER/SOURCE.o
      set(objects "$<FILTER:$<TARGET_OBJECTS:vb_${P_FROM}>,INCLUDE,/${P_FROM}/(${P_ONLY})[^/]*$>")
    else()
      set(objects "$<TARGET_OBJECTS:vb_${P_FROM}>")
      list(APPEND P_LINK vb_${P_FROM})  # for what it depends on; its own objects are in already
    endif()
  endif()

  add_library(${TARGET} SHARED ${P_SOURCES} ${objects})
  set_target_properties(${TARGET} PROPERTIES
    OUTPUT_NAME ${P_OUTPUT} SOVERSION ${P_SOVERSION} LINKER_LANGUAGE CXX
    LINK_DEPENDS ${script})
  target_link_options(${TARGET} PRIVATE
    LINKER:--version-script=${script} LINKER:--exclude-libs,ALL
    LINKER:--no-undefined-version LINKER:-z,defs LINKER:-z,nodelete)
  vb_check_one_engine(${TARGET} ${P_LINK})
  target_link_libraries(${TARGET} PRIVATE ${P_LINK})
  if(NOT P_DIRECTORY)
    set(P_DIRECTORY lib/verbena)
  endif()
  vb_drop_in_output(${TARGET} ${P_DIRECTORY})
  set_property(GLOBAL APPEND PROPERTY VB_SHARED_LIBRARIES ${TARGET})
endfunction()

# vb_program(TARGET [OUTPUT name] DIRECTORY dir SOURCES file... [LINK target...])
function(vb_program TARGET)
  cmake_parse_arguments(PARSE_ARGV 1 P "" "OUTPUT;DIRECTORY" "SOURCES;LINK")
  add_executable(${TARGET} ${P_SOURCES})
  if(P_OUTPUT)
    set_target_properties(${TARGET} PROPERTIES OUTPUT_NAME ${P_OUTPUT})
  endif()
  vb_check_one_engine(${TARGET} ${P_LINK})
  target_link_libraries(${TARGET} PRIVATE ${P_LINK})
  vb_drop_in_output(${TARGET} ${P_DIRECTORY})
endfunction()

# vb_drop_in_output(TARGET DIRECTORY): where the file goes, how it finds lib/verbena, and the
# runtime inside it.  DIRECTORY is bin or lib/verbena.
function(vb_drop_in_output TARGET DIRECTORY)
  set(rpath "$ORIGIN")
  if(DIRECTORY STREQUAL "bin")
    set(rpath "$ORIGIN/../lib/verbena")
  endif()
  set_target_properties(${TARGET} PROPERTIES
    RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/${DIRECTORY}
    LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/${DIRECTORY}
    BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH ${rpath})
  target_link_options(${TARGET} PRIVATE -fuse-ld=bfd
    LINKER:--enable-new-dtags LINKER:-z,relro LINKER:-z,now LINKER:--build-id)
  # Not libgcc: pthread_cancel() unwinds with the process's libgcc_s, and a second unwinder in a library
  # aborts at the first destructor on the way.
  if(VERBENA_STATIC_RUNTIME)
    target_link_options(${TARGET} PRIVATE -static-libstdc++)
  endif()
  install(TARGETS ${TARGET} RUNTIME DESTINATION ${DIRECTORY} LIBRARY DESTINATION ${DIRECTORY})
  set_property(GLOBAL APPEND PROPERTY VB_PRODUCTS ${TARGET})
endfunction()
