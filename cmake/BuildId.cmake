# Makes VB_BUILD_ID, by which program and agent check that they are of one build, because the format of
# their messages belongs to the build.  The id is a hash of the product's sources.  It is in a header of
# its own, verbena_build.h, because it changes with every source.
#
# Run as a script (-P), this file makes the header.  Included, it declares the rule.
if(CMAKE_SCRIPT_MODE_FILE)
  file(GLOB_RECURSE sources LIST_DIRECTORIES false ${SOURCE}/src/*.h ${SOURCE}/src/*.cc
       ${SOURCE}/src/*.map)
  list(FILTER sources EXCLUDE REGEX "_(test|fuzz)\\.cc$")
  list(SORT sources)
  set(all "")
  foreach(source IN LISTS sources)
    file(SHA1 ${source} hash)
    string(APPEND all ${hash})
  endforeach()
  string(SHA1 id "${all}")
  string(SUBSTRING ${id} 0 12 id)
  file(CONFIGURE OUTPUT ${OUTPUT} @ONLY CONTENT [[
#pragma once

#define VB_VERSION "@VERSION@"
#define VB_BUILD_ID "@VERSION@-@id@"

// Returns VB_BUILD_ID.  The compiler does not see the text here, and so does not copy it into instructions.  Then
// tests/system/versions.sh can make another build: it replaces the text in the files of this build.
inline const char* verbena_build_id() {
  const char* id = VB_BUILD_ID;
  __asm__("" : "+r"(id));
  return id;
}
]])
  return()
endif()

set(VB_GENERATED ${PROJECT_BINARY_DIR}/generated)
file(GLOB_RECURSE vb_product_sources CONFIGURE_DEPENDS
     ${PROJECT_SOURCE_DIR}/src/*.h ${PROJECT_SOURCE_DIR}/src/*.cc ${PROJECT_SOURCE_DIR}/src/*.map)
add_custom_command(
  OUTPUT ${VB_GENERATED}/stamp BYPRODUCTS ${VB_GENERATED}/verbena_build.h
  COMMAND ${CMAKE_COMMAND} -DSOURCE=${PROJECT_SOURCE_DIR} -DVERSION=${PROJECT_VERSION}
          -DOUTPUT=${VB_GENERATED}/verbena_build.h -P ${PROJECT_SOURCE_DIR}/cmake/BuildId.cmake
  COMMAND ${CMAKE_COMMAND} -E touch ${VB_GENERATED}/stamp
  DEPENDS ${vb_product_sources} ${PROJECT_SOURCE_DIR}/cmake/BuildId.cmake
  COMMENT "Build id" VERBATIM)
add_custom_target(vb_build_id DEPENDS ${VB_GENERATED}/stamp)
