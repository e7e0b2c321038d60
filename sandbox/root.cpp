#include "sandbox/root.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "base/fd.h"
#include "sandbox/job.h"

namespace mycojobs::sandbox {
namespace {

constexpr const char* kSystemFolders[] = {"/usr", "/bin", "/sbin", "/lib", "/lib64", "/lib32", "/libx32"};
constexpr const char* kEtcFolders[] = {"/etc/ssl/certs", "/etc/alternatives", "/etc/python3", "/etc/python3.11"};
constexpr const char* kEtcFiles[] = {"/etc/ld.so.cache", "/etc/localtime", "/etc/timezone",   "/etc/mime.types",
                                     "/etc/services",    "/etc/protocols", "/etc/os-release", "/etc/ssl/openssl.cnf"};
struct MadeFile {
  const char* path;
  const char* text;
};
constexpr MadeFile kMadeFiles[] = {
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
// Where granted folders may appear; there is nothing to look at before.
constexpr const char* kGrantFolders[] = {"/srv", "/opt", "/home", "/mnt", "/media", "/data"};

// A folder that exists on every host and holds no program; it is covered, in our namespace only, while the root is
// built.
constexpr const char* kPlace = "/sys";
std::string at(const char* path) { return std::string(kPlace) + path; }

int seal(const std::string& path, std::uint64_t attributes) {
  mount_attr attr{};
  attr.attr_set = attributes;
  return error_if(::mount_setattr(AT_FDCWD, path.c_str(), AT_RECURSIVE, &attr, sizeof attr) != 0);
}

// With all mounts below: in a new user namespace they cannot be taken apart.
int bind_folder(const char* path) {
  const std::string target = at(path);
  if (::mkdir(target.c_str(), 0755) != 0) return errno;
  if (::mount(path, target.c_str(), nullptr, MS_BIND | MS_REC, nullptr) != 0) return errno;
  return seal(target, MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV);
}

int make_file(const char* path, const std::string& text) {
  const Fd file(::open(at(path).c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!file) return errno;
  return error_if(::write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()));
}

int copy_link(const char* path) {
  char target[4096];
  const ssize_t size = ::readlink(path, target, sizeof target - 1);
  if (size < 0) return errno;
  target[size] = '\0';
  return error_if(::symlink(target, at(path).c_str()) != 0);
}

// A copy costs no mount, and mounts cost every job. What cannot be read is left out: nothing depends on it.
int copy_file(const char* path) {
  constexpr std::size_t kMost = 1U << 20;
  const Fd file(::open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  if (!file) return 0;
  std::string text;
  char part[16384];
  for (ssize_t got = 0; (got = ::read(file.get(), part, sizeof part)) > 0 && text.size() < kMost;) {
    text.append(part, static_cast<std::size_t>(got));
  }
  return text.size() < kMost ? make_file(path, text) : 0;
}

// As it is on the host: a link, a folder, a file, or nothing.
int mirror(const char* path) {
  struct stat info {};
  if (::lstat(path, &info) != 0) return 0;
  if (S_ISLNK(info.st_mode)) return copy_link(path);
  return S_ISDIR(info.st_mode) ? bind_folder(path) : copy_file(path);
}

// The node must be what its name says: a host folder prepared by somebody else may hold anything.
int bind_device(const Device& device) {
  struct stat info {};
  if (::stat(device.path, &info) != 0) return errno;
  if (!S_ISCHR(info.st_mode) || info.st_rdev != ::makedev(device.major_number, device.minor_number)) return ENODEV;
  if (int error = make_file(device.path, {}); error != 0) return error;
  if (::mount(device.path, at(device.path).c_str(), nullptr, MS_BIND, nullptr) != 0) return errno;
  return seal(at(device.path), MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC);  // its times are the host's
}

// Through a mount of our own that nobody can write: whoever owns the program on the host is the job's user where there
// is only one, and could else change its mode through /proc/self/exe.
int bind_program(const Program& program) {
  if (int error = make_file(kProgram, {}); error != 0) return error;
  if (::move_mount(program.fd, "", AT_FDCWD, at(kProgram).c_str(), MOVE_MOUNT_F_EMPTY_PATH) != 0 &&
      ::mount(program.path.c_str(), at(kProgram).c_str(), nullptr, MS_BIND, nullptr) != 0) {
    return errno;
  }
  return seal(at(kProgram), MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV);
}

int mount_folder(const HostFolder& folder) {
  const std::string target = at(folder.place.c_str());
  if (::mkdir(target.c_str(), 0755) != 0) return errno;
  return error_if(::move_mount(folder.fd, "", AT_FDCWD, target.c_str(), MOVE_MOUNT_F_EMPTY_PATH) != 0);
}

int fill_root() {
  for (const char* path : kFolders) {
    if (::mkdir(at(path).c_str(), 0755) != 0) return errno;
  }
  for (const char* path : kGrantFolders) {
    if (::mkdir(at(path).c_str(), 0111) != 0) return errno;
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
  for (const auto& file : kMadeFiles) {
    if (int error = make_file(file.path, file.text); error != 0) return error;
  }
  for (const auto& device : kDevices) {
    if (int error = bind_device(device); error != 0) return error;
  }
  for (const auto& link : kDeviceLinks) {
    if (::symlink(link.target, at(link.path).c_str()) != 0) return errno;
  }
  // A job may mount its own /proc only where one is visible in full. This one shows the zygote's namespace.
  return error_if(::mount("proc", at("/proc").c_str(), "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, nullptr) != 0);
}

}  // namespace

int build_root(const Program& program, const std::vector<HostFolder>& folders) {
  ::umask(0);  // modes are what we say
  if (::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return errno;
  if (::mount("root", kPlace, "tmpfs", MS_NOSUID | MS_NODEV, "size=8m,nr_inodes=1024,mode=755") != 0) return errno;
  if (int error = bind_program(program); error != 0) return error;
  if (int error = fill_root(); error != 0) return error;
  for (const auto& folder : folders) {
    if (int error = mount_folder(folder); error != 0) return error;
  }
  return 0;
}

int enter_root() {
  if (::chdir(kPlace) != 0) return errno;
  // The old root comes to lie on the new one, and is let go from there: it has no path even for a moment.
  if (::syscall(SYS_pivot_root, ".", ".") != 0) return errno;
  if (::umount2(".", MNT_DETACH) != 0) return errno;
  return error_if(::chdir("/") != 0);
}

int seal_root() {
  mount_attr attr{};
  attr.attr_set = MOUNT_ATTR_RDONLY;
  return error_if(::mount_setattr(AT_FDCWD, "/", 0, &attr, sizeof attr) != 0);
}

}  // namespace mycojobs::sandbox
