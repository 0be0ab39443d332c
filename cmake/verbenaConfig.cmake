# Lets find_package(verbena) define the target verbena::verbena: the C++ API and its library.
get_filename_component(prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
if(NOT TARGET verbena::verbena)
  add_library(verbena::verbena SHARED IMPORTED)
  set_target_properties(verbena::verbena PROPERTIES
    IMPORTED_LOCATION "${prefix}/lib/verbena/libverbena.so.0"
    IMPORTED_SONAME libverbena.so.0
    INTERFACE_INCLUDE_DIRECTORIES "${prefix}/include"
    INTERFACE_COMPILE_FEATURES cxx_std_23)
endif()
