# Warnings, sanitizers, compiler cache and linker for every target.
find_program(CCACHE ccache)
# Paths below the source folder are hashed as relative ones, so that one cache serves every clone. Whoever needs objects that
# name their own folder sets CCACHE_BASEDIR (`./dev package` does).
if(CCACHE)
  set(launcher ${CCACHE})
  if(NOT DEFINED ENV{CCACHE_BASEDIR})
    set(launcher ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${CCACHE})
  endif()
  set(CMAKE_CXX_COMPILER_LAUNCHER ${launcher})
  set(CMAKE_C_COMPILER_LAUNCHER ${launcher})
endif()
add_compile_options(-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion -Wnon-virtual-dtor -Werror=return-type
                    -fno-omit-frame-pointer -fstack-protector-strong -D_FORTIFY_SOURCE=2 -D_GNU_SOURCE)
if(CMAKE_BUILD_TYPE STREQUAL "Debug")
  add_compile_options(-U_FORTIFY_SOURCE)
endif()
# One -g1 is enough for stack traces, and keeps builds on two cores short.
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g1")
# GCC looks for garbage of its own at each 128 MB; from 512 MB on it does so seldom, and takes a fifteenth less time.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_compile_options(--param=ggc-min-heapsize=524288)
endif()
option(MYCOJOBS_WERROR "Warnings are errors" OFF)
if(MYCOJOBS_WERROR)
  add_compile_options(-Werror)
endif()
# The JSON library checks its own invariants at every step, which is a tenth of the work of a job's end. Ours stay.
if(NOT CMAKE_BUILD_TYPE STREQUAL "Debug")
  add_compile_options("-DJSON_ASSERT(x)=static_cast<void>(0)")
endif()
add_link_options(-Wl,-z,relro,-z,now)
# Addresses that move with the program in a thirtieth of the space (glibc 2.36): pages of a table that is read once, at the start.
include(CheckLinkerFlag)
check_linker_flag(CXX -Wl,-z,pack-relative-relocs MYCOJOBS_PACKED_ADDRESSES)
if(MYCOJOBS_PACKED_ADDRESSES)
  add_link_options(-Wl,-z,pack-relative-relocs)
endif()
if(MYCOJOBS_SANITIZE)
  add_compile_options(-fsanitize=${MYCOJOBS_SANITIZE} -fno-sanitize-recover=all -U_FORTIFY_SOURCE)
  add_link_options(-fsanitize=${MYCOJOBS_SANITIZE})
endif()

# The program `fuzz` is libFuzzer's, which clang alone has (tests/fuzz/): every source tells it which ways were taken.
option(MYCOJOBS_FUZZ "Build fuzz with libFuzzer (clang)" OFF)
if(MYCOJOBS_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()

# Most of a file's compile time goes to what it includes and to templates of the JSON library: several files compiled as
# one cost less than half. Off for clang-tidy, and for whoever changes one file again and again.
option(MYCOJOBS_UNITY "Compile several files of a folder as one" ON)
# CMake's own unity builds include files by their absolute paths, so that objects in a compiler cache serve one clone only.
function(mj_unity name size)
  if(MYCOJOBS_UNITY)
    # Deferred until the target has all its sources; EVAL, since a deferred call reads variables when it runs.
    cmake_language(EVAL CODE "cmake_language(DEFER CALL mj_combine_sources ${name} ${size})")
  endif()
endfunction()

# Replaces the sources of a target by files that include up to `size` of them each. Generated sources, and sources with
# definitions of their own or with SKIP_UNITY_BUILD_INCLUSION, stay as they are.
function(mj_combine_sources name size)
  get_target_property(sources ${name} SOURCES)
  get_target_property(unity ${name} UNITY_BUILD)
  if(unity STREQUAL "OFF")
    return()
  endif()
  set(combined)
  set(separate)
  foreach(source ${sources})
    get_source_file_property(skip ${source} SKIP_UNITY_BUILD_INCLUSION)
    get_source_file_property(generated ${source} GENERATED)
    get_source_file_property(definitions ${source} COMPILE_DEFINITIONS)
    if(NOT source MATCHES "[.]cpp$" OR skip OR generated OR definitions)
      list(APPEND separate ${source})
    else()
      get_filename_component(path ${source} ABSOLUTE)
      file(RELATIVE_PATH path ${PROJECT_SOURCE_DIR} ${path})
      list(APPEND combined ${path})
    endif()
  endforeach()
  set(number 0)
  while(combined)
    list(SUBLIST combined 0 ${size} batch)
    list(REMOVE_ITEM combined ${batch})
    list(TRANSFORM batch REPLACE "(.+)" "#include \"\\1\"\n")
    list(JOIN batch "" text)
    set(file ${CMAKE_CURRENT_BINARY_DIR}/unity/${name}_${number}.cpp)
    file(CONFIGURE OUTPUT ${file} CONTENT "${text}" @ONLY)
    list(APPEND separate ${file})
    math(EXPR number "${number} + 1")
  endwhile()
  set_property(TARGET ${name} PROPERTY SOURCES ${separate})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
endfunction()

# mj_library(name sources... [LINKS libs...]): one folder, one static library.
function(mj_library name)
  cmake_parse_arguments(ARG "" "" "LINKS" ${ARGN})
  add_library(${name} STATIC ${ARG_UNPARSED_ARGUMENTS})
  target_link_libraries(${name} PUBLIC mj_include ${ARG_LINKS})
  mj_unity(${name} 12)
endfunction()

# mj_module(name [more sources...] [LINKS libs...]): the library of this folder and its sub-folders. The files directly in
# the folder come first, so that a unity file holds files of one sub-folder where possible.
function(mj_module name)
  file(GLOB sources CONFIGURE_DEPENDS *.cpp)
  file(GLOB entries CONFIGURE_DEPENDS LIST_DIRECTORIES true *)
  foreach(entry ${entries})
    if(IS_DIRECTORY ${entry})
      file(GLOB more CONFIGURE_DEPENDS ${entry}/*.cpp)
      list(APPEND sources ${more})
    endif()
  endforeach()
  mj_library(${name} ${sources} ${ARGN})
endfunction()
