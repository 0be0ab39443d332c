# Makes builds faster without changing their results: uses ccache and a fast linker if they are installed.

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()

# The fast linker links tests, but not products (Product.cmake).  Products depend on symbol versions, so
# all presets link them with GNU ld.
if(VERBENA_LINKER STREQUAL "auto")
  find_program(MOLD_PROGRAM mold)
  find_program(LLD_PROGRAM ld.lld)
  if(MOLD_PROGRAM)
    # mold 1.10 puts .tbss, the beginning of the RELRO segment, right after the code.  If the code ends
    # near the end of a page, the program cannot be loaded.  So the code gets pages of its own.
    add_link_options(-fuse-ld=mold -Wl,-z,separate-code)
  elseif(LLD_PROGRAM)
    add_link_options(-fuse-ld=lld)
  endif()
elseif(VERBENA_LINKER)
  add_link_options(-fuse-ld=${VERBENA_LINKER})
endif()

# Makes __FILE__ and source_location name files relative to the repository.
add_compile_options(-fmacro-prefix-map=${CMAKE_SOURCE_DIR}/=)
