# Makes builds faster without changing their results: uses ccache and a fast linker if they are installed.

# Two checkouts share results, because ccache makes paths below the base directory relative and ignores the working
# directory.  A debugger may then show the folder of the checkout that compiled the file first.
find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${CCACHE_PROGRAM})
  set(CMAKE_C_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
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

# Finds the runtime of AddressSanitizer.  It is a shared library, because system tests preload it into programs that are
# not instrumented.
if(VERBENA_SANITIZER STREQUAL "address")
  set(runtime libasan.so)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    set(runtime libclang_rt.asan-${CMAKE_SYSTEM_PROCESSOR}.so)
  endif()
  execute_process(COMMAND ${CMAKE_CXX_COMPILER} -print-file-name=${runtime}
                  OUTPUT_VARIABLE VERBENA_ASAN_RUNTIME OUTPUT_STRIP_TRAILING_WHITESPACE)
  get_filename_component(VERBENA_ASAN_RUNTIME ${VERBENA_ASAN_RUNTIME} REALPATH)
  if(NOT EXISTS ${VERBENA_ASAN_RUNTIME})
    message(FATAL_ERROR "${CMAKE_CXX_COMPILER} has no ${runtime}")
  endif()
  get_filename_component(runtime_directory ${VERBENA_ASAN_RUNTIME} DIRECTORY)
  add_link_options(LINKER:-rpath,${runtime_directory})
endif()

# Makes __FILE__ and source_location name files relative to the repository.
add_compile_options(-fmacro-prefix-map=${CMAKE_SOURCE_DIR}/=)
