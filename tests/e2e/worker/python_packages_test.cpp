// Packages of scripts, from the configuration file to jobs on two hosts that share a lock file.
#include "e2e/world.h"
#include "support/package_index.h"

namespace mycojobs::test {
namespace {

std::string write_config(const TempDir& folder, const PackageIndex& index) {
  return folder.write("config.toml", "[ceiling]\nwarm.runs = 10\n[contexts.7.python.packages]\nindex = \"" +
                                         index.url() +
                                         "\"\nallow = [\"alpha\", \"beta\", \"gamma\", \"delta\", \"colors\"]\n");
}

std::string make_script(const std::string& package, const std::string& code) {
  return "# /// script\n# dependencies = [\"" + package + "\"]\n# ///\n" + code;
}

// The second agent starts after a newer version was published, and installs the version of the first.
TEST(PythonPackagesOnHosts, EveryHostInstallsTheSameVersions) {
  const TempDir folder;
  const PackageIndex index;
  const RedisServer redis(folder);
  const std::string config = write_config(folder, index);
  const std::string script = make_script("alpha", "import alpha, beta\nprint(alpha.VERSION, beta.VERSION)\n");
  const PlainJob first_job{.id = 1, .context = 7, .script = script, .timeout = "60"};
  {
    Process agent =
        start_agent(folder, redis, 1, {"--config", config, "--context", "7", "--state-dir", folder / "one"});
    ASSERT_TRUE(wait_until_registered(redis, 1, 7)) << agent.err();
    submit(redis, first_job);
    EXPECT_EQ(wait_for_status(redis, first_job), "finished") << read_field(redis, first_job, "error");
    EXPECT_EQ(read_job_log(folder, redis, first_job), "1.0 1.1\n");
  }
  index.add_package("beta", "2.0");
  Process agent = start_agent(folder, redis, 2, {"--config", config, "--context", "7", "--state-dir", folder / "two"});
  ASSERT_TRUE(wait_until_registered(redis, 2, 7)) << agent.err();
  const PlainJob second_job{.id = 2, .context = 7, .script = script, .timeout = "60"};
  submit(redis, second_job);
  EXPECT_EQ(wait_for_status(redis, second_job), "finished") << read_field(redis, second_job, "error");
  EXPECT_EQ(read_job_log(folder, redis, second_job), "1.0 1.1\n") << "installed from the lock file";
  // Jobs that start at the same time wait for one installation.
  std::vector<PlainJob> jobs;
  for (int id = 11; id <= 14; ++id)
    jobs.push_back({.id = id, .context = 7, .script = make_script("colors", "import colors\n"), .timeout = "60"});
  for (const PlainJob& job : jobs) submit(redis, job);
  for (const PlainJob& job : jobs)
    EXPECT_EQ(wait_for_status(redis, job), "finished") << read_field(redis, job, "error");
  for (int id : {21, 22}) {
    const PlainJob warm_job{.id = id,
                            .context = 7,
                            .script = make_script("colors",
                                                  "import colors\ncalls = 0\ndef main(job):\n  global calls\n"
                                                  "  calls += 1\n  print(colors.VERSION, calls)\n"),
                            .timeout = "60",
                            .extra_fields = {"policy", R"({"warm": {"runs": 10}})"}};
    submit(redis, warm_job);
    EXPECT_EQ(wait_for_status(redis, warm_job), "finished") << read_field(redis, warm_job, "error");
    EXPECT_EQ(read_job_log(folder, redis, warm_job), "2.0 " + std::to_string(id - 20) + "\n");
  }
  const PlainJob denied_job{.id = 31, .context = 7, .script = make_script("tool", "pass\n"), .timeout = "60"};
  submit(redis, denied_job);
  EXPECT_EQ(wait_for_status(redis, denied_job), "error");
  EXPECT_NE(read_field(redis, denied_job, "error").find("the package tool is needed and not allowed"),
            std::string::npos)
      << read_field(redis, denied_job, "error");
  const ProcessResult doctor = run(folder, {program_path(), "doctor", "--config", config, "--redis", redis.url(),
                                            "--context", "7", "--state-dir", folder / "two"});
  EXPECT_NE(doctor.out.find("2 environments"), std::string::npos) << doctor.out << doctor.err;
  EXPECT_NE(doctor.out.find("the package tool is needed"), std::string::npos) << doctor.out << doctor.err;
  const ProcessResult list = run(folder, {program_path(), "executor", "list", "--config", config});
  EXPECT_NE(list.out.find("packages by pip"), std::string::npos) << list.out << list.err;
}

TEST(PythonPackagesOnHosts, InvalidSettingsAreRejectedByTheirPlace) {
  const TempDir folder;
  const std::string index = "index = \"https://pypi.org/simple\"\n";
  const std::pair<std::string, std::string> rows[] = {
      {"allow = [\"*\"]\n", "contexts.7.python.packages.index: "},
      {"index = \"pypi.org\"\nallow = [\"*\"]\n", ":2:1: contexts.7.python.packages.index: "},
      {index, "contexts.7.python.packages.allow: names no package"},
      {index + "allow = [\"Numpy\"]\n", ":3:1: contexts.7.python.packages.allow: \"Numpy\" is not a name"},
      {index + "allow = [\"*\"]\nhosts = [\"files\"]\n", ":4:1: contexts.7.python.packages.hosts: "},
      {index + "allow = [\"*\"]\nbuild = [\"acme-*\"]\n",
       ":4:1: contexts.7.python.packages.build: \"acme-*\" is not a"},
      {index + "allow = [\"*\"]\nca = \"ca.pem\"\n", ":4:1: contexts.7.python.packages.ca: is not the whole path"},
      {index + "allow = [\"*\"]\nhashes = [\"12\"]\n", ":4:1: contexts.7.python.packages.hashes: "},
      {index + "allow = [\"*\"]\nmax_bytes = \"many\"\n", ":4:1: contexts.7.python.packages.max_bytes: "},
      {index + "allow = [\"*\"]\nmirror = 1\n", ":4:1: unknown key \"contexts.7.python.packages.mirror\""},
  };
  for (const auto& [lines, message] : rows) {
    const std::string config = folder.write("config.toml", "[contexts.7.python.packages]\n" + lines);
    const ProcessResult result = run(folder, {program_path(), "config", "check", config});
    EXPECT_NE(result.code, 0) << lines;
    EXPECT_NE((result.err + result.out).find(message), std::string::npos) << lines << ": " << result.err << result.out;
  }
  const std::string valid_config =
      folder.write("config.toml", "[contexts.7.python.packages]\n" + index +
                                      "hosts = [\"files.pythonhosted.org:443\"]\n"
                                      "allow = [\"numpy\", \"acme-*\"]\nmax_bytes = \"1GiB\"\ncache_age = \"3d\"\n");
  const ProcessResult printed = run(folder, {program_path(), "config", "print", "--config", valid_config});
  EXPECT_NE(printed.out.find("contexts.7.python.packages.allow"), std::string::npos) << printed.out << printed.err;
  const std::string printed_config = folder.write("again.toml", printed.out);
  const ProcessResult checked = run(folder, {program_path(), "config", "check", printed_config});
  EXPECT_EQ(checked.code, 0) << checked.err << printed.out;
}

}  // namespace
}  // namespace mycojobs::test
