// glibc 2.36 forgets to say that these are C.
#pragma once

extern "C" {
#include <sys/pidfd.h>
}
