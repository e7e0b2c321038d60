// The header of glibc 2.36 lacks the C linkage of these functions.
#pragma once

extern "C" {
#include <sys/pidfd.h>
}
