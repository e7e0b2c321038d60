// Volumes and fs.write: files that jobs create on the host belong to one owner, and jobs gain no other rights by them.
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "fixture.h"
#include "sandbox/launcher/file_owners.h"
#include "sandbox/launcher/mount_ids.h"

namespace mycojobs::test {
namespace {

namespace fs = std::filesystem;

constexpr std::uint32_t kOwner = 23456;  // no user of the host

bool is_root() { return ::geteuid() == 0; }
FileOwner test_owner() { return is_root() ? FileOwner{kOwner, kOwner} : FileOwner{::geteuid(), ::getegid()}; }

struct stat stat_file(const std::string& path) {
  struct stat info {};
  EXPECT_EQ(::lstat(path.c_str(), &info), 0) << path;
  return info;
}

// A folder of the host. With the type of a file system, or "bind", it is a mount of its own in a mount namespace of
// this test program, so that the mounts of the host do not change.
class HostFolder {
 public:
  explicit HostFolder(const std::string& file_system = "") {
    if (file_system.empty()) prepare();
    if (file_system.empty()) return;
    static const bool kHasNamespace = enter_mount_namespace();
    is_mounted_ = kHasNamespace && (file_system == "ext4" || file_system == "xfs" ? mount_image(file_system)
                                                                                  : mount_folder(file_system));
    if (is_mounted_) prepare();
  }
  ~HostFolder() {
    while (is_mounted_ && ::umount2(path_.c_str(), MNT_DETACH) == 0) {
    }
    std::error_code error;
    fs::remove(path_ + ".img", error);
  }
  HostFolder(const HostFolder&) = delete;
  HostFolder& operator=(const HostFolder&) = delete;
  bool is_mounted() const { return is_mounted_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }
  void write(const std::string& name, mode_t mode, const FileOwner& owner) const {
    std::ofstream(path_ + "/" + name) << "content";
    ::chmod((path_ + "/" + name).c_str(), mode);
    EXPECT_EQ(::lchown((path_ + "/" + name).c_str(), owner.uid, owner.gid), 0);
  }
  RunSpec make_run(bool writable = true) const { return make_run({"data", path_, writable, test_owner()}); }
  static RunSpec make_run(Volume volume) {
    RunSpec spec = make_spec();
    spec.grants.volumes = {std::move(volume)};
    return spec;
  }

 private:
  void prepare() const {
    ::chmod(path_.c_str(), 0755);
    (void)!::chown(path_.c_str(), test_owner().uid, test_owner().gid);
  }
  bool mount_folder(const std::string& type) const {
    if (type == "bind") return ::mount(path_.c_str(), path_.c_str(), nullptr, MS_BIND, nullptr) == 0;
    if (type == "overlay") {
      // The layers are on a tmpfs: an overlay of the host's root, as in a container, has no further overlay as a layer.
      if (::mount("tmpfs", path_.c_str(), "tmpfs", 0, "mode=755") != 0) return false;
      for (const char* layer : {"/lower", "/upper", "/work"}) fs::create_directory(path_ + layer);
      const std::string layers = "lowerdir=" + path_ + "/lower,upperdir=" + path_ + "/upper,workdir=" + path_ + "/work";
      return ::mount("overlay", path_.c_str(), "overlay", 0, layers.c_str()) == 0;
    }
    return ::mount(type.c_str(), path_.c_str(), type.c_str(), 0, "mode=755") == 0;
  }
  bool mount_image(const std::string& type) const {
    const std::string image = path_ + ".img";
    const std::string command = "truncate -s 320M " + image + " && mkfs." + type + " -q " + image +
                                " >/dev/null 2>&1 && mount -o loop " + image + " " + path_ + " 2>/dev/null";
    return std::system(command.c_str()) == 0;
  }
  const TempDir folder_{kGrantableParent};
  const std::string path_ = folder_.path();
  bool is_mounted_ = false;
};

class VolumeFileSystem : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Types, VolumeFileSystem, testing::Values("ext4", "tmpfs", "xfs"),
                         [](const auto& row) { return std::string(row.param); });

TEST_P(VolumeFileSystem, FilesBelongToTheOwnerWhateverIdTheJobHas) {
  if (!is_root()) GTEST_SKIP() << "only root mounts file systems";
  const HostFolder folder(GetParam());
  if (!folder.is_mounted()) GTEST_SKIP() << "this machine has no " << GetParam() << " or no loop device";
  const DedicatedSandbox dedicated = start_dedicated_sandbox();
  const RunResult first =
      run_attempts(*dedicated.sandbox, folder.make_run(), "mkdir /volumes/data/day\nwrite /volumes/data/day/file one");
  if (std::string_view(GetParam()) == "tmpfs" && to_string(first.outcome.status) == "setup_error") {
    EXPECT_NE(first.outcome.reason.find("tmpfs: 6.3"), std::string::npos) << first.outcome.reason;
    return;  // a kernel before Linux 6.3
  }
  EXPECT_EQ(first.get_result("mkdir /volumes/data/day"), "ok") << first.outcome.reason;
  const struct stat info = stat_file(folder / "day/file");
  EXPECT_EQ(info.st_uid, kOwner);
  EXPECT_EQ(info.st_gid, kOwner);
  const RunResult second =
      run_attempts(*dedicated.sandbox, folder.make_run(),
                   "write /volumes/data/day/file two\nwrite /volumes/data/day/other x\nunlink /volumes/data/day/other");
  EXPECT_EQ(second.get_result("unlink /volumes/data/day/other"), "ok") << second.outcome.reason;
  EXPECT_EQ(read_file(folder / "day/file"), "two");
}

// A nightly job continues with the folder that the job of the last night has made.
TEST(FsWrite, NextRunChangesTheFilesOfTheFirst) {
  const HostFolder folder;
  ::chmod(folder.path().c_str(), 01777);
  if (is_root()) (void)!::chown(folder.path().c_str(), 0, 0);
  const auto run = [&](const std::string& lines) {
    RunSpec spec = make_spec();
    spec.grants.fs_write = {folder.path()};
    return run_attempts(shared_sandbox(), spec, lines);
  };
  EXPECT_EQ(run("mkdir " + (folder / "backup")).get_result("mkdir " + (folder / "backup")), "ok");
  const std::string line = "write " + (folder / "backup/today") + " x";
  EXPECT_EQ(run(line).get_result(line), "ok");
  EXPECT_EQ(read_file(folder / "backup/today"), "x");
  const std::uint32_t owner = is_root() ? default_file_owner(1).uid : ::geteuid();
  EXPECT_EQ(stat_file(folder / "backup").st_uid, owner);
  EXPECT_EQ(stat_file(folder / "backup").st_mode & 0777, 0700U);
}

TEST(FsWrite, FilesOfOthersAreReachableByTheirModeBitsAlone) {
  if (!is_root()) GTEST_SKIP() << "only root makes files of other users";
  const HostFolder folder;
  for (const FileOwner& owner : {FileOwner{0, 0}, FileOwner{34, 34}}) {
    const std::string name = std::to_string(owner.uid);
    folder.write("private" + name, 0600, owner);
    folder.write("readable" + name, 0644, owner);
    folder.write("writable" + name, 0666, owner);
  }
  RunSpec spec = make_spec();
  spec.grants.fs_write = {folder.path()};
  std::string lines;
  for (const std::string name : {"private0", "readable0", "writable0", "private34", "readable34", "writable34"})
    lines +=
        "open_read " + (folder / name) + "\nopen_write " + (folder / name) + "\nchmod " + (folder / name) + " 0777\n";
  const RunResult result = run_attempts(shared_sandbox(), spec, lines);
  for (const std::string owner : {"0", "34"}) {
    EXPECT_EQ(result.get_result("open_read " + (folder / "private") + owner), "EACCES") << owner;
    EXPECT_EQ(result.get_result("open_write " + (folder / "private") + owner), "EACCES") << owner;
    EXPECT_EQ(result.get_result("open_read " + (folder / "readable") + owner), "ok") << owner;
    EXPECT_EQ(result.get_result("open_write " + (folder / "readable") + owner), "EACCES") << owner;
    EXPECT_EQ(result.get_result("open_write " + (folder / "writable") + owner), "ok") << owner;
    EXPECT_EQ(result.get_result("chmod " + (folder / "writable") + owner + " 0777"), "EPERM") << owner;
  }
}

TEST(Volumes, ReadOnlyVolumeOfRootIsReadAndNotWritten) {
  if (!is_root()) GTEST_SKIP() << "only root has files of root";
  const HostFolder folder;
  folder.write("secret", 0600, {0, 0});
  const RunResult result =
      run_attempts(shared_sandbox(), HostFolder::make_run({"data", folder.path(), false, {0, 0}}),
                   "read /volumes/data/secret\nopen_write /volumes/data/secret\nopen_create /volumes/data/new\nchmod "
                   "/volumes/data/secret 0644\nunlink /volumes/data/secret\nrename /volumes/data/secret "
                   "/volumes/data/b\nchown /volumes/data/secret 1000");
  EXPECT_EQ(result.get_result("read /volumes/data/secret"), "content") << result.outcome.reason;
  for (const char* line : {"open_write /volumes/data/secret", "open_create /volumes/data/new",
                           "chmod /volumes/data/secret 0644", "unlink /volumes/data/secret",
                           "rename /volumes/data/secret /volumes/data/b", "chown /volumes/data/secret 1000"})
    EXPECT_TRUE(result.get_result(line) == "EROFS" || result.get_result(line) == "EACCES" ||
                result.get_result(line) == "EPERM")
        << line << ": " << result.get_result(line);
  EXPECT_EQ(stat_file(folder / "secret").st_mode & 07777, 0600U);
}

// Without a volume of root, the same file is out of reach: fs.read stays unmapped.
TEST(Volumes, GrantedFolderForReadingIsNotMapped) {
  if (!is_root()) GTEST_SKIP() << "only root makes files of other users";
  const HostFolder folder;
  folder.write("root", 0600, {0, 0});
  folder.write("owner", 0600, default_file_owner(1));
  RunSpec spec = make_spec();
  spec.grants.fs_read = {folder.path()};
  const RunResult result =
      run_attempts(shared_sandbox(), spec, "open_read " + (folder / "root") + "\nopen_read " + (folder / "owner"));
  EXPECT_EQ(result.get_result("open_read " + (folder / "root")), "EACCES");
  EXPECT_EQ(result.get_result("open_read " + (folder / "owner")), "EACCES");
}

TEST(Volumes, OwnersThatNoJobMayHaveAreRejected) {
  if (!is_root()) GTEST_SKIP() << "an ordinary user's volumes belong to the user";
  const HostFolder folder;
  const std::uint32_t job_id = SandboxConfig().uid_base + 1000;
  struct Row {
    Volume volume;
    const char* reason;
  };
  const Row rows[] = {{{"data", folder.path(), true, {0, 0}}, "jobs never write as root"},
                      {{"data", folder.path(), true, {kOwner, 0}}, "jobs never write as root"},
                      {{"../data", folder.path(), true, {kOwner, kOwner}}, "valid name"},
                      {{"", folder.path(), true, {kOwner, kOwner}}, "valid name"},
                      {{"data", folder.path() + "/../x", true, {kOwner, kOwner}}, "not absolute and normalized"},
                      {{"data", "srv/data", true, {kOwner, kOwner}}, "not absolute and normalized"}};
  for (const Row& row : rows) {
    const Outcome outcome = run_attempts(shared_sandbox(), HostFolder::make_run(row.volume), "getpid").outcome;
    EXPECT_EQ(to_string(outcome.status), "setup_error");
    EXPECT_NE(outcome.reason.find(row.reason), std::string::npos) << outcome.reason;
  }
  auto owners = sandbox::FileOwners::make({}, {SandboxConfig().uid_base, 65536});
  ASSERT_TRUE(owners);
  EXPECT_FALSE(owners->check_volume({"data", folder.path(), true, {job_id, kOwner}}));
  EXPECT_FALSE(owners->check_volume({"data", folder.path(), false, {kOwner, job_id}}));
  EXPECT_FALSE(owners->check_volume({"data", folder.path(), false, kUnknownFileOwner}));
  EXPECT_FALSE(sandbox::FileOwners::make({{1, {0, 0}, false}}, {SandboxConfig().uid_base, 65536}));
}

TEST(Volumes, OwnersAreNotIdsOfOthers) {
  if (!is_root()) GTEST_SKIP() << "files of an ordinary user's jobs belong to the user";
  const sandbox::IdRange ids{SandboxConfig().uid_base, 65536};
  sandbox::UsedIds used;
  used.of_launchers = {{kOwner, 10}};
  used.of_users = {{kFirstFileUid, 3}, {34567, 1}};
  const auto owners = sandbox::FileOwners::make({{9, {34567, 34567}, false}}, ids, used);
  ASSERT_TRUE(owners) << owners.error().message;
  EXPECT_FALSE(owners->check_volume({"data", "/srv/data", true, {kOwner, 34567}})) << "jobs of another agent";
  EXPECT_TRUE(owners->check_volume({"data", "/srv/data", true, {34567, 34567}})) << "the operator has chosen it";
  EXPECT_EQ(owners->find_owner(9).value(), (FileOwner{34567, 34567}));
  EXPECT_EQ(owners->find_owner(3).value(), default_file_owner(3));
  const auto refused = owners->find_owner(2);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("set [contexts.2.files] owner"), std::string::npos) << refused.error().message;
}

// Every write of a job would fail, as below ProtectSystem=strict of systemd.
TEST(Volumes, ReadOnlyMountIsRefusedForWriting) {
  if (!is_root()) GTEST_SKIP() << "only root mounts file systems";
  const HostFolder folder("bind");
  ASSERT_TRUE(folder.is_mounted());
  ASSERT_EQ(::mount(nullptr, folder.path().c_str(), nullptr, MS_REMOUNT | MS_BIND | MS_RDONLY, nullptr), 0);
  const DedicatedSandbox dedicated = start_dedicated_sandbox();
  const Outcome outcome = run_attempts(*dedicated.sandbox, folder.make_run(), "getpid").outcome;
  EXPECT_EQ(to_string(outcome.status), "setup_error");
  EXPECT_NE(outcome.reason.find("ReadWritePaths="), std::string::npos) << outcome.reason;
  EXPECT_EQ(to_string(run_attempts(*dedicated.sandbox, folder.make_run(false), "getpid").outcome.status), "ok");
}

TEST(Volumes, LinksLeadToNothingOutside) {
  const HostFolder folder;
  fs::create_symlink("/etc/shadow", folder / "absolute");
  fs::create_symlink("../../../../etc/shadow", folder / "relative");
  fs::create_directory_symlink("/root", folder / "folder");
  const RunResult result = run_attempts(
      shared_sandbox(), folder.make_run(),
      "open_read /volumes/data/absolute\nopen_read /volumes/data/relative\nlist /volumes/data/folder\nopen_read "
      "/volumes/data/../../etc/shadow\nlist /volumes\nlist /volumes/data/..\nhardlink /etc/passwd "
      "/volumes/data/link\nhardlink /volumes/data/absolute /tmp/link\nrename /volumes/data/absolute "
      "/tmp/moved\nopen_create /volumes/other\nopen_at /volumes/data ../../root/.bashrc\nlist " +
          folder.path());
  EXPECT_EQ(result.get_result("list /volumes"), "data") << result.outcome.reason;
  EXPECT_EQ(result.get_result("list /volumes/data/.."), "data");
  for (const char* line :
       {"open_read /volumes/data/absolute", "open_read /volumes/data/relative", "list /volumes/data/folder",
        "open_read /volumes/data/../../etc/shadow", "open_at /volumes/data ../../root/.bashrc"})
    EXPECT_TRUE(result.get_result(line) == "ENOENT" || result.get_result(line) == "EACCES")
        << line << ": " << result.get_result(line);
  EXPECT_EQ(result.get_result("hardlink /etc/passwd /volumes/data/link"), "EXDEV");
  EXPECT_EQ(result.get_result("hardlink /volumes/data/absolute /tmp/link"), "EXDEV");
  EXPECT_EQ(result.get_result("rename /volumes/data/absolute /tmp/moved"), "EXDEV");
  EXPECT_EQ(result.get_result("open_create /volumes/other"), "EROFS");
  EXPECT_EQ(result.get_result("list " + folder.path()), "ENOENT") << "the path of the host is not visible";
}

TEST(Volumes, LinkInThePathIsNotFollowed) {
  const HostFolder folder;
  fs::create_directory_symlink("/etc", folder / "link");
  const Outcome outcome =
      run_attempts(shared_sandbox(), HostFolder::make_run({"data", folder / "link", true, test_owner()}), "getpid")
          .outcome;
  EXPECT_EQ(to_string(outcome.status), "setup_error");
  EXPECT_NE(outcome.reason.find("symbolic link"), std::string::npos) << outcome.reason;
}

TEST(Volumes, EndsWithItsRun) {
  const HostFolder folder;
  run_attempts(shared_sandbox(), folder.make_run(), "write /volumes/data/file x");
  EXPECT_EQ(run_attempts("open_read /volumes/data").get_result("open_read /volumes/data"), "ENOENT");
}

TEST(Volumes, DevicesAndSetIdProgramsHaveNoEffect) {
  if (!is_root()) GTEST_SKIP() << "only root makes device nodes";
  const HostFolder folder;
  ASSERT_EQ(::mknod((folder / "null").c_str(), S_IFCHR | 0666, ::makedev(1, 3)), 0);
  const RunResult result = run_attempts(shared_sandbox(), folder.make_run(),
                                        "open_read /volumes/data/null\nmknod /volumes/data/disk 0x6000\nmknod "
                                        "/volumes/data/tty 0x2000\nwhiteout /volumes/data\nall_mounts");
  EXPECT_EQ(result.get_result("open_read /volumes/data/null"), "EACCES") << result.outcome.reason;
  EXPECT_EQ(result.get_result("mknod /volumes/data/disk 0x6000"), "EPERM");
  EXPECT_EQ(result.get_result("mknod /volumes/data/tty 0x2000"), "EPERM");
  EXPECT_FALSE(result.get_result("whiteout /volumes/data").starts_with("opens: ok"));
  EXPECT_NE(result.get_result("all_mounts").find("/volumes/data rw,nosuid,nodev,noexec"), std::string::npos)
      << result.get_result("all_mounts");
}

// Every user of the host could run a set-id program with the rights of the owner of the files.
TEST(Volumes, SetIdBitsAreRefusedInEveryCall) {
  const HostFolder folder;
  const char* const calls[] = {"chmod", "fchmod", "fchmodat", "fchmodat2", "open",    "openat", "tmpfile",
                               "creat", "mkdir",  "mkdirat",  "mknod",     "mknodat", "openat2"};
  for (const bool has_exec : {false, true}) {
    const std::string base = has_exec ? "/volumes/data/exec-" : "/volumes/data/";
    std::string lines;
    for (const char* call : calls) {
      for (const char* mode : {"04755", "02755", "06755", "0755"})
        lines += std::string("mode ") + call + " " + base + call + mode + " " + mode + "\n";
    }
    RunSpec spec = folder.make_run();
    spec.limits.exec = has_exec;
    const RunResult result = run_attempts(shared_sandbox(), spec, lines);
    for (const char* call : calls) {
      for (const char* mode : {"04755", "02755", "06755"}) {
        const std::string line = std::string("mode ") + call + " " + base + call + mode + " " + mode;
        const std::string answer = result.get_result(line);
        EXPECT_TRUE(answer == "EPERM" || answer == "ENOSYS") << line << ": " << answer;
      }
      const std::string plain = std::string("mode ") + call + " " + base + call + "0755 0755";
      const bool can_be_missing = std::string(call) == "openat2" || std::string(call) == "fchmodat2";
      EXPECT_TRUE(result.get_result(plain) == "ok" || (can_be_missing && result.get_result(plain) == "ENOSYS"))
          << plain << ": " << result.get_result(plain);
    }
  }
  for (const auto& entry : fs::recursive_directory_iterator(folder.path()))
    EXPECT_EQ(stat_file(entry.path()).st_mode & (S_ISUID | S_ISGID), 0U) << entry.path();
}

// A policy that adds a call by its name does not lift the check of the mode.
TEST(Volumes, SetIdBitsAreRefusedInAddedCalls) {
  const HostFolder folder;
  RunSpec spec = folder.make_run();
  spec.grants.syscalls = {"chmod", "mknod", "openat", "mkdir"};
  std::string lines;
  for (const char* call : {"chmod", "mknod", "openat", "mkdir"})
    lines += std::string("mode ") + call + " /volumes/data/" + call + " 04755\n";
  const RunResult result = run_attempts(shared_sandbox(), spec, lines);
  for (const char* call : {"chmod", "mknod", "openat", "mkdir"})
    EXPECT_EQ(result.get_result(std::string("mode ") + call + " /volumes/data/" + call + " 04755"), "EPERM") << call;
  for (const std::string call : {"fchmodat2", "openat2"}) {
    spec = make_spec();
    spec.grants.syscalls = {call};
    const Outcome outcome = run_attempts(shared_sandbox(), spec, "getpid").outcome;
    EXPECT_NE(outcome.reason.find(call + " is never granted"), std::string::npos) << outcome.reason;
  }
}

// ramfs stands for file systems without id mapping, such as NFS.
void expect_fixed_uid_is_needed(const HostFolder& folder) {
  SandboxConfig config = make_test_config();
  const Volume volume{"data", folder.path(), true, {kOwner, kOwner}};
  config.volumes = {{1, volume}};
  const auto refused = start_sandbox(config);
  ASSERT_FALSE(refused);
  for (const char* text : {"contexts.1.volumes.data", "has no id mapping", "fixed_uid", folder.path().c_str()})
    EXPECT_NE(refused.error().message.find(text), std::string::npos) << refused.error().message;
  const auto layers = probe_layers(config);
  ASSERT_TRUE(layers) << layers.error().message;
  const auto layer = std::find_if(layers->begin(), layers->end(),
                                  [](const LayerReport& report) { return report.name == "contexts.1.volumes.data"; });
  ASSERT_NE(layer, layers->end());
  EXPECT_FALSE(layer->ok);
  EXPECT_NE(layer->remedy.find("fixed_uid"), std::string::npos) << layer->remedy;

  config.files = {{1, {kOwner, kOwner}, true}};
  const DedicatedSandbox dedicated = start_dedicated_sandbox(config);
  const RunResult result = run_attempts(*dedicated.sandbox, HostFolder::make_run(volume), "write /volumes/data/file x");
  EXPECT_EQ(stat_file(folder / "file").st_uid, kOwner) << result.outcome.reason;
  EXPECT_EQ(stat_file(folder / "file").st_gid, kOwner);
  EXPECT_EQ(to_string(run_attempts(*dedicated.sandbox, make_spec(), "getpid").outcome.status), "ok");
}

TEST(Volumes, FileSystemWithoutIdMappingNeedsAFixedUid) {
  if (!is_root()) GTEST_SKIP() << "only root mounts file systems";
  for (const char* type : {"ramfs", "overlay"}) {
    SCOPED_TRACE(type);
    const HostFolder folder(type);
    if (!folder.is_mounted() && std::string_view(type) == "overlay") continue;  // a kernel without this module
    ASSERT_TRUE(folder.is_mounted());
    expect_fixed_uid_is_needed(folder);
  }
}

// A datagram to the launcher has a limit, which thousands of volumes exceed.
TEST(Volumes, TooManyFoldersPreventTheStart) {
  SandboxConfig config = make_test_config();
  for (int number = 0; number < 2000; ++number)
    config.volumes.push_back({1, {"volume" + std::to_string(number), "/srv/a/folder/of/volumes", true, test_owner()}});
  const auto refused = start_sandbox(config);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::invalid);
  EXPECT_NE(refused.error().message.find("2000 volumes"), std::string::npos) << refused.error().message;
}

// Volumes of another owner are still mapped for a job with a fixed id.
TEST(Volumes, FixedUidAppliesToRunsWithFoldersOnly) {
  if (!is_root()) GTEST_SKIP() << "an ordinary user has one id only";
  const HostFolder folder, other;
  (void)!::chown(other.path().c_str(), 34, 34);
  SandboxConfig config = make_test_config();
  config.files = {{1, {kOwner, kOwner}, true}};
  const DedicatedSandbox dedicated = start_dedicated_sandbox(config);
  RunSpec spec = folder.make_run();
  spec.grants.fs_write = {folder.path()};
  spec.grants.volumes.push_back({"other", other.path(), true, {34, 34}});
  const RunResult result = run_attempts(
      *dedicated.sandbox, spec,
      "getuid\nwrite /volumes/data/file x\nwrite /volumes/other/file x\nwrite " + (folder / "second") + " x");
  const std::string uid = run_attempts(*dedicated.sandbox, make_spec(), "getuid").get_result("getuid");
  EXPECT_FALSE(uid.empty());
  EXPECT_NE(uid, result.get_result("getuid")) << "a run without folders has an id of its own";
  EXPECT_EQ(stat_file(folder / "file").st_uid, kOwner) << result.outcome.reason;
  EXPECT_EQ(stat_file(folder / "second").st_uid, kOwner);
  EXPECT_EQ(stat_file(other / "file").st_uid, 34U);
}

TEST(Volumes, OrdinaryUserHasVolumesOfItsOwnOnly) {
  if (is_root()) GTEST_SKIP() << "root maps every owner";
  const HostFolder folder;
  SandboxConfig config = make_test_config();
  config.volumes = {{1, {"data", folder.path(), true, {kOwner, kOwner}}}};
  const auto refused = start_sandbox(config);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("only an agent of root can map ids"), std::string::npos)
      << refused.error().message;
  config.volumes = {{1, {"data", folder.path(), true, test_owner()}}};
  const DedicatedSandbox dedicated = start_dedicated_sandbox(config);
  run_attempts(*dedicated.sandbox, folder.make_run(), "write /volumes/data/file x");
  EXPECT_EQ(stat_file(folder / "file").st_uid, ::geteuid());
}

TEST(Volumes, MissingFolderDoesNotPreventTheStart) {
  SandboxConfig config = make_test_config();
  config.volumes = {{1, {"data", "/srv/mycojobs-test/is/not/there", true, test_owner()}}};
  const DedicatedSandbox dedicated = start_dedicated_sandbox(config);
  const Outcome outcome =
      run_attempts(*dedicated.sandbox, HostFolder::make_run(config.volumes[0].second), "getpid").outcome;
  EXPECT_EQ(to_string(outcome.status), "setup_error");
  EXPECT_NE(outcome.reason.find("/srv/mycojobs-test/is/not/there"), std::string::npos) << outcome.reason;
}

TEST(IdMapping, OwnerIsShownAsTheJobAndRootAsTheOwner) {
  EXPECT_EQ(sandbox::format_mapped_ids(34, 1000), "0 34 1\n1 1 33\n34 1000 1\n35 35 965\n1001 1001 4294966294\n");
  EXPECT_EQ(sandbox::format_mapped_ids(1000, 34), "0 1000 1\n1 1 33\n35 35 965\n1000 34 1\n1001 1001 4294966294\n");
  EXPECT_EQ(sandbox::format_mapped_ids(0, 1000), "0 1000 1\n1 1 999\n1001 1001 4294966294\n");
  EXPECT_EQ(sandbox::format_mapped_ids(1, 2), "0 1 1\n1 2 1\n3 3 4294967292\n");
  EXPECT_EQ(sandbox::format_mapped_ids(7, 7), "0 0 4294967295\n");
  EXPECT_EQ(sandbox::format_mapped_ids(4294967294, 5), "0 4294967294 1\n1 1 4\n6 6 4294967288\n4294967294 5 1\n");
}

}  // namespace
}  // namespace mycojobs::test
