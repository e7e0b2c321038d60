#include "sandbox/launcher/zygote_start.h"

#include <dirent.h>
#include <fcntl.h>
#include <glob.h>
#include <poll.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "base/fd.h"
#include "sandbox/messages.h"
#include "sandbox/pidfd.h"
#include "sandbox/zygote/child.h"

namespace mycojobs::sandbox {
namespace {

// The root file system of a zygote and its jobs: a tmpfs with the system mounted read-only, sealed before any code runs
// in it.
//
//   /usr              the host's, read-only, nosuid, nodev, with all mounts below
//   /bin /lib ...     as on the host: links into /usr, or mounted like /usr
//   /etc              few files, generated or copied; some folders mounted read-only. passwd and group are generated
//   /dev              null zero full random urandom, links, shm
//   /host             the script host's program
//   /venv ...         read-only, the folders of the script host, each at its own path
//   /proc /tmp /job   mount points of a job
//   /srv /volumes ... empty; grants of a run are mounted below (sandbox/zygote/confine.cpp)
//
// The functions run in the child that becomes the zygote. Each function is a step and returns 0 or an errno.
constexpr const char* kProgramPath = "/host";  // path of the script host's program in the new root
struct Program {
  std::string path;
  // A detached mount of the program, or -1 if the process may not create it; `path` is mounted instead.
  int fd = -1;
};
struct HostFolder {
  std::string mount_point;
  int fd = -1;  // a detached mount
};

constexpr const char* kSystemFolders[] = {"/usr", "/bin", "/sbin", "/lib", "/lib64", "/lib32", "/libx32"};
constexpr const char* kEtcFolders[] = {"/etc/ssl/certs", "/etc/alternatives", "/etc/python3",
                                       "/etc/python" MYCOJOBS_PYTHON_VERSION};
constexpr const char* kEtcFiles[] = {"/etc/ld.so.cache", "/etc/localtime", "/etc/timezone",   "/etc/mime.types",
                                     "/etc/services",    "/etc/protocols", "/etc/os-release", "/etc/ssl/openssl.cnf"};
// Configuration of Debian packages that R, Java, ImageMagick and fontconfig require, as glob(3) patterns. Each pattern
// matches files of a package only: a key store that an operator adds beside them does not match. Files into which an
// operator may put a secret are not listed: Renviron.site, repositories, net.properties, /etc/php. From the file
// kRenviron only the variables of the package are copied.
constexpr const char* kRenviron = "/etc/R/Renviron";
constexpr std::string_view kRenvironPrefix = "R_";
constexpr std::string_view kRenvironVariables[] = {"EDITOR", "LN_S", "MAKE", "PAGER", "SED", "TAR"};
constexpr const char* kPackageConfigFiles[] = {"/etc/R/ldpaths",
                                               kRenviron,
                                               "/etc/R/Makeconf",
                                               "/etc/java-*-openjdk/jvm-*.cfg",
                                               "/etc/java-*-openjdk/logging.properties",
                                               "/etc/java-*-openjdk/security/*.certs",
                                               "/etc/java-*-openjdk/security/*.policy",
                                               "/etc/java-*-openjdk/security/java.security",
                                               "/etc/java-*-openjdk/security/nss.cfg",
                                               "/etc/java-*-openjdk/security/public_suffix_list.dat",
                                               "/etc/java-*-openjdk/security/policy/*/*.policy",
                                               "/etc/fonts/fonts.conf",
                                               "/etc/fonts/conf.d/*.conf",
                                               "/etc/ImageMagick-*/colors.xml",
                                               "/etc/ImageMagick-*/type*.xml"};
struct GeneratedFile {
  const char* path;
  const char* text;
};
constexpr GeneratedFile kGeneratedFiles[] = {
    {"/etc/passwd", "root:x:0:0:root:/:/usr/sbin/nologin\nnobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n"},
    {"/etc/group", "root:x:0:\nnogroup:x:65534:\n"},
    {"/etc/hosts", "127.0.0.1 localhost\n::1 localhost\n"},
    {"/etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files\n"},
    {"/etc/hostname", "mycojobs\n"},
};
struct Device {
  const char* path;
  unsigned major_number, minor_number;
};
constexpr Device kDevices[] = {
    {"/dev/null", 1, 3}, {"/dev/zero", 1, 5}, {"/dev/full", 1, 7}, {"/dev/random", 1, 8}, {"/dev/urandom", 1, 9}};
struct Link {
  const char* path;
  const char* target;
};
constexpr Link kDeviceLinks[] = {{"/dev/fd", "/proc/self/fd"},
                                 {"/dev/stdin", "/proc/self/fd/0"},
                                 {"/dev/stdout", "/proc/self/fd/1"},
                                 {"/dev/stderr", "/proc/self/fd/2"}};
constexpr const char* kFolders[] = {"/etc", "/etc/ssl", "/dev", "/dev/shm", "/proc",
                                    "/tmp", "/job",     "/var", "/var/tmp"};
// Folders below which granted folders may appear; empty otherwise.
constexpr const char* kGrantFolders[] = {"/srv", "/opt", "/home", "/mnt", "/media", "/data", kVolumesFolder, "/packages"};

// A folder of the host on which the new root is mounted while it is built, in this mount namespace only.
constexpr const char* kNewRoot = "/sys";
std::string in_new_root(const char* path) { return std::string(kNewRoot) + path; }

int seal_mounts(const std::string& path, std::uint64_t attributes) {
  mount_attr attr{};
  attr.attr_set = attributes;
  return error_if(::mount_setattr(AT_FDCWD, path.c_str(), AT_RECURSIVE, &attr, sizeof attr) != 0);
}

// Includes all mounts below, which cannot be separated in a new user namespace.
int bind_folder(const char* path) {
  const std::string target = in_new_root(path);
  if (::mkdir(target.c_str(), 0755) != 0) return errno;
  if (::mount(path, target.c_str(), nullptr, MS_BIND | MS_REC, nullptr) != 0) return errno;
  return seal_mounts(target, MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV);
}

int make_file(const char* path, const std::string& text) {
  const Fd file(::open(in_new_root(path).c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!file) return errno;
  return error_if(::write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()));
}

int copy_link(const char* path) {
  char target[4096];
  const ssize_t size = ::readlink(path, target, sizeof target - 1);
  if (size < 0) return errno;
  target[size] = '\0';
  return error_if(::symlink(target, in_new_root(path).c_str()) != 0);
}

constexpr std::size_t kMaxCopiedBytes = 1U << 20;
std::string read_content(const Fd& file) {
  std::string text;
  char buffer[16384];
  for (ssize_t size = 0; (size = ::read(file.get(), buffer, sizeof buffer)) > 0 && text.size() < kMaxCopiedBytes;) {
    text.append(buffer, static_cast<std::size_t>(size));
  }
  return text;
}

// Opens a regular file that every user of the host may read, including access to its parent folders. Empty: the file is
// missing or not public.
Fd open_public(const char* path, int flags) {
  Fd file(::open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | flags));
  struct stat info {};
  if (!file || ::fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode) || (info.st_mode & S_IROTH) == 0) return {};
  const std::unique_ptr<char, decltype(&std::free)> resolved(::realpath(path, nullptr), &std::free);
  if (!resolved) return {};
  const std::string real = resolved.get();
  for (std::size_t slash = real.find('/', 1); slash != std::string::npos; slash = real.find('/', slash + 1)) {
    if (::stat(real.substr(0, slash).c_str(), &info) != 0 || (info.st_mode & S_IXOTH) == 0) return {};
  }
  return file;
}

// Removes variables that the operator added, since one of them may be a password.
std::string keep_package_variables(const std::string& text) {
  std::string result;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::string_view name = std::string_view(line).substr(0, line.find('='));
    const bool is_known =
        name.starts_with(kRenvironPrefix) ||
        std::find(std::begin(kRenvironVariables), std::end(kRenvironVariables), name) != std::end(kRenvironVariables);
    if (is_known && name.size() < line.size()) result += line + '\n';
  }
  return result;
}

// Copies a file, since each mount costs time in every job. Unreadable files are skipped; no program depends on them.
int copy_file(const char* path) {
  const Fd file = open_public(path, O_NOFOLLOW);
  if (!file) return 0;
  const std::string text = read_content(file);
  return text.size() < kMaxCopiedBytes ? make_file(path, text) : 0;
}

int make_parent_folders(const std::string& path) {
  for (std::size_t slash = path.find('/', 1); slash != std::string::npos; slash = path.find('/', slash + 1)) {
    if (::mkdir(in_new_root(path.substr(0, slash).c_str()).c_str(), 0755) != 0 && errno != EEXIST) return errno;
  }
  return 0;
}

// Copies public files; a link is copied as its target. Stops at a total size and number that leave enough space in the
// root.
int copy_matches(const char* pattern, std::size_t& remaining_bytes, std::size_t& remaining_files) {
  glob_t matches{};
  int error = 0;
  if (::glob(pattern, 0, nullptr, &matches) == 0) {
    for (std::size_t i = 0; i < matches.gl_pathc && error == 0; ++i) {
      const char* path = matches.gl_pathv[i];
      const Fd file = open_public(path, 0);
      if (!file) continue;
      std::string text = read_content(file);
      if (std::strcmp(path, kRenviron) == 0) text = keep_package_variables(text);
      if (text.size() > remaining_bytes || remaining_files == 0) break;
      remaining_bytes -= text.size();
      --remaining_files;
      error = make_parent_folders(path);
      if (error == 0) error = make_file(path, text);
    }
  }
  ::globfree(&matches);
  return error;
}

int copy_configuration_of_programs() {
  std::size_t remaining_bytes = 2U << 20, remaining_files = 300;
  for (const char* pattern : kPackageConfigFiles) {
    if (int error = copy_matches(pattern, remaining_bytes, remaining_files); error != 0) return error;
  }
  return 0;
}

// Replicates a path of the host: a link, a folder, a file, or nothing.
int mirror(const char* path) {
  struct stat info {};
  if (::lstat(path, &info) != 0) return 0;
  if (S_ISLNK(info.st_mode)) return copy_link(path);
  return S_ISDIR(info.st_mode) ? bind_folder(path) : copy_file(path);
}

// Checks the device number, since a host folder prepared by another user may contain any file.
int bind_device(const Device& device) {
  struct stat info {};
  if (::stat(device.path, &info) != 0) return errno;
  if (!S_ISCHR(info.st_mode) || info.st_rdev != ::makedev(device.major_number, device.minor_number)) return ENODEV;
  if (int error = make_file(device.path, {}); error != 0) return error;
  if (::mount(device.path, in_new_root(device.path).c_str(), nullptr, MS_BIND, nullptr) != 0) return errno;
  // the file times are those of the host's node
  return seal_mounts(in_new_root(device.path), MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC);
}

// Uses a read-only mount: without a range of ids, the job's user owns the program on the host and could otherwise
// change its mode through /proc/self/exe.
int bind_program(const Program& program) {
  if (int error = make_file(kProgramPath, {}); error != 0) return error;
  if (::move_mount(program.fd, "", AT_FDCWD, in_new_root(kProgramPath).c_str(), MOVE_MOUNT_F_EMPTY_PATH) != 0 &&
      ::mount(program.path.c_str(), in_new_root(kProgramPath).c_str(), nullptr, MS_BIND, nullptr) != 0) {
    return errno;
  }
  return seal_mounts(in_new_root(kProgramPath), MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV);
}

int mount_folder(const HostFolder& folder) {
  const std::string target = in_new_root(folder.mount_point.c_str());
  if (::mkdir(target.c_str(), 0755) != 0) return errno;
  return error_if(::move_mount(folder.fd, "", AT_FDCWD, target.c_str(), MOVE_MOUNT_F_EMPTY_PATH) != 0);
}

int fill_root() {
  for (const char* path : kFolders) {
    if (::mkdir(in_new_root(path).c_str(), 0755) != 0) return errno;
  }
  for (const char* path : kGrantFolders) {
    if (::mkdir(in_new_root(path).c_str(), 0111) != 0) return errno;
  }
  for (const char* path : kSystemFolders) {
    if (int error = mirror(path); error != 0) return error;
  }
  for (const char* path : kEtcFolders) {
    if (int error = mirror(path); error != 0) return error;
  }
  for (const char* path : kEtcFiles) {
    if (int error = mirror(path); error != 0) return error;
  }
  if (int error = copy_configuration_of_programs(); error != 0) return error;
  for (const auto& file : kGeneratedFiles) {
    if (int error = make_file(file.path, file.text); error != 0) return error;
  }
  for (const auto& device : kDevices) {
    if (int error = bind_device(device); error != 0) return error;
  }
  for (const auto& link : kDeviceLinks) {
    if (::symlink(link.target, in_new_root(link.path).c_str()) != 0) return errno;
  }
  // A job may mount its own /proc only if an unmasked one is visible. This one shows the zygote's namespace.
  return error_if(::mount("proc", in_new_root("/proc").c_str(), "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, nullptr) !=
                  0);
}

int build_root(const Program& program, const std::vector<HostFolder>& folders) {
  ::umask(0);  // use the given modes unchanged
  if (::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return errno;
  if (::mount("root", kNewRoot, "tmpfs", MS_NOSUID | MS_NODEV, "size=8m,nr_inodes=1024,mode=755") != 0) return errno;
  if (int error = bind_program(program); error != 0) return error;
  if (int error = fill_root(); error != 0) return error;
  for (const auto& folder : folders) {
    if (int error = mount_folder(folder); error != 0) return error;
  }
  return 0;
}

int enter_root() {
  if (::chdir(kNewRoot) != 0) return errno;
  // The old root is stacked onto the new one and detached from there, so it never has a path.
  if (::syscall(SYS_pivot_root, ".", ".") != 0) return errno;
  if (::umount2(".", MNT_DETACH) != 0) return errno;
  return error_if(::chdir("/") != 0);
}

int seal_root() {
  mount_attr attr{};
  attr.attr_set = MOUNT_ATTR_RDONLY;
  return error_if(::mount_setattr(AT_FDCWD, "/", 0, &attr, sizeof attr) != 0);
}

constexpr int kNamespaceFlags = CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS;

struct ZygoteChild {
  const ZygoteStart& start;
  int program, control, err;
  const std::vector<HostFolder>& folders;
};

// The child is a copy of the launcher and has its descriptors: the launcher's end of the child's control socket, and
// the agent's socket. If they stayed open, neither side could detect that the other end has closed.
int close_launcher_files(ZygoteChild& child) {
  std::vector<int> kept_fds{STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO, child.control, child.err};
  if (child.program >= 0) kept_fds.push_back(child.program);
  for (const HostFolder& folder : child.folders) kept_fds.push_back(folder.fd);
  std::sort(kept_fds.begin(), kept_fds.end());
  kept_fds.push_back(INT_MAX);
  for (std::size_t i = 1; i < kept_fds.size(); ++i) {
    const int first = kept_fds[i - 1] + 1, last = kept_fds[i] - 1;
    if (first <= last && ::close_range(first, last, 0) != 0) return errno;
  }
  return 0;
}

int set_parent_death_signal(ZygoteChild&) { return error_if(::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0); }

// Also proves that the launcher is alive: it may have died before PR_SET_PDEATHSIG was set.
int wait_for_id_maps(ZygoteChild& child) {
  RawFrame frame;
  MapsWritten written;
  if (receive_raw(child.control, frame) != ReceiveResult::frame || !decode(frame, written)) ::_exit(0);
  return 0;
}

// A change of user ids clears PR_SET_PDEATHSIG, and the launcher may have died since.
int set_parent_death_signal_again(ZygoteChild& child) {
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) return errno;
  pollfd ended{child.control, 0, 0};
  if (::poll(&ended, 1, 0) == 1) ::_exit(0);
  return 0;
}

int become_namespace_root(ZygoteChild& child) {
  if (child.start.ids.has_id_per_job() && ::syscall(SYS_setgroups, 0, nullptr) != 0) return errno;
  if (::syscall(SYS_setresgid, 0, 0, 0) != 0) return errno;
  return error_if(::syscall(SYS_setresuid, 0, 0, 0) != 0);
}

// The launcher ignores terminal signals, and ignored signals are inherited by exec.
int start_session(ZygoteChild&) {
  for (int number = 1; number < NSIG; ++number) ::signal(number, SIG_DFL);
  sigset_t no_signals;
  ::sigemptyset(&no_signals);
  ::sigprocmask(SIG_SETMASK, &no_signals, nullptr);
  return error_if(::setsid() < 0);
}
int set_host_name(ZygoteChild&) { return error_if(::sethostname("mycojobs", 8) != 0); }
int create_root(ZygoteChild& child) { return build_root({child.start.host.program, child.program}, child.folders); }
int pivot_to_root(ZygoteChild&) { return enter_root(); }
int seal_mounts(ZygoteChild&) { return seal_root(); }

// A further user namespace would give a job all capabilities inside it. Forbids this for the namespace and its
// descendants, and verifies the effect, which must not depend on seccomp.
int forbid_user_namespaces(ZygoteChild&) {
  {
    const Fd limit(::open("/proc/sys/user/max_user_namespaces", O_WRONLY | O_CLOEXEC));
    if (!limit || ::write(limit.get(), "0", 1) != 1) return errno;
  }
  if (::unshare(CLONE_NEWUSER) == 0) return ENOTRECOVERABLE;
  return errno == ENOSPC || errno == EPERM || errno == EUSERS ? 0 : errno;
}

int arrange_descriptors(ZygoteChild& child) {
  const int null_fd = ::open("/dev/null", O_RDWR);
  const int sources[] = {null_fd, null_fd, child.err, child.control};
  int duplicates[4];
  for (int i = 0; i < 4; ++i) {
    duplicates[i] = ::fcntl(sources[i], F_DUPFD, 16);
    if (duplicates[i] < 0) return errno;
  }
  for (int i = 0; i < 4; ++i) {
    if (::dup2(duplicates[i], i) < 0) return errno;
  }
  child.control = 3;
  return error_if(::close_range(4, ~0U, 0) != 0);
}

int run_program(ZygoteChild& child) {
  const std::string& program = child.start.host.program;
  std::string name = program.substr(program.rfind('/') + 1);  // npos + 1 is 0
  std::vector<std::string> arguments = child.start.host.arguments;
  std::vector<char*> argv{name.data()};
  for (auto& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  char* environment[] = {nullptr};
  ::fcntl(child.control, F_SETFL, 0);
  ::execve(kProgramPath, argv.data(), environment);
  return errno;
}

struct StartStep {
  const char* name;
  int (*run)(ZygoteChild&);
};
constexpr StartStep kSteps[] = {
    {"zygote_files", close_launcher_files},
    {"zygote_parent", set_parent_death_signal},
    {"zygote_maps", wait_for_id_maps},
    {"zygote_ids", become_namespace_root},
    {"zygote_parent_again", set_parent_death_signal_again},
    {"zygote_session", start_session},
    {"zygote_hostname", set_host_name},
    {"zygote_root", create_root},
    {"zygote_pivot", pivot_to_root},
    {"zygote_seal", seal_mounts},
    {"zygote_userns_limit", forbid_user_namespaces},
    {"zygote_descriptors", arrange_descriptors},
    {"zygote_exec", run_program},
};

[[noreturn]] void run_child(ZygoteChild child) {
  for (const StartStep& step : kSteps) {
    if (is_disabled(child.start.disabled_steps, step.name)) continue;
    int error = step.run(child);
    if (child.start.fail_step == step.name) error = EIO;
    if (error == 0) continue;
    send_message(child.control, SetupStepFailed{step.name, error});
    ::_exit(1);
  }
  ::_exit(1);
}

// Writes the id maps and sends the zygote's first messages. Returns 0 or an errno.
int send_first_messages(const StartedZygote& zygote, const ZygoteStart& start) {
  int error = write_id_maps(zygote.pid, start.ids, start.fixed_owner);
  if (start.fail_step == "zygote_write_maps") error = EIO;
  if (error == 0) error = send_message(zygote.control.get(), MapsWritten{});
  if (error != 0) return error;
  std::vector<int> fds{start.filters};
  if (start.alive_fd >= 0) fds.push_back(start.alive_fd);
  return send_raw(zygote.control.get(), encode(ZygoteSetup{start.fail_step, start.disabled_steps, start.job_niceness}),
                  fds);
}

// Kills the child. If the child has already failed, its failure is the reason.
StartFailure kill_failed(const StartedZygote& zygote, int error) {
  ::kill(zygote.pid, SIGKILL);
  ::waitpid(zygote.pid, nullptr, 0);
  RawFrame frame;
  SetupStepFailed child_failure;
  if (receive_raw(zygote.control.get(), frame) == ReceiveResult::frame && decode(frame, child_failure))
    return {child_failure.step, child_failure.error};
  return {"zygote_write_maps", error};
}

}  // namespace

tl::expected<StartedZygote, StartFailure> start_zygote(const ZygoteStart& start) {
  const auto fail_with_errno = [](const char* step) { return tl::unexpected(StartFailure{step, errno}); };
  const std::string& path = start.host.program;
  if (::access(path.c_str(), X_OK) != 0) return fail_with_errno("zygote_program");
  const Fd program(::open_tree(AT_FDCWD, path.c_str(), OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC));
  std::vector<HostFolder> folders;
  for (std::size_t i = 0; i < start.host.folders.size(); ++i)
    folders.push_back({start.host.folders[i].mount_point, start.folders.at(i).get()});
  int control[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, control) != 0) return fail_with_errno("zygote_socket");
  StartedZygote zygote;
  zygote.control.reset(control[0]);
  const Fd child_socket(control[1]);
  int err[2];
  if (::pipe2(err, O_CLOEXEC) != 0) return fail_with_errno("zygote_socket");
  zygote.err.reset(err[0]);
  const Fd child_err(err[1]);
  ::fcntl(zygote.control.get(), F_SETFL, O_NONBLOCK);
  ::fcntl(zygote.err.get(), F_SETFL, O_NONBLOCK);

  const int flags = kNamespaceFlags & ~(is_disabled(start.disabled_steps, "netns") ? CLONE_NEWNET : 0);
  const long pid = ::syscall(SYS_clone, flags | SIGCHLD, nullptr, nullptr, nullptr, nullptr);
  if (pid < 0) return fail_with_errno("zygote_namespaces");
  if (pid == 0) run_child({start, program.get(), child_socket.get(), child_err.get(), folders});
  zygote.pid = static_cast<pid_t>(pid);
  zygote.pidfd.reset(::pidfd_open(zygote.pid, 0));
  if (int error = send_first_messages(zygote, start); error != 0) return tl::unexpected(kill_failed(zygote, error));
  return zygote;
}

}  // namespace mycojobs::sandbox
