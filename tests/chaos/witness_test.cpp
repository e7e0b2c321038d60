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

bool sees(const Witness& witness, std::size_t lives) {
  return eventually([&] {
    const auto all = witness.lives();
    const auto found = all.find({1, 36 + 7});
    return found != all.end() && found->second.size() == lives;
  });
}

constexpr const char* kFirst = "~100170000000a1";   // context 1, id 43, first epoch
constexpr const char* kSecond = "~100170000000a2";  // the same job with another epoch

TEST(Witness, ReadsTheNameOfARun) {
  ProcessName name;
  ASSERT_TRUE(parse_process_name(kFirst, name));
  EXPECT_EQ(name.job.context, 1);
  EXPECT_EQ(name.job.id, 43U);
  EXPECT_EQ(name.epoch, 361U);
  EXPECT_FALSE(parse_process_name("python", name));
}

TEST(Witness, SeesTwoAttemptsOfOneJobAlive) {
  ProcessTree tree;
  const pid_t one = start_run(kFirst);
  const pid_t other = start_run(kSecond);
  tree.name(one, Component::init);
  tree.name(other, Component::init);
  {
    const Witness witness(tree);
    EXPECT_TRUE(sees(witness, 2));
    EXPECT_TRUE(eventually([&] { return overlaps(witness.lives()).size() == 1; }));
  }
  end_run(one);
  end_run(other);
}

TEST(Witness, ConsecutiveAttemptsDoNotOverlap) {
  ProcessTree tree;
  Witness witness(tree);
  const pid_t one = start_run(kFirst);
  tree.name(one, Component::init);
  EXPECT_TRUE(sees(witness, 1));
  end_run(one);
  const pid_t other = start_run(kSecond);
  tree.name(other, Component::init);
  EXPECT_TRUE(sees(witness, 2));
  EXPECT_TRUE(overlaps(witness.lives()).empty());
  end_run(other);
}

}  // namespace
}  // namespace mycojobs::test
