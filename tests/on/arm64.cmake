# g++-aarch64-linux-gnu of Debian, with the libraries of arm64 beside those of the host (Debian's multiarch).
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_CROSSCOMPILING_EMULATOR /usr/bin/qemu-aarch64-static)
# The interpreter is the host's, which says where modules are; what is linked is the target's.
set(Python_LIBRARY /usr/lib/aarch64-linux-gnu/libpython3.11.so CACHE FILEPATH "")
set(Python_INCLUDE_DIR /usr/include/python3.11 CACHE PATH "")
