include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

# Installed programs find the libtorch that they were built against, without LD_LIBRARY_PATH.
set(installed_rpath "$ORIGIN/../lib;${Libtorch_ROOT_DIR}/lib")
set_target_properties(shadowgraph PROPERTIES INSTALL_RPATH "${installed_rpath}")
install(TARGETS shadowgraph EXPORT shadowgraphTargets LIBRARY DESTINATION lib ARCHIVE DESTINATION lib)
if(SHADOWGRAPH_BUILD_TOOL OR SHADOWGRAPH_BUILD_PYTHON)
  set_target_properties(shadowgraph_tool PROPERTIES INSTALL_RPATH "${installed_rpath}")
  install(TARGETS shadowgraph_tool RUNTIME DESTINATION bin)
endif()

install(DIRECTORY include/shadowgraph DESTINATION include)
install(FILES LICENSE DESTINATION share/doc/shadowgraph OPTIONAL)

set(config_folder lib/cmake/shadowgraph)
install(EXPORT shadowgraphTargets NAMESPACE shadowgraph:: DESTINATION ${config_folder})
configure_package_config_file(cmake/shadowgraphConfig.cmake.in ${PROJECT_BINARY_DIR}/shadowgraphConfig.cmake
  INSTALL_DESTINATION ${config_folder})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/shadowgraphConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/shadowgraphConfig.cmake ${PROJECT_BINARY_DIR}/shadowgraphConfigVersion.cmake
  cmake/FindLibtorch.cmake DESTINATION ${config_folder})
