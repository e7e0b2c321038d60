#!/usr/bin/env bash
# Cross-compiles the programs and the unit tests in a Debian 12 root folder with arm64 libraries, and runs the tests
# under qemu-user. Usage: arm64.sh [GOOGLETEST OPTION...]
set -euo pipefail
export PKG_CONFIG_LIBDIR=/usr/lib/aarch64-linux-gnu/pkgconfig:/usr/share/pkgconfig
[ -f build/build.ninja ] || cmake -G Ninja -B build -DCMAKE_BUILD_TYPE=RelWithDebInfo --toolchain tests/on/arm64.cmake
cmake --build build --target programs unit_tests
file build/bin/mycojobs build/bin/mycojobs-*
# qemu-user emulates single system calls. It supports neither namespaces for its processes, nor seccomp, nor Landlock.
cannot=
qemu-aarch64-static build/bin/unit_tests --gtest_brief=1 "--gtest_filter=-$cannot" "$@"
