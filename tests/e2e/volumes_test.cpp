// Files that jobs write on the host: volumes and fs.write of an agent, from the configuration to the error of a job.
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "e2e/client.h"
#include "sandbox/volume.h"

namespace mycojobs::test {
namespace {

namespace fs = std::filesystem;

class VolumesE2e : public Operator {
 protected:
  VolumesE2e() {
    for (const char* folder : {"out", "data", "closed"}) fs::create_directory(path(folder));
    ::chmod(host_folder_.path().c_str(), 0755);
    ::chmod(path("out").c_str(), 01777);
    ::chmod(path("closed").c_str(), 0755);
    (void)!::chown(path("data").c_str(), owner_, owner_);
  }
  std::string path(const std::string& name) const { return host_folder_ / name; }
  std::string write_config(const std::string& owner = "") const {
    return folder_.write("volumes.toml",
                         "[contexts.1.ceiling]\nexec = true\nfs.write = [\"" + host_folder_.path().string() +
                             "\"]\n[contexts.1.volumes.data]\npath = \"" + path("data") +
                             "\"\nmode = \"rw\"\nowner = " + (owner.empty() ? std::to_string(owner_) : owner) +
                             "\n[executors.shell]\ncommand = [\"/bin/sh\", \"{script}\"]\n");
  }
  // Runs a script with this policy, and returns the key of the ended job.
  std::string run_job(const std::string& type, const std::string& policy, const std::string& script) const {
    std::string job = mycojobs_.submit(script, {"--type", type, "--policy", folder_.write("p.toml", policy)});
    EXPECT_TRUE(eventually([&] {
      const std::string status = mycojobs_.read_field(job, "status");
      return status == "finished" || status == "error";
    }));
    return job;
  }
  std::string read_error(const std::string& job) const { return mycojobs_.read_field(job, "error"); }
  static std::uint32_t owner_of(const std::string& file) {
    struct stat info {};
    EXPECT_EQ(::lstat(file.c_str(), &info), 0) << file;
    return info.st_uid;
  }

  const TempDir host_folder_{kGrantableParent};
  const std::uint32_t owner_ = ::geteuid() == 0 ? 23456 : ::geteuid();
};

TEST_F(VolumesE2e, LaterJobChangesTheFilesOfAnEarlierOne) {
  Process agent = start_registered_agent(1, {"--config", write_config()});
  const std::string write = "umask 077\nmkdir -p " + path("out") + "/backup && date > " + path("out") + "/backup/$$-$1";
  for (int night = 1; night <= 2; ++night) {
    const std::string job = run_job("shell", "exec = true\nfs.write = [\"" + path("out") + "\"]\n", write);
    EXPECT_EQ(mycojobs_.read_field(job, "status"), "finished") << read_error(job) << agent.err();
  }
  const std::uint32_t expected = ::geteuid() == 0 ? default_file_owner(1).uid : ::geteuid();
  EXPECT_EQ(owner_of(path("out/backup")), expected);

  const char* script =
      "import os\nos.makedirs('/volumes/data/day', exist_ok=True)\n"
      "open('/volumes/data/day/log', 'a').write('x')\nresult['names'] = str(os.listdir('/volumes'))";
  for (int night = 1; night <= 2; ++night) {
    const std::string job = run_job("python", "volumes = [\"data\"]\n", script);
    EXPECT_EQ(mycojobs_.read_field(job, "status"), "finished") << read_error(job) << agent.err();
    EXPECT_EQ(mycojobs_.read_field(job, "result"), R"({"names":"['data']"})");
  }
  EXPECT_EQ(owner_of(path("data/day/log")), owner_);
  EXPECT_EQ(fs::file_size(path("data/day/log")), 2U);
  const std::string other = run_job("python", "", "import os\nresult['exists'] = os.path.exists('/volumes/data')");
  EXPECT_EQ(mycojobs_.read_field(other, "result"), R"({"exists":"false"})");
}

TEST_F(VolumesE2e, UnknownVolumeIsRefused) {
  Process agent = start_registered_agent(1, {"--config", write_config()});
  const ProcessResult refused = mycojobs_(
      {"job", "submit", "-", "--type", "python", "--policy", folder_.write("p.toml", "volumes = [\"other\"]\n")},
      "pass");
  expect_result(refused, 65, "policy.volumes: context 1 has no volume other");
  EXPECT_NE(redis_.cli(1, {"HGET", "runner:1", "ceiling"}).find("\"volumes\":[\"data\"]"), std::string::npos);
  EXPECT_EQ(redis_.cli(1, {"HGET", "runner:1", "ceiling"}).find(path("data")), std::string::npos)
      << "the path of the host is not published";
}

TEST_F(VolumesE2e, DeniedWriteNamesItsCauseForPythonAndPrograms) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root makes a folder of another user";
  Process agent = start_registered_agent(1, {"--config", write_config()});
  const std::string owner = std::to_string(default_file_owner(1).uid);
  const std::string cause =
      path("closed") + " belongs to user 0 and has mode 0755; files of this job belong to user " + owner;
  const std::string policy = "exec = true\nfs.write = [\"" + path("closed") + "\"]\n";
  const std::string python = run_job("python", policy, "open('" + path("closed/new") + "', 'w')");
  EXPECT_NE(read_error(python).find("PermissionError"), std::string::npos) << read_error(python);
  EXPECT_NE(read_error(python).find(cause), std::string::npos) << read_error(python);
  EXPECT_EQ(read_error(python).find("fs.read"), std::string::npos) << read_error(python);
  const std::string program = run_job("shell", policy, "date > " + path("closed/new") + "\nexit 3");
  EXPECT_NE(read_error(program).find(cause), std::string::npos) << read_error(program);

  (void)!::chown(path("data").c_str(), 34, 34);
  const std::string volume = run_job("python", "volumes = [\"data\"]\n", "open('/volumes/data/new', 'w')");
  EXPECT_NE(read_error(volume).find("/volumes/data belongs to user 34 and has mode 0755; files of this job belong to "
                                    "user 23456"),
            std::string::npos)
      << read_error(volume);
}

// ramfs stands for file systems without id mapping. It is mounted in a mount namespace of this test program.
TEST_F(VolumesE2e, VolumeThatCannotBeMappedPreventsTheStart) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root mounts file systems";
  ASSERT_TRUE(enter_mount_namespace());
  ASSERT_EQ(::mount("ramfs", path("data").c_str(), "ramfs", 0, nullptr), 0);
  const std::string config = write_config();
  const ProcessResult result = start_agent(folder_, redis_, 1, {"--config", config}).wait();
  EXPECT_NE(result.code, 0);
  for (const char* text : {"contexts.1.volumes.data", "has no id mapping", "fixed_uid = true"})
    EXPECT_NE(result.err.find(text), std::string::npos) << result.err;
  const ProcessResult doctor = mycojobs_({"doctor", "--config", config});
  EXPECT_NE((doctor.out + doctor.err).find("has no id mapping"), std::string::npos) << doctor.out << doctor.err;
  ::umount2(path("data").c_str(), MNT_DETACH);
}

// SIGHUP: an added volume, and one with another path, hold for the next job; a removed one is refused.
TEST_F(VolumesE2e, ReloadAppliesToTheNextJobs) {
  const std::string config = write_config();
  Process agent = start_registered_agent(1, {"--config", config});
  fs::create_directory(path("second"));
  (void)!::chown(path("second").c_str(), owner_, owner_);
  // The ceiling that the agent publishes names its volumes.
  const auto reload = [&](const std::string& volumes, const std::string& names) {
    folder_.write("volumes.toml", volumes);
    agent.signal(SIGHUP);
    EXPECT_TRUE(eventually([&] {
      return redis_.cli(1, {"HGET", "runner:1", "ceiling"}).find("\"volumes\":[" + names + "]") != std::string::npos;
    })) << agent.err();
  };
  const auto volume = [&](const std::string& name, const std::string& folder) {
    return "[contexts.1.volumes." + name + "]\npath = \"" + path(folder) +
           "\"\nmode = \"rw\"\nowner = " + std::to_string(owner_) + "\n";
  };
  const auto write = [&](const std::string& name) {
    return run_job("python", "volumes = [\"" + name + "\"]\n", "open('/volumes/" + name + "/file', 'a').write('x')");
  };
  reload(volume("data", "data") + volume("added", "second"), R"("added","data")");
  EXPECT_EQ(mycojobs_.read_field(write("added"), "status"), "finished") << agent.err();
  EXPECT_EQ(owner_of(path("second/file")), owner_);
  reload(volume("data", "second"), R"("data")");
  EXPECT_EQ(mycojobs_.read_field(write("data"), "status"), "finished") << agent.err();
  EXPECT_EQ(fs::file_size(path("second/file")), 2U);
  EXPECT_FALSE(fs::exists(path("data/file")));
  const ProcessResult removed = mycojobs_(
      {"job", "submit", "-", "--type", "python", "--policy", folder_.write("p.toml", "volumes = [\"added\"]\n")},
      "pass");
  expect_result(removed, 65, "policy.volumes: context 1 has no volume added");
}

TEST_F(VolumesE2e, UnknownOwnerPreventsTheStart) {
  const std::string config = write_config("\"mycojobs-no-such-user\"");
  const ProcessResult result = start_agent(folder_, redis_, 1, {"--config", config}).wait();
  EXPECT_NE(result.code, 0);
  EXPECT_NE(result.err.find("there is no user mycojobs-no-such-user"), std::string::npos) << result.err;
  expect_result(mycojobs_({"config", "check", config}), 66, "mycojobs-no-such-user");
}

TEST_F(VolumesE2e, LocalRunHasTheVolumesOfTheConfiguration) {
  const std::string policy = folder_.write("p.toml", "volumes = [\"data\"]\n");
  const std::string script = folder_.write("a.py", "open('/volumes/data/file', 'w').write('x')");
  const ProcessResult result = mycojobs_({"sandbox", "run", script, "--policy", policy, "--config", write_config()});
  EXPECT_EQ(result.code, 0) << result.out << result.err;
  EXPECT_EQ(owner_of(path("data/file")), owner_);
}

}  // namespace
}  // namespace mycojobs::test
