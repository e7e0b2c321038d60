// The syscall names that "*" grants, compared with the rules of the filter.
#include <gtest/gtest.h>

#include "model/policy_json.h"
#include "sandbox/seccomp/filter.h"
#include "sandbox/withheld_calls.h"

namespace mycojobs::test {
namespace {

// An added call is permitted with all arguments. So "*" must exclude calls with argument rules, and calls that the exec
// and net fields grant.
TEST(PolicyNames, ArgumentDependentCallsMustBeNamed) {
  for (const auto& rules :
       {sandbox::argument_rules(), sandbox::argument_rules_without_exec(), sandbox::argument_rules_with_exec(),
        sandbox::argument_rules_without_sockets(), sandbox::argument_rules_with_sockets(),
        sandbox::argument_rules_of_init(), sandbox::mode_rules()}) {
    for (const auto& rule : rules) EXPECT_TRUE(requires_grant(rule.syscall)) << rule.syscall;
  }
  for (const auto& names :
       {sandbox::allowed_calls_with_exec(), sandbox::allowed_calls_with_sockets(), sandbox::forbidden_calls()}) {
    for (const char* name : names) EXPECT_TRUE(requires_grant(name)) << name;
  }
  for (const char* name : sandbox::allowed_calls_with_exec()) EXPECT_TRUE(is_granted_by_exec(name)) << name;
  for (const char* name : {"listen", "fcntl", "clone3", "io_setup"}) EXPECT_TRUE(requires_grant(name)) << name;
  for (const char* name : {"chroot", "inotify_init1", "splice"}) EXPECT_FALSE(requires_grant(name)) << name;
}

}  // namespace
}  // namespace mycojobs::test
