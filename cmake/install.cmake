# bin/mycojobs, its helpers in libexec/mycojobs where it looks for them, and the units of systemd, which name it.
install(TARGETS mycojobs RUNTIME DESTINATION bin)
add_custom_target(programs DEPENDS mycojobs)
foreach(helper mycojobs-launcher mycojobs-pyhost mycojobs-pyhost-shared mycojobs-luahost mycojobs-exechost mycojobs-egress mycojobs-pluginhost)
  if(TARGET ${helper})
    install(TARGETS ${helper} RUNTIME DESTINATION libexec/mycojobs)
    add_dependencies(programs ${helper})
  endif()
endforeach()
foreach(unit system/mycojobs-agent system/mycojobs-coordinator user/mycojobs-agent user/mycojobs-coordinator)
  set(template ${PROJECT_SOURCE_DIR}/systemd/${unit}.service.in)
  set(written ${CMAKE_BINARY_DIR}/systemd/${unit}.service)
  get_filename_component(whose ${unit} DIRECTORY)
  # Written when it is installed: the prefix may be another one then.
  install(CODE "set(MYCOJOBS_PROGRAM \"\${CMAKE_INSTALL_PREFIX}/bin/mycojobs\")
                configure_file(\"${template}\" \"${written}\" @ONLY)")
  install(FILES ${written} DESTINATION lib/systemd/${whose})
endforeach()

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
