# bin/mycojobs, its helpers in libexec/mycojobs where it looks for them, and the units of systemd, which find them there.
include(GNUInstallDirs)
set(MYCOJOBS_CAPABILITIES
    "CAP_SYS_ADMIN CAP_SETUID CAP_SETGID CAP_SETPCAP CAP_DAC_OVERRIDE CAP_KILL CAP_SYS_RESOURCE CAP_SYS_NICE CAP_SYS_PTRACE")
install(TARGETS mycojobs RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(TARGETS mycojobs-launcher mycojobs-pyhost RUNTIME DESTINATION ${CMAKE_INSTALL_LIBEXECDIR}/mycojobs)
foreach(unit system user)
  set(source ${PROJECT_SOURCE_DIR}/systemd/mycojobs-agent.service.in)
  if(unit STREQUAL user)
    set(source ${PROJECT_SOURCE_DIR}/systemd/user/mycojobs-agent.service.in)
  endif()
  configure_file(${source} ${CMAKE_BINARY_DIR}/systemd/${unit}/mycojobs-agent.service @ONLY)
  install(FILES ${CMAKE_BINARY_DIR}/systemd/${unit}/mycojobs-agent.service
          DESTINATION lib/systemd/${unit})
endforeach()
