// Attempts to read, change or create files, and to exceed the limits of folders.
#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "attempt_table.h"

namespace mycojobs::test {
namespace {

std::string open_with(const Words& words, int flags) {
  const int fd = ::open(words[1].c_str(), flags | O_CLOEXEC | O_NONBLOCK, 0600);
  const std::string result = describe_result(fd);
  if (fd >= 0) ::close(fd);
  return result;
}

// Returns every mount with its flags from /proc/self/mountinfo: "/tmp rw,nosuid,nodev|/usr ro,...".
std::string list_mounts(const Words&) {
  std::ifstream file("/proc/self/mountinfo");
  if (!file) return get_errno_name();
  std::string text;
  for (std::string line; std::getline(file, line);) {
    std::istringstream fields(line);
    std::string id, parent, device, root, mount_point, flags;
    fields >> id >> parent >> device >> root >> mount_point >> flags;
    text += (text.empty() ? "" : "|") + mount_point + " " + flags;
  }
  return text;
}

std::string list_folder(const std::string& path) {
  DIR* folder = ::opendir(path.c_str());
  if (folder == nullptr) return get_errno_name();
  Words names;
  while (const dirent* entry = ::readdir(folder)) {
    const std::string name = entry->d_name;
    if (name != "." && name != ".." && name != std::to_string(::dirfd(folder))) names.push_back(name);
  }
  ::closedir(folder);
  std::sort(names.begin(), names.end());
  std::string text;
  for (const auto& name : names) text += (text.empty() ? "" : " ") + name;
  return text;
}

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  if (!file) return get_errno_name();
  std::stringstream contents;
  contents << file.rdbuf();
  std::string escaped_text = contents.str();
  std::replace(escaped_text.begin(), escaped_text.end(), '\n', '|');
  std::replace(escaped_text.begin(), escaped_text.end(), '\0', ' ');
  return escaped_text;
}

std::string fill_folder(const Words& words) {
  std::vector<char> block(1 << 20, 'x');
  std::size_t written_bytes = 0;
  for (int file = 0; file < 64; ++file) {
    const int fd = ::open((words[1] + "/fill" + std::to_string(file)).c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    if (fd < 0) return get_errno_name();
    ::signal(SIGXFSZ, SIG_IGN);
    for (ssize_t size = 0; (size = ::write(fd, block.data(), block.size())) > 0;)
      written_bytes += static_cast<std::size_t>(size);
    const int error = errno;
    ::close(fd);
    if (error != EFBIG)
      return std::string(::strerrorname_np(error)) + " after " + std::to_string(written_bytes >> 20) + " MiB";
  }
  return "ok";
}

std::string create_many_files(const Words& words) {
  for (unsigned long count = 0; count < 1000000; ++count) {
    const int fd = ::open((words[1] + "/f" + std::to_string(count)).c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    if (fd < 0) return get_errno_name();
    ::close(fd);
  }
  return "ok";
}

std::string write_text(const Words& words) {
  std::ofstream file(words[1]);
  file << (words.size() > 2 ? words[2] : "x");
  file.flush();
  return file ? "ok" : get_errno_name();
}

std::string describe_and_close(int fd) {
  const std::string result = describe_result(fd);
  if (fd >= 0) ::close(fd);
  return result;
}

// Opens a path relative to the descriptor of a folder.
std::string open_at(const Words& words) {
  const int folder = ::open(words[1].c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return "folder: " + get_errno_name();
  const std::string result = describe_and_close(::openat(folder, words[2].c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  ::close(folder);
  return result;
}

std::string rename_at(const Words& words) {
  const int source_folder = ::open(words[1].c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
  const int target_folder = ::open(words[3].c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (source_folder < 0 || target_folder < 0) return "folder: " + get_errno_name();
  const std::string result =
      describe_result(::renameat(source_folder, words[2].c_str(), target_folder, words[4].c_str()));
  ::close(source_folder);
  ::close(target_folder);
  return result;
}

// Opens a chain of three links that ends at the target.
std::string open_through_links(const Words& words) {
  const std::string folder = words[1];
  const std::string names[] = {folder + "/chain1", folder + "/chain2", folder + "/chain3"};
  const std::string targets[] = {names[1], "chain3", words[2]};
  for (int i = 0; i < 3; ++i) {
    if (::symlink(targets[i].c_str(), names[i].c_str()) != 0 && errno != EEXIST) return "link: " + get_errno_name();
  }
  return describe_and_close(::open(names[0].c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
}

// Climbs with ".." from a folder whose descriptor stays open while the working directory changes.
std::string climb_out(const Words& words) {
  const int start_folder = ::open(".", O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (start_folder < 0 || ::chdir("/") != 0 || ::fchdir(start_folder) != 0) return "folder: " + get_errno_name();
  for (int level = 0; level < 64; ++level) {
    if (::chdir("..") != 0) return get_errno_name();
  }
  const std::string result = describe_and_close(::open(words[1].c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (::fchdir(start_folder) != 0) return "back: " + get_errno_name();
  ::close(start_folder);
  return result;
}

std::string get_current_folder(const Words&) {
  char path[4096];
  return ::getcwd(path, sizeof path) == nullptr ? get_errno_name() : path;
}

// The kernel creates a whiteout, a device node 0:0, in place of the moved file.
std::string rename_with_whiteout(const Words& words) {
  const std::string from = words[1] + "/before", to = words[1] + "/after";
  const int file = ::open(from.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
  if (file >= 0) ::close(file);
  if (::syscall(SYS_renameat2, AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), 4) != 0) return get_errno_name();
  return "opens: " + describe_and_close(::open(from.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
}

std::string open_with_resolve_flags(const Words& words) {
  struct {
    std::uint64_t flags, mode, resolve;
  } open_how{static_cast<std::uint64_t>(O_RDONLY | O_CLOEXEC | O_NONBLOCK), 0, parse_number(words, 2)};
  return describe_and_close(
      static_cast<int>(::syscall(SYS_openat2, AT_FDCWD, words[1].c_str(), &open_how, sizeof open_how)));
}

// Reopens the file of a descriptor with another access mode.
std::string reopen(const Words& words) {
  const std::string path = "/proc/self/fd/" + words[1];
  return describe_and_close(::open(path.c_str(), static_cast<int>(parse_number(words, 2)) | O_CLOEXEC | O_NONBLOCK));
}

std::string create_deep_folders(const Words& words) {
  if (::chdir(words[1].c_str()) != 0) return get_errno_name();
  unsigned long depth = 0;
  while (depth < parse_number(words, 2) && ::mkdir("d", 0700) == 0 && ::chdir("d") == 0) ++depth;
  const std::string result = depth == parse_number(words, 2) ? "ok" : get_errno_name();
  return ::chdir(words[1].c_str()) == 0 ? result : get_errno_name();
}

// Searches all files below the root. Returns a path that contains one of the words, or "none".
std::string search_tree(const Words& words) {
  std::error_code error;
  std::size_t count = 0;
  for (auto it = std::filesystem::recursive_directory_iterator(
           "/", std::filesystem::directory_options::skip_permission_denied, error);
       it != std::filesystem::recursive_directory_iterator(); it.increment(error)) {
    const std::string path = it->path();
    if (path.rfind("/proc", 0) == 0 || path.rfind("/usr/", 0) == 0) it.disable_recursion_pending();
    if (++count > 100000) break;
    for (std::size_t i = 1; i < words.size(); ++i) {
      if (path.find(words[i]) != std::string::npos) return path;
    }
  }
  return "none";
}

std::string chmod_then_read(const Words& words) {
  if (::chmod(words[1].c_str(), 0777) != 0) return get_errno_name();
  return describe_and_close(::open(words[1].c_str(), O_RDONLY | O_CLOEXEC));
}

// Makes a call that sets the mode of a file: "mode CALL PATH MODE", the mode as an octal number.
std::string set_mode(const Words& words) {
  const std::string& call = words[1];
  const char* const path = words[2].c_str();
  const unsigned long mode = parse_number(words, 3);
  constexpr int kCreate = O_CREAT | O_WRONLY | O_CLOEXEC;
  struct {
    std::uint64_t flags, mode, resolve;
  } open_how{kCreate, mode, 0};
  constexpr long kFchmodat2 = 452;  // newer than the headers
  const auto describe_open = [](long fd) { return describe_and_close(static_cast<int>(fd)); };
  if (call == "open") return describe_open(::syscall(SYS_open, path, kCreate, mode));
  if (call == "openat") return describe_open(::syscall(SYS_openat, AT_FDCWD, path, kCreate, mode));
  if (call == "openat2") return describe_open(::syscall(SYS_openat2, AT_FDCWD, path, &open_how, sizeof open_how));
  if (call == "tmpfile") {
    const std::string folder = words[2].substr(0, words[2].rfind('/'));
    return describe_open(::syscall(SYS_openat, AT_FDCWD, folder.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, mode));
  }
  if (call == "creat") return describe_open(::syscall(SYS_creat, path, mode));
  if (call == "mkdir") return describe_result(::syscall(SYS_mkdir, path, mode));
  if (call == "mkdirat") return describe_result(::syscall(SYS_mkdirat, AT_FDCWD, path, mode));
  if (call == "mknod") return describe_result(::syscall(SYS_mknod, path, S_IFREG | mode, 0));
  if (call == "mknodat") return describe_result(::syscall(SYS_mknodat, AT_FDCWD, path, S_IFREG | mode, 0));
  const int file = ::open(path, kCreate, 0600);
  if (file < 0) return get_errno_name();
  long result = -1;
  if (call == "chmod") result = ::syscall(SYS_chmod, path, mode);
  if (call == "fchmod") result = ::syscall(SYS_fchmod, file, mode);
  if (call == "fchmodat") result = ::syscall(SYS_fchmodat, AT_FDCWD, path, mode);
  if (call == "fchmodat2") result = ::syscall(kFchmodat2, AT_FDCWD, path, mode, 0);
  const std::string text = describe_result(result);
  ::close(file);
  return text;
}

std::string lock_file(const Words& words) {
  const int fd = ::open(words[1].c_str(), O_RDONLY | O_CLOEXEC);
  return fd < 0 ? get_errno_name() : describe_result(::flock(fd, LOCK_EX | LOCK_NB));
}

}  // namespace

const Attempts& file_attempts() {
  static const Attempts kTable = {
      {"open_read", [](const Words& words) { return open_with(words, O_RDONLY); }},
      {"open_write", [](const Words& words) { return open_with(words, O_WRONLY); }},
      {"open_create", [](const Words& words) { return open_with(words, O_WRONLY | O_CREAT); }},
      {"open_truncate", [](const Words& words) { return open_with(words, O_RDONLY | O_TRUNC); }},
      {"write", write_text},
      {"all_mounts", list_mounts},
      {"read", [](const Words& words) { return read_file(words[1]); }},
      {"list", [](const Words& words) { return list_folder(words[1]); }},
      {"mkdir", [](const Words& words) { return describe_result(::mkdir(words[1].c_str(), 0700)); }},
      {"unlink", [](const Words& words) { return describe_result(::unlink(words[1].c_str())); }},
      {"rename", [](const Words& words) { return describe_result(::rename(words[1].c_str(), words[2].c_str())); }},
      {"hardlink", [](const Words& words) { return describe_result(::link(words[1].c_str(), words[2].c_str())); }},
      {"symlink", [](const Words& words) { return describe_result(::symlink(words[1].c_str(), words[2].c_str())); }},
      {"mknod",
       [](const Words& words) {
         return describe_result(
             ::mknod(words[1].c_str(), static_cast<mode_t>(parse_number(words, 2)) | 0600, ::makedev(1, 3)));
       }},
      {"fill", fill_folder},
      {"files", create_many_files},
      {"open_at", open_at},
      {"rename_at", rename_at},
      {"open_through_links", open_through_links},
      {"climb_out", climb_out},
      {"cwd", get_current_folder},
      {"whiteout", rename_with_whiteout},
      {"open_resolved", open_with_resolve_flags},
      {"reopen", reopen},
      {"deep", create_deep_folders},
      {"search", search_tree},
      {"chmod_read", chmod_then_read},
      {"chmod",
       [](const Words& words) {
         return describe_result(::chmod(words[1].c_str(), static_cast<mode_t>(parse_number(words, 2))));
       }},
      {"chown",
       [](const Words& words) {
         return describe_result(::chown(words[1].c_str(), static_cast<uid_t>(parse_number(words, 2)), 0));
       }},
      {"touch_times",
       [](const Words& words) { return describe_result(::utimensat(AT_FDCWD, words[1].c_str(), nullptr, 0)); }},
      {"truncate",
       [](const Words& words) {
         return describe_result(::truncate(words[1].c_str(), static_cast<off_t>(parse_number(words, 2))));
       }},
      {"read_link",
       [](const Words& words) {
         char target[4096];
         const ssize_t size = ::readlink(words[1].c_str(), target, sizeof target);
         return size < 0 ? get_errno_name() : std::string(target, static_cast<std::size_t>(size));
       }},
      {"lock", lock_file},
      {"mode", set_mode},
      {"print_into",
       [](const Words& words) {
         const int fd = ::open(words[1].c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
         const std::string block(1 << 20, 'x');
         ssize_t written = 0;
         for (unsigned long i = 0; i < parse_number(words, 2) && written >= 0; ++i)
           written = ::write(fd, block.data(), block.size());
         return describe_result(written);
       }},
  };
  return kTable;
}

}  // namespace mycojobs::test
