#include "attempt_calls.h"

#include <seccomp.h>
#include <unistd.h>

#include <map>

#include "attempt_table.h"

namespace mycojobs::test {
namespace {

// These calls are newer than the C library of Debian 12. Their numbers are the same on all architectures.
const std::map<std::string, long> kNewCalls = {
    {"cachestat", 451},         {"fchmodat2", 452},         {"map_shadow_stack", 453}, {"futex_wake", 454},
    {"futex_wait", 455},        {"futex_requeue", 456},     {"statmount", 457},        {"listmount", 458},
    {"lsm_get_self_attr", 459}, {"lsm_set_self_attr", 460}, {"lsm_list_modules", 461}, {"mseal", 462},
    {"setxattrat", 463},        {"getxattrat", 464},        {"listxattrat", 465},      {"removexattrat", 466},
    {"open_tree_attr", 467},    {"file_getattr", 468},      {"file_setattr", 469},     {"listns", 470},
};

}  // namespace

long resolve_call_number(const std::string& name) {
  if (!name.empty() && name[0] >= '0' && name[0] <= '9') return std::stol(name, nullptr, 0);
  if (const auto position = kNewCalls.find(name); position != kNewCalls.end()) return position->second;
  const int number = seccomp_syscall_resolve_name(name.c_str());
  return number < 0 ? -1 : number;
}

std::string call_by_name(const std::vector<std::string>& words) {
  const long number = words.size() > 1 ? resolve_call_number(words[1]) : -1;
  if (number < 0) return "no such call";
  unsigned long args[6] = {};
  for (std::size_t i = 0; i < 6 && i + 2 < words.size(); ++i) args[i] = std::stoul(words[i + 2], nullptr, 0);
  return describe_result(::syscall(number, args[0], args[1], args[2], args[3], args[4], args[5]));
}

}  // namespace mycojobs::test
