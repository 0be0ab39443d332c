# Builds and installs the products.  They have the same paths in the build tree (build/PRESET/...) and
# in the installation prefix, so that no program needs to know which of the two it runs from:
#
#   bin/verbena
#   lib/verbena/{libverbena.so.0, libibverbs.so.1, librdmacm.so.1, verbenad}
#   lib/verbena/adapter/libverbena.so.0
#
# Each product has a CMakeLists.txt in the folder of its layer, which src/CMakeLists.txt adds.  These are
# examples:
#
#   # src/client/CMakeLists.txt: the engine, of which a process has one, behind a C API
#   vb_shared_library(verbena OUTPUT verbena SOVERSION 0 VERSION_SCRIPT libverbena.map FROM client)
#
#   # src/abi/CMakeLists.txt: ONLY chooses objects by the beginning of the source's path in the layer,
#   # because each library has its own subfolder.  vb_client is not linked on purpose: these libraries
#   # use libverbena.so.0, and any use beyond its C API is a link error
#   vb_shared_library(ibverbs OUTPUT ibverbs SOVERSION 1 VERSION_SCRIPT libibverbs.map
#                     FROM abi ONLY "verbs/|common" LINK verbena vb_hca vb_ipc)
#
#   # src/agent/CMakeLists.txt and src/cli/CMakeLists.txt: programs of main.cc and the layer
#   vb_program(verbenad DIRECTORY lib/verbena SOURCES main.cc LINK vb_agent)
#   vb_program(verbena_cli OUTPUT verbena DIRECTORY bin SOURCES main.cc LINK vb_cli)
#
# A process has one engine.  So a product links either vb_client, which contains the engine, as the
# command line does, or verbena, as the drop-in libraries do.  Linking both is an error of configure.
#
# A library exports a symbol if its definition is marked [[gnu::visibility("default")]] and the version
# script names it.  A name in the script without a definition is a link error.  A second version of a
# function needs this spelling:
#   extern "C" __attribute__((visibility("default"), symver("f@@V2"))) int f_v2() { ... }
# The others fail silently: GCC 12 ignores [[gnu::symver]] in C++, and LTO loses asm(".symver").
# tests/tidy/exports.py checks the exported symbols.

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
# Links whole objects of the layer, because from an archive the linker takes only objects that are used.
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
    if(P_ONLY)  # the path of an object is .../LAYER/SOURCE.o
      set(objects "$<FILTER:$<TARGET_OBJECTS:vb_${P_FROM}>,INCLUDE,/${P_FROM}/(${P_ONLY})[^/]*$>")
    else()
      set(objects "$<TARGET_OBJECTS:vb_${P_FROM}>")
      list(APPEND P_LINK vb_${P_FROM})  # adds the dependencies of the layer, whose objects are already there
    endif()
  endif()

  add_library(${TARGET} SHARED ${P_SOURCES} ${objects})
  set_target_properties(${TARGET} PROPERTIES
    OUTPUT_NAME ${P_OUTPUT} SOVERSION ${P_SOVERSION} LINKER_LANGUAGE CXX
    LINK_DEPENDS ${script})
  target_link_options(${TARGET} PRIVATE
    LINKER:--version-script=${script} LINKER:--exclude-libs,ALL
    LINKER:--no-undefined-version LINKER:-z,defs LINKER:-z,nodelete)
  if(VERBENA_LTO)
    target_link_options(${TARGET} PRIVATE -flto=auto -O2)
  endif()
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
  separate_arguments(slow_flags UNIX_COMMAND "${VERBENA_SLOW_FLAGS}")
  target_compile_options(${TARGET} PRIVATE ${slow_flags})  # a main.cc only reads the command line
  if(P_OUTPUT)
    set_target_properties(${TARGET} PROPERTIES OUTPUT_NAME ${P_OUTPUT})
  endif()
  if(VERBENA_LTO)
    target_link_options(${TARGET} PRIVATE -fno-lto)  # GCC would use LTO, because some objects have data for it
  endif()
  vb_check_one_engine(${TARGET} ${P_LINK})
  target_link_libraries(${TARGET} PRIVATE ${P_LINK})
  vb_drop_in_output(${TARGET} ${P_DIRECTORY})
endfunction()

# vb_drop_in_output(TARGET DIRECTORY) sets the directory of the file, its path to lib/verbena, and
# whether it contains the C++ runtime.  DIRECTORY is bin or lib/verbena.
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
  # libgcc stays shared: pthread_cancel() unwinds with the libgcc_s of the process, and another unwinder in
  # a library would abort at the first destructor.
  if(VERBENA_STATIC_RUNTIME)
    target_link_options(${TARGET} PRIVATE -static-libstdc++)
  endif()
  install(TARGETS ${TARGET} RUNTIME DESTINATION ${DIRECTORY} LIBRARY DESTINATION ${DIRECTORY})
  set_property(GLOBAL APPEND PROPERTY VB_PRODUCTS ${TARGET})
endfunction()
