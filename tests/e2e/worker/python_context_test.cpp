// A Python environment of a single context, from the configuration file to the job.
#include <sys/stat.h>

#include <cstdio>

#include "e2e/world.h"

namespace mycojobs::test {
namespace {

std::size_t count_occurrences(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(PythonContext, EnvironmentAndPreloadedModulesReachItsJobs) {
  const TempDir folder;
  const RedisServer redis(folder);
  ASSERT_EQ(run(folder, {"/usr/bin/python3", "-m", "venv", "--without-pip", folder / "venv"}).code, 0);
  const std::string packages = "venv/lib/python" MYCOJOBS_PYTHON_VERSION "/site-packages";
  ::chmod((folder / packages).c_str(), 0755);
  folder.write(packages + "/greetings.py", "WORD = 'hello'\n");
  const std::string config =
      folder.write("config.toml", "[contexts.7.python]\nvenv = \"" + folder / "venv" +
                                      "\"\npreload = [\"greetings\", \"xml.dom.minidom\"]\n"
                                      "[contexts.8.python]\npreload = [\"numpy\"]\n"
                                      "[contexts.9.python]\npreload = [\"numpy_that_is_absent\"]\n");
  Process agent = start_agent(folder, redis, 1, {"--config", config, "--context", "1,7,8,9"});
  ASSERT_TRUE(wait_until_registered(redis, 1, 9)) << agent.err();
  const PlainJob venv_job{.id = 1,
                          .context = 7,
                          .script =
                              "import sys\nprint('greetings' in sys.modules, 'xml.dom.minidom' in sys.modules)\n"
                              "import greetings\nprint(greetings.WORD, sys.prefix)\nimport numpy"};
  const PlainJob numpy_job{.id = 2,
                           .context = 8,
                           .script =
                               "import sys\nprint('numpy' in sys.modules)\nimport numpy\nprint((numpy.ones((9, 9)) @ "
                               "numpy.ones(9)).sum(), sys.prefix)"};
  const PlainJob plain_job{.id = 3, .context = 1, .script = "import sys\nprint('numpy' in sys.modules, sys.prefix)"};
  for (const PlainJob* job : {&venv_job, &numpy_job, &plain_job}) submit(redis, *job);
  EXPECT_EQ(wait_for_status(redis, venv_job), "error");  // the environment was created without the system's packages
  EXPECT_NE(read_field(redis, venv_job, "error").find("No module named 'numpy'"), std::string::npos)
      << read_field(redis, venv_job, "error");
  EXPECT_EQ(read_job_log(folder, redis, venv_job), "True True\nhello /venv\n");
  EXPECT_EQ(wait_for_status(redis, numpy_job), "finished") << read_field(redis, numpy_job, "error");
  EXPECT_EQ(read_job_log(folder, redis, numpy_job), "True\n81.0 /usr\n");
  EXPECT_EQ(wait_for_status(redis, plain_job), "finished");
  EXPECT_EQ(read_job_log(folder, redis, plain_job), "False /usr\n");
  for (int id : {4, 5}) {
    const PlainJob broken_job{.id = id, .context = 9};
    submit(redis, broken_job);
    EXPECT_EQ(wait_for_status(redis, broken_job), "error");
    EXPECT_NE(read_field(redis, broken_job, "error").find("preload = [\"numpy_that_is_absent\"]: ModuleNotFoundError"),
              std::string::npos)
        << read_field(redis, broken_job, "error");
  }
  const std::string log = agent.err() + agent.out();
  EXPECT_EQ(count_occurrences(log, "No module named 'numpy_that_is_absent'"), 1U) << log;
}

TEST(PythonContext, InvalidSettingsAreRejectedByTheirPlace) {
  const TempDir folder;
  const std::pair<const char*, const char*> rows[] = {
      {"venv = \"srv/venv\"", ":2:1: contexts.7.python.venv: is not the whole path of a virtual environment"},
      {"venv = \"/srv/../venv\"", ":2:1: contexts.7.python.venv: is not the whole path"},
      {"venv = 3", ":2:1: contexts.7.python.venv: is not the whole path"},
      {"preload = \"numpy\"", ":2:1: contexts.7.python.preload: is not a list of modules"},
      {"preload = [\"a\", \"b c\"]", ":2:17: contexts.7.python.preload[1]: is not the name of a module"},
      {"preload = [\"--venv\"]", ":2:12: contexts.7.python.preload[0]: is not the name of a module"},
      {"vnev = \"/x\"", ":2:1: unknown key \"contexts.7.python.vnev\": there are venv, preload and packages"},
  };
  for (const auto& [line, message] : rows) {
    const std::string config = folder.write("config.toml", std::string("[contexts.7.python]\n") + line + "\n");
    const ProcessResult result = run(folder, {program_path(), "config", "check", config});
    EXPECT_NE(result.code, 0) << line;
    EXPECT_NE((result.err + result.out).find(message), std::string::npos) << line << ": " << result.err << result.out;
  }
  folder.write("pyvenv.cfg", "version = 3.11.2\n");
  const std::string valid_config = folder.write(
      "config.toml", "[contexts.7.python]\nvenv = \"" + folder.path().string() + "\"\npreload = [\"a.b\"]\n");
  const ProcessResult print_result = run(folder, {program_path(), "config", "print", "--config", valid_config});
  const std::string printed_config = folder.write("again.toml", print_result.out);
  EXPECT_NE(print_result.out.find("contexts.7.python.venv"), std::string::npos) << print_result.out;
  EXPECT_EQ(run(folder, {program_path(), "config", "check", printed_config}).code, 0);
}

}  // namespace
}  // namespace mycojobs::test
