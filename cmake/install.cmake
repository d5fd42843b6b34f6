# `cmake --install` and `cpack -G DEB` install the program, its man page, completions of shells, the demo pair, the
# dashboard, the Helm chart, units for systemd, and the documents.
include(GNUInstallDirs)
set(share ${CMAKE_INSTALL_DATADIR}/outrider)

install(TARGETS outrider)
# The man page and the units name the prefix, which is known at the installation.
foreach(page IN ITEMS "outrider.1 ${CMAKE_INSTALL_MANDIR}/man1" "outrider.service lib/systemd/system"
                      "outrider-draft-worker.service lib/systemd/system")
  string(REPLACE " " ";" page ${page})
  list(GET page 0 name)
  list(GET page 1 folder)
  install(CODE "
    set(OUTRIDER_BIN \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_BINDIR}\")
    set(OUTRIDER_SHARE \"\${CMAKE_INSTALL_PREFIX}/${share}\")
    set(OUTRIDER_DOC \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_DOCDIR}\")
    set(OUTRIDER_VERSION ${PROJECT_VERSION})
    set(file \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${folder}/${name}\")
    message(STATUS \"Installing: \${file}\")
    configure_file(\"${PROJECT_SOURCE_DIR}/launch/share/${name}\" \"\${file}\" @ONLY)")
endforeach()
install(DIRECTORY launch/demo_pair DESTINATION ${share} PATTERN "*.py" EXCLUDE)
install(FILES serve/grafana_dashboard.json DESTINATION ${share})
install(DIRECTORY launch/share/helm DESTINATION ${share})
install(FILES README.md CHANGELOG.md LICENSE NOTICE SECURITY.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DOCDIR})

# The built program writes its completions.
set(program ${PROJECT_BINARY_DIR}/outrider)
set(completions
  "bash ${CMAKE_INSTALL_DATADIR}/bash-completion/completions/outrider"
  "zsh ${CMAKE_INSTALL_DATADIR}/zsh/site-functions/_outrider"
  "fish ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d/outrider.fish")
foreach(completion IN LISTS completions)
  string(REPLACE " " ";" completion ${completion})
  list(GET completion 0 shell)
  list(GET completion 1 file)
  install(CODE "
    set(file \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${file}\")
    message(STATUS \"Installing: \${file}\")
    execute_process(COMMAND \"${program}\" completion ${shell} OUTPUT_VARIABLE script COMMAND_ERROR_IS_FATAL ANY)
    file(WRITE \"\${file}\" \"\${script}\")")
endforeach()

set(CPACK_PACKAGE_NAME outrider)
set(CPACK_PACKAGE_VENDOR "The Outrider authors")
set(CPACK_PACKAGE_CONTACT "The Outrider authors <outrider@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Speculative decoding of language models on CPUs, GPUs and clusters")
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_SET_DESTDIR ON)
set(CPACK_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_GENERATOR DEB)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "openmpi-bin")
include(CPack)
