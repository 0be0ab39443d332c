# What makes builds fast and has no say in what is built: ccache and a quick linker, where present.

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()

# Tests are linked by the quick linker.  Products never are (Product.cmake): symbol versions are
# their contract, so dev and release link them with the same GNU ld.
if(VERBENA_LINKER STREQUAL "auto")
  find_program(MOLD_PROGRAM mold)
  find_program(LLD_PROGRAM ld.lld)
  if(MOLD_PROGRAM)
    # mold 1.10 makes what is read-only after relocation begin with .tbss, behind the code; if the
    # code fills its page to the last bytes the program cannot be loaded.  So: on a page of its own.
    add_link_options(-fuse-ld=mold -Wl,-z,separate-code)
  elseif(LLD_PROGRAM)
    add_link_options(-fuse-ld=lld)
  endif()
elseif(VERBENA_LINKER)
  add_link_options(-fuse-ld=${VERBENA_LINKER})
endif()

# __FILE__ and source_location name files as a reader of the repository does.
add_compile_options(-fmacro-prefix-map=${CMAKE_SOURCE_DIR}/=)
