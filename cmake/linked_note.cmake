# Writes the source of the note that says what of the system is linked into a program (agent/base/linked_build.h):
#   cmake -DOUT=file.cpp -DELSE=program -DREADELF=readelf -DPAIRS=archive|library,... -DLIBRARIES=library,... -P linked_note.cmake
# PAIRS: an archive, and the shared library that must be of the same package. LIBRARIES: libraries whose archives are the compiler's.
# Run at each build, and writes only what has changed: packages keep their files' times, so that no time tells of an update.
cmake_minimum_required(VERSION 3.25)

# The installed library as the loader finds it: the folder of the file, the name that programs ask for.
function(find_installed library into)
  file(REAL_PATH ${library} file)
  execute_process(COMMAND ${READELF} -d ${file} OUTPUT_VARIABLE dynamic ERROR_QUIET)
  get_filename_component(folder ${file} DIRECTORY)
  if(dynamic MATCHES "SONAME[^[]*\\[([^]]+)\\]")
    set(${into} ${folder}/${CMAKE_MATCH_1} PARENT_SCOPE)
  else()
    set(${into} ${file} PARENT_SCOPE)
  endif()
endfunction()

function(read_build_id library into)
  execute_process(COMMAND ${READELF} -n ${library} OUTPUT_VARIABLE notes ERROR_QUIET)
  if(notes MATCHES "Build ID: ([0-9a-f]+)")
    set(${into} ${CMAKE_MATCH_1} PARENT_SCOPE)
  else()
    set(${into} none PARENT_SCOPE)
  endif()
endfunction()

# Source and version of the Debian package that a file is of. Packages name some files as they lay before /lib became /usr/lib.
function(find_package_of file into)
  file(REAL_PATH ${file} real)
  set(${into} "" PARENT_SCOPE)
  foreach(path ${file} ${real})
    string(REGEX REPLACE "^/usr/" "/" short ${path})
    foreach(name ${path} ${short} /usr${path})
      execute_process(COMMAND dpkg-query -S ${name} OUTPUT_VARIABLE found ERROR_QUIET RESULT_VARIABLE failed)
      if(failed EQUAL 0 AND found MATCHES "^([^,\n]+): /")
        execute_process(COMMAND dpkg-query -W -f "\${source:Package} \${Version}" ${CMAKE_MATCH_1} OUTPUT_VARIABLE version ERROR_QUIET)
        set(${into} ${version} PARENT_SCOPE)
        return()
      endif()
    endforeach()
  endforeach()
endfunction()

set(lines "else ${ELSE}")
set(hashes "")
string(REPLACE "," ";" PAIRS "${PAIRS}")
string(REPLACE "," ";" LIBRARIES "${LIBRARIES}")
foreach(pair ${PAIRS})
  string(REPLACE "|" ";" pair ${pair})
  list(GET pair 0 archive)
  list(GET pair 1 library)
  find_installed(${library} installed)
  read_build_id(${installed} id)
  list(APPEND lines "${id} ${installed}")
  find_package_of(${archive} of_archive)
  find_package_of(${installed} of_library)
  get_filename_component(name ${archive} NAME)
  if(NOT of_archive OR NOT of_archive STREQUAL of_library)
    list(APPEND lines "never ${name} was of another package (${of_archive}) than ${installed} (${of_library}) when it was linked")
    message(STATUS "${name} and ${installed} are not of the same package: the program with shared libraries will run")
  endif()
  file(SHA256 ${archive} hash)
  string(APPEND hashes "// ${hash} ${archive}\n")
endforeach()
foreach(library ${LIBRARIES})
  find_installed(${library} installed)
  read_build_id(${installed} id)
  list(APPEND lines "${id} ${installed}")
endforeach()

set(text "")
foreach(line ${lines})
  string(APPEND text "    \".ascii \\\"${line}\\\\n\\\"\\n\"\n")
endforeach()
file(CONFIGURE OUTPUT ${OUT} @ONLY CONTENT "// Written by cmake/linked_note.cmake, of archives with these hashes:
@hashes@asm(\".pushsection .note.mycojobs,\\\"a\\\",%note\\n\"
    \".balign 4\\n\"
    \".long 9, 2f-1f, 1\\n\"
    \".asciz \\\"mycojobs\\\"\\n\"
    \".balign 4\\n\"
    \"1:\\n\"
@text@    \"2:\\n\"
    \".balign 4\\n\"
    \".popsection\\n\");
")
