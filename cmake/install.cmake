# bin/mycojobs, its helpers in libexec/mycojobs where it looks for them, and the units of systemd, which name it.
install(TARGETS mycojobs RUNTIME DESTINATION bin)
install(TARGETS mycojobs-launcher mycojobs-pyhost RUNTIME DESTINATION libexec/mycojobs)
foreach(unit system user)
  set(template ${PROJECT_SOURCE_DIR}/systemd/${unit}/mycojobs-agent.service.in)
  set(written ${CMAKE_BINARY_DIR}/systemd/${unit}/mycojobs-agent.service)
  # Written when it is installed: the prefix may be another one then.
  install(CODE "set(MYCOJOBS_PROGRAM \"\${CMAKE_INSTALL_PREFIX}/bin/mycojobs\")
                configure_file(\"${template}\" \"${written}\" @ONLY)")
  install(FILES ${written} DESTINATION lib/systemd/${unit})
endforeach()
