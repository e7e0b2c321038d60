// Tests of the witness: it must detect overlapping attempts.
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <vector>

#include "chaos/witness.h"
#include "support/process.h"

namespace mycojobs::test {
namespace {

// Starts a process with a child that has the name of a job.
pid_t start_run(const std::string& name) {
  const pid_t init = ::fork();
  if (init != 0) return init;
  const pid_t job = ::fork();
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (job == 0) ::prctl(PR_SET_NAME, name.c_str());
  for (;;) ::pause();
}

void end_run(pid_t init) {
  ::kill(init, SIGKILL);
  ::waitpid(init, nullptr, 0);
}

bool wait_for_lifetimes(const Witness& witness, std::size_t lifetimes) {
  return eventually([&] {
    const auto observed = witness.lifetimes();
    const auto found = observed.find({1, 36 + 7});
    return found != observed.end() && found->second.size() == lifetimes;
  });
}

constexpr const char* kFirstAttempt = "~100170000000a1";   // context 1, id 43, first epoch
constexpr const char* kSecondAttempt = "~100170000000a2";  // the same job with another epoch

TEST(Witness, ReadsTheNameOfARun) {
  ProcessName name;
  ASSERT_TRUE(parse_process_name(kFirstAttempt, name));
  EXPECT_EQ(name.job.context, 1);
  EXPECT_EQ(name.job.id, 43U);
  EXPECT_EQ(name.epoch, 361U);
  EXPECT_FALSE(parse_process_name("python", name));
}

TEST(Witness, SeesTwoAttemptsOfOneJobAlive) {
  ProcessTree tree;
  const pid_t first_run = start_run(kFirstAttempt);
  const pid_t second_run = start_run(kSecondAttempt);
  tree.set_component(first_run, Component::init);
  tree.set_component(second_run, Component::init);
  {
    const Witness witness(tree);
    EXPECT_TRUE(wait_for_lifetimes(witness, 2));
    EXPECT_TRUE(eventually([&] { return find_overlaps(witness.lifetimes()).size() == 1; }));
  }
  end_run(first_run);
  end_run(second_run);
}

TEST(Witness, ConsecutiveAttemptsDoNotOverlap) {
  ProcessTree tree;
  Witness witness(tree);
  const pid_t first_run = start_run(kFirstAttempt);
  tree.set_component(first_run, Component::init);
  EXPECT_TRUE(wait_for_lifetimes(witness, 1));
  end_run(first_run);
  const pid_t second_run = start_run(kSecondAttempt);
  tree.set_component(second_run, Component::init);
  EXPECT_TRUE(wait_for_lifetimes(witness, 2));
  EXPECT_TRUE(find_overlaps(witness.lifetimes()).empty());
  end_run(second_run);
}

}  // namespace
}  // namespace mycojobs::test
