# bin/mycojobs, its helpers in libexec/mycojobs where it looks for them, and the units of systemd, which name it.
install(TARGETS mycojobs RUNTIME DESTINATION bin)
add_custom_target(programs DEPENDS mycojobs)
foreach(helper mycojobs-launcher mycojobs-pyhost mycojobs-pyhost-shared mycojobs-luahost mycojobs-exechost mycojobs-egress mycojobs-pluginhost
               mycojobs-workflowhost)
  if(TARGET ${helper})
    install(TARGETS ${helper} RUNTIME DESTINATION libexec/mycojobs)
    add_dependencies(programs ${helper})
  endif()
endforeach()
# The template mycojobs-agent@20 is the unit mycojobs-agent with the runner's number in its name.
foreach(unit system/mycojobs-agent system/mycojobs-agent@ system/mycojobs-coordinator user/mycojobs-agent user/mycojobs-coordinator)
  string(REPLACE "@" "" template ${PROJECT_SOURCE_DIR}/systemd/${unit}.service.in)
  set(written ${CMAKE_BINARY_DIR}/systemd/${unit}.service)
  get_filename_component(whose ${unit} DIRECTORY)
  set(of "")
  set(runner "")
  if(unit MATCHES "@$")
    set(of ", runner %i")
    set(runner " --runner %i")
  endif()
  # Written when it is installed: the prefix may be another one then.
  install(CODE "set(MYCOJOBS_PROGRAM \"\${CMAKE_INSTALL_PREFIX}/bin/mycojobs\")
                set(MYCOJOBS_OF \"${of}\")
                set(MYCOJOBS_RUNNER \"${runner}\")
                configure_file(\"${template}\" \"${written}\" @ONLY)")
  install(FILES ${written} DESTINATION lib/systemd/${whose})
endforeach()

# Man pages and completions, which the program makes of its own tables: `mycojobs man-page`, `mycojobs completion`. Without
# scdoc there are no man pages. A program for another machine than this one cannot be asked.
if(NOT CMAKE_CROSSCOMPILING)
  find_program(SCDOC scdoc)
  set(pages ${CMAKE_BINARY_DIR}/pages)
  file(MAKE_DIRECTORY ${pages})
  set(made "")
  foreach(shell bash zsh)
    add_custom_command(OUTPUT ${pages}/completion.${shell} DEPENDS mycojobs VERBATIM
                       COMMAND mycojobs completion ${shell} > ${pages}/completion.${shell})
    list(APPEND made ${pages}/completion.${shell})
  endforeach()
  if(SCDOC)
    foreach(page mycojobs.1 mycojobs-agent.8 mycojobs-coordinator.8 mycojobs.toml.5)
      add_custom_command(OUTPUT ${pages}/${page} DEPENDS mycojobs VERBATIM
                         COMMAND mycojobs man-page ${page} > ${pages}/${page}.scd
                         COMMAND ${SCDOC} < ${pages}/${page}.scd > ${pages}/${page})
      string(REGEX REPLACE ".*\\." "" section ${page})
      list(APPEND made ${pages}/${page})
      install(FILES ${pages}/${page} DESTINATION share/man/man${section} OPTIONAL)
    endforeach()
  endif()
  add_custom_target(pages DEPENDS ${made})
  add_dependencies(programs pages)
  install(FILES ${pages}/completion.bash DESTINATION share/bash-completion/completions RENAME mycojobs OPTIONAL)
  install(FILES ${pages}/completion.zsh DESTINATION share/zsh/site-functions RENAME _mycojobs OPTIONAL)
else()
  add_custom_target(pages)
endif()

# What plugins are built against: one header and find_package(mycojobs).
include(CMakePackageConfigHelpers)
add_library(plugin INTERFACE)
target_include_directories(plugin INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:include>)
install(TARGETS plugin EXPORT mycojobsTargets)
install(FILES ${PROJECT_SOURCE_DIR}/include/mycojobs/plugin.h DESTINATION include/mycojobs)
install(EXPORT mycojobsTargets NAMESPACE mycojobs:: DESTINATION lib/cmake/mycojobs)
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/mycojobsConfig.cmake.in ${CMAKE_BINARY_DIR}/mycojobsConfig.cmake
                              INSTALL_DESTINATION lib/cmake/mycojobs)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/mycojobsConfigVersion.cmake COMPATIBILITY SameMajorVersion
                                 ARCH_INDEPENDENT)
install(FILES ${CMAKE_BINARY_DIR}/mycojobsConfig.cmake ${CMAKE_BINARY_DIR}/mycojobsConfigVersion.cmake
        DESTINATION lib/cmake/mycojobs)
