// Where Lua's library would ask the machine, it is answered here. The library is linked into the program, and the
// linker (--wrap, CMakeLists.txt) sends these calls of it to us:
//
//   luaS_hash in lua_newstate   the seed of the hashes of strings: made of addresses and the time; a constant here
//   time, clock                 the choice of pivots, the first random number: 0
//   snprintf "%.14g", "%p"      how a number and an address become text
//   strcoll                     the order of texts: the locale's; of their bytes here
//   memcmp                      whether long texts are the same: as it is, and counted
//   pow                         what the C library computes differs in the last bit between processors (FMA): numbers.h
//   luaT_gettm                  weak tables and finalizers, through which the collector would show: there are none
//
// tests/workflow holds each of them: a library that is built in another way fails there.
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <cmath>
#include <cstddef>

#include "executors/lua/workflowhost/budget.h"
#include "executors/lua/workflowhost/numbers.h"

// Names of Lua's own, as its build in C++ has them.
struct Table;
struct TString;
struct TValue;
enum TMS : int {};

extern "C" {

unsigned __wrap__Z9luaS_hashPKcmj(const char*, std::size_t, unsigned) { return 0x6d79636fU; }

time_t __wrap_time(time_t* out) {
  if (out != nullptr) *out = 0;
  return 0;
}

clock_t __wrap_clock() { return 0; }

double __wrap_pow(double base, double exponent) {
  mycojobs::workflow::budget().charged += mycojobs::workflow::kWorkOfPower;  // looked at by the next tick
  return mycojobs::workflow::power(base, exponent);
}

int __wrap_strcoll(const char* a, const char* b) {
  mycojobs::workflow::budget().charged += strlen(a) / 64;
  return strcmp(a, b);
}

int __real_memcmp(const void*, const void*, std::size_t);
int __wrap_memcmp(const void* a, const void* b, std::size_t size) {
  mycojobs::workflow::budget().charged += size / 64;
  return __real_memcmp(a, b, size);
}

// Lua's own formats: of a number, an address that becomes text. What string.format is given comes here too, with more
// room.
int __wrap___snprintf_chk(char* out, std::size_t size, int, std::size_t, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  int written = 0;
  constexpr std::size_t kRoomOfFormat = 100;
  if (size < kRoomOfFormat && strcmp(format, "%.14g") == 0) {
    written = mycojobs::workflow::shortest(va_arg(arguments, double), out, size);
  } else if (strcmp(format, "%p") == 0) {
    static const char kText[] = "(no address)";
    if (size >= sizeof kText) memcpy(out, kText, sizeof kText);
    written = sizeof kText - 1;
  } else {
    written = vsnprintf(out, size, format, arguments);
  }
  va_end(arguments);
  return written;
}

const TValue* __real__Z10luaT_gettmP5Table3TMSP7TString(Table*, TMS, TString*);
const TValue* __wrap__Z10luaT_gettmP5Table3TMSP7TString(Table* events, TMS event, TString* name) {
  constexpr int kGc = 2, kMode = 3;
  if (event == kGc || event == kMode) return nullptr;
  return __real__Z10luaT_gettmP5Table3TMSP7TString(events, event, name);
}
}
