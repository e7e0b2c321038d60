# Debian's g++-aarch64-linux-gnu, with the arm64 libraries installed beside those of the host (multiarch).
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_CROSSCOMPILING_EMULATOR /usr/bin/qemu-aarch64-static)
# The host's interpreter reports where modules are; the target's library is linked.
set(Python_LIBRARY /usr/lib/aarch64-linux-gnu/libpython3.11.so CACHE FILEPATH "")
set(Python_INCLUDE_DIR /usr/include/python3.11 CACHE PATH "")
