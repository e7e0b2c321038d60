// Deterministic replacements for calls with machine-dependent results. The Lua library is linked statically, and
// the linker option --wrap (CMakeLists.txt) redirects these calls of the library to this file:
//
//   luaS_hash in lua_newstate   seed of string hashes: derived from addresses and the time; here a constant
//   time, clock                 choice of pivots and first random number: 0
//   snprintf "%.14g", "%p"      conversion of numbers and addresses to text
//   strcoll                     order of strings: by locale; here by bytes
//   memcmp                      equality of long strings: unchanged, but charged
//   pow                         the C library's result differs in the last bit between processors (FMA); see numbers.h
//   luaT_gettm                  disables weak tables and finalizers, which would make the garbage collector visible
//
// Other calls are wrapped to charge work that the instruction count does not include: fmod, conversion of numbers in
// strings, values of varargs and returns, chains of metamethods, and captured variables. tables.cpp does this for
// tables.
//
// tests/workflow checks each wrapper and fails if the Lua library is built in a different way.
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "executors/lua/workflowhost/budget.h"
#include "executors/lua/workflowhost/numbers.h"

// Internal types of Lua; their names are part of the mangled symbols, because Lua is compiled as C++.
struct Table;
struct TString;
struct TValue;
struct CallInfo;
struct UpVal;
union StackValue;
enum TMS : int {};

using mycojobs::workflow::charge_v2;
using mycojobs::workflow::charge_without_error;

namespace {

constexpr std::uint64_t kNumberFormatWork = 16;  // cost of converting a number to text
constexpr std::uint64_t kCaptureWork = 4;        // cost of a captured variable, which Lua searches in a list
constexpr int kValuesPerInstruction = 4;         // values copied per instruction

}  // namespace

extern "C" {

unsigned __wrap__Z9luaS_hashPKcmj(const char*, std::size_t, unsigned) { return 0x6d79636fU; }

time_t __wrap_time(time_t* out) {
  if (out != nullptr) *out = 0;
  return 0;
}

clock_t __wrap_clock() { return 0; }

double __wrap_pow(double base, double exponent) {
  mycojobs::workflow::budget().charged_work += mycojobs::workflow::kPowerWork;  // checked by the next charge()
  return mycojobs::workflow::power(base, exponent);
}

int __wrap_strcoll(const char* a, const char* b) {
  mycojobs::workflow::budget().charged_work += strlen(a) / 64;
  charge_without_error(1);
  return strcmp(a, b);
}

int __real_memcmp(const void*, const void*, std::size_t);
// Short strings are not charged: the number of comparisons depends on the addresses of C literals, which are the keys
// of the string cache of lua_pushstring() and lua_getfield(), and therefore on the build and the process.
int __wrap_memcmp(const void* a, const void* b, std::size_t size) {
  constexpr std::size_t kMaxShortText = 40;  // LUAI_MAXSHORTLEN
  if (size > kMaxShortText) {
    mycojobs::workflow::budget().charged_work += size / 64;
    charge_without_error(1);
  }
  return __real_memcmp(a, b, size);
}

double __real_fmod(double, double);
// Charges fmod by the difference of the exponents, because the C library divides bit by bit.
double __wrap_fmod(double value, double divisor) {
  int value_exponent = 0, divisor_exponent = 0;
  if (std::isfinite(value) && std::isfinite(divisor)) {
    std::frexp(value, &value_exponent);
    std::frexp(divisor, &divisor_exponent);
  }
  charge_without_error(static_cast<std::uint64_t>(2 + std::max(0, value_exponent - divisor_exponent) / 8));
  return __real_fmod(value, divisor);
}

std::size_t __real__Z12luaO_str2numPKcP6TValue(const char*, TValue*);
std::size_t __wrap__Z12luaO_str2numPKcP6TValue(const char* text, TValue* out) {
  charge_without_error(4 + strlen(text) / 4);
  return __real__Z12luaO_str2numPKcP6TValue(text, out);
}

// Charges the values of `...`.
void __real__Z15luaT_getvarargsP9lua_StateP8CallInfoP10StackValuei(lua_State*, CallInfo*, StackValue*, int);
void __wrap__Z15luaT_getvarargsP9lua_StateP8CallInfoP10StackValuei(lua_State* state, CallInfo* call, StackValue* target,
                                                                   int count) {
  __real__Z15luaT_getvarargsP9lua_StateP8CallInfoP10StackValuei(state, call, target, count);
  charge_without_error(state,
                       static_cast<std::uint64_t>((count < 0 ? lua_gettop(state) : count) / kValuesPerInstruction));
}

// Charges the return values of a Lua function.
void __real__Z12luaD_poscallP9lua_StateP8CallInfoi(lua_State*, CallInfo*, int);
void __wrap__Z12luaD_poscallP9lua_StateP8CallInfoi(lua_State* state, CallInfo* call, int values) {
  if (values >= kValuesPerInstruction)
    charge_without_error(state, static_cast<std::uint64_t>(values / kValuesPerInstruction));
  __real__Z12luaD_poscallP9lua_StateP8CallInfoi(state, call, values);
}

UpVal* __real__Z14luaF_findupvalP9lua_StateP10StackValue(lua_State*, StackValue*);
UpVal* __wrap__Z14luaF_findupvalP9lua_StateP10StackValue(lua_State* state, StackValue* variable) {
  charge_without_error(kCaptureWork);
  return __real__Z14luaF_findupvalP9lua_StateP10StackValue(state, variable);
}

const TValue* __real__Z15luaT_gettmbyobjP9lua_StatePK6TValue3TMS(lua_State*, const TValue*, TMS);
// Charges chains of __call metamethods: each link moves all arguments, but executes no counted instruction.
const TValue* __wrap__Z15luaT_gettmbyobjP9lua_StatePK6TValue3TMS(lua_State* state, const TValue* object, TMS event) {
  constexpr int kCall = 23;
  if (event == kCall) charge_v2(state, static_cast<std::uint64_t>(2 + lua_gettop(state) / kValuesPerInstruction));
  charge_without_error(1);
  return __real__Z15luaT_gettmbyobjP9lua_StatePK6TValue3TMS(state, object, event);
}

// Replaces the formats that Lua uses to convert numbers and addresses to text. string.format() calls this function too,
// but with a larger buffer.
int __wrap___snprintf_chk(char* out, std::size_t size, int, std::size_t, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  int written = 0;
  constexpr std::size_t kFormatBytes = 100;
  if (size < kFormatBytes && strcmp(format, "%.14g") == 0) {
    charge_without_error(kNumberFormatWork);
    written = mycojobs::workflow::format_shortest(va_arg(arguments, double), out, size);
  } else if (strcmp(format, "%p") == 0) {
    static const char kPlaceholder[] = "(no address)";
    if (size >= sizeof kPlaceholder) memcpy(out, kPlaceholder, sizeof kPlaceholder);
    written = sizeof kPlaceholder - 1;
  } else {
    charge_without_error(kNumberFormatWork);
    written = vsnprintf(out, size, format, arguments);
  }
  va_end(arguments);
  return written;
}

const TValue* __real__Z10luaT_gettmP5Table3TMSP7TString(Table*, TMS, TString*);
const TValue* __wrap__Z10luaT_gettmP5Table3TMSP7TString(Table* events, TMS event, TString* name) {
  constexpr int kGc = 2, kMode = 3;
  if (event == kGc || event == kMode) return nullptr;
  charge_without_error(2);
  return __real__Z10luaT_gettmP5Table3TMSP7TString(events, event, name);
}
}
