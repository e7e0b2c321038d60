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
  const std::string result = verdict(fd);
  if (fd >= 0) ::close(fd);
  return result;
}

// Returns every mount with its flags from /proc/self/mountinfo: "/tmp rw,nosuid,nodev|/usr ro,...".
std::string all_mounts(const Words&) {
  std::ifstream file("/proc/self/mountinfo");
  if (!file) return error_name();
  std::string all;
  for (std::string line; std::getline(file, line);) {
    std::istringstream fields(line);
    std::string id, parent, device, root, place, flags;
    fields >> id >> parent >> device >> root >> place >> flags;
    all += (all.empty() ? "" : "|") + place + " " + flags;
  }
  return all;
}

std::string list_folder(const std::string& path) {
  DIR* folder = ::opendir(path.c_str());
  if (folder == nullptr) return error_name();
  Words names;
  while (const dirent* entry = ::readdir(folder)) {
    const std::string name = entry->d_name;
    if (name != "." && name != ".." && name != std::to_string(::dirfd(folder))) names.push_back(name);
  }
  ::closedir(folder);
  std::sort(names.begin(), names.end());
  std::string all;
  for (const auto& name : names) all += (all.empty() ? "" : " ") + name;
  return all;
}

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  if (!file) return error_name();
  std::stringstream text;
  text << file.rdbuf();
  std::string flat = text.str();
  std::replace(flat.begin(), flat.end(), '\n', '|');
  std::replace(flat.begin(), flat.end(), '\0', ' ');
  return flat;
}

std::string fill_folder(const Words& words) {
  std::vector<char> block(1 << 20, 'x');
  std::size_t written = 0;
  for (int file = 0; file < 64; ++file) {
    const int fd = ::open((words[1] + "/fill" + std::to_string(file)).c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    if (fd < 0) return error_name();
    ::signal(SIGXFSZ, SIG_IGN);
    for (ssize_t got = 0; (got = ::write(fd, block.data(), block.size())) > 0;)
      written += static_cast<std::size_t>(got);
    const int error = errno;
    ::close(fd);
    if (error != EFBIG)
      return std::string(::strerrorname_np(error)) + " after " + std::to_string(written >> 20) + " MiB";
  }
  return "ok";
}

std::string many_files(const Words& words) {
  for (unsigned long made = 0; made < 1000000; ++made) {
    const int fd = ::open((words[1] + "/f" + std::to_string(made)).c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    if (fd < 0) return error_name();
    ::close(fd);
  }
  return "ok";
}

std::string write_text(const Words& words) {
  std::ofstream file(words[1]);
  file << (words.size() > 2 ? words[2] : "x");
  file.flush();
  return file ? "ok" : error_name();
}

std::string close_after(int fd) {
  const std::string result = verdict(fd);
  if (fd >= 0) ::close(fd);
  return result;
}

// Opens a path relative to the descriptor of a folder.
std::string open_at(const Words& words) {
  const int folder = ::open(words[1].c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return "folder: " + error_name();
  const std::string result = close_after(::openat(folder, words[2].c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  ::close(folder);
  return result;
}

std::string rename_at(const Words& words) {
  const int from = ::open(words[1].c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
  const int to = ::open(words[3].c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (from < 0 || to < 0) return "folder: " + error_name();
  const std::string result = verdict(::renameat(from, words[2].c_str(), to, words[4].c_str()));
  ::close(from);
  ::close(to);
  return result;
}

// Opens a chain of three links that ends at the target.
std::string open_through_links(const Words& words) {
  const std::string place = words[1];
  const std::string names[] = {place + "/chain1", place + "/chain2", place + "/chain3"};
  const std::string targets[] = {names[1], "chain3", words[2]};
  for (int i = 0; i < 3; ++i) {
    if (::symlink(targets[i].c_str(), names[i].c_str()) != 0 && errno != EEXIST) return "link: " + error_name();
  }
  return close_after(::open(names[0].c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
}

// Climbs with ".." from a folder whose descriptor stays open while the working directory changes.
std::string climb_out(const Words& words) {
  const int held = ::open(".", O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (held < 0 || ::chdir("/") != 0 || ::fchdir(held) != 0) return "folder: " + error_name();
  for (int up = 0; up < 64; ++up) {
    if (::chdir("..") != 0) return error_name();
  }
  const std::string result = close_after(::open(words[1].c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (::fchdir(held) != 0) return "back: " + error_name();
  ::close(held);
  return result;
}

std::string current_folder(const Words&) {
  char path[4096];
  return ::getcwd(path, sizeof path) == nullptr ? error_name() : path;
}

// The kernel creates a whiteout, a device node 0:0, in place of the moved file.
std::string rename_with_whiteout(const Words& words) {
  const std::string from = words[1] + "/before", to = words[1] + "/after";
  const int made = ::open(from.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
  if (made >= 0) ::close(made);
  if (::syscall(SYS_renameat2, AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), 4) != 0) return error_name();
  return "opens: " + close_after(::open(from.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
}

std::string clone_tree(const Words& words) {
  struct {
    std::uint64_t flags, mode, resolve;
  } how{static_cast<std::uint64_t>(O_RDONLY | O_CLOEXEC | O_NONBLOCK), 0, number(words, 2)};
  return close_after(static_cast<int>(::syscall(SYS_openat2, AT_FDCWD, words[1].c_str(), &how, sizeof how)));
}

// Reopens the file of a descriptor with another access mode.
std::string reopen(const Words& words) {
  const std::string path = "/proc/self/fd/" + words[1];
  return close_after(::open(path.c_str(), static_cast<int>(number(words, 2)) | O_CLOEXEC | O_NONBLOCK));
}

std::string deep_folders(const Words& words) {
  if (::chdir(words[1].c_str()) != 0) return error_name();
  unsigned long depth = 0;
  while (depth < number(words, 2) && ::mkdir("d", 0700) == 0 && ::chdir("d") == 0) ++depth;
  const std::string result = depth == number(words, 2) ? "ok" : error_name();
  return ::chdir(words[1].c_str()) == 0 ? result : error_name();
}

// Searches all files below the root. Returns a path that contains one of the words, or "none".
std::string search_tree(const Words& words) {
  std::error_code error;
  std::size_t seen = 0;
  for (auto it = std::filesystem::recursive_directory_iterator(
           "/", std::filesystem::directory_options::skip_permission_denied, error);
       it != std::filesystem::recursive_directory_iterator(); it.increment(error)) {
    const std::string path = it->path();
    if (path.rfind("/proc", 0) == 0 || path.rfind("/usr/", 0) == 0) it.disable_recursion_pending();
    if (++seen > 100000) break;
    for (std::size_t i = 1; i < words.size(); ++i) {
      if (path.find(words[i]) != std::string::npos) return path;
    }
  }
  return "none";
}

std::string chmod_then_read(const Words& words) {
  if (::chmod(words[1].c_str(), 0777) != 0) return error_name();
  return close_after(::open(words[1].c_str(), O_RDONLY | O_CLOEXEC));
}

std::string lock_file(const Words& words) {
  const int fd = ::open(words[1].c_str(), O_RDONLY | O_CLOEXEC);
  return fd < 0 ? error_name() : verdict(::flock(fd, LOCK_EX | LOCK_NB));
}

}  // namespace

const Attempts& attempts_on_files() {
  static const Attempts kTable = {
      {"open_read", [](const Words& w) { return open_with(w, O_RDONLY); }},
      {"open_write", [](const Words& w) { return open_with(w, O_WRONLY); }},
      {"open_create", [](const Words& w) { return open_with(w, O_WRONLY | O_CREAT); }},
      {"open_truncate", [](const Words& w) { return open_with(w, O_RDONLY | O_TRUNC); }},
      {"write", write_text},
      {"all_mounts", all_mounts},
      {"read", [](const Words& w) { return read_file(w[1]); }},
      {"list", [](const Words& w) { return list_folder(w[1]); }},
      {"mkdir", [](const Words& w) { return verdict(::mkdir(w[1].c_str(), 0700)); }},
      {"unlink", [](const Words& w) { return verdict(::unlink(w[1].c_str())); }},
      {"rename", [](const Words& w) { return verdict(::rename(w[1].c_str(), w[2].c_str())); }},
      {"hardlink", [](const Words& w) { return verdict(::link(w[1].c_str(), w[2].c_str())); }},
      {"symlink", [](const Words& w) { return verdict(::symlink(w[1].c_str(), w[2].c_str())); }},
      {"mknod",
       [](const Words& w) {
         return verdict(::mknod(w[1].c_str(), static_cast<mode_t>(number(w, 2)) | 0600, ::makedev(1, 3)));
       }},
      {"fill", fill_folder},
      {"files", many_files},
      {"open_at", open_at},
      {"rename_at", rename_at},
      {"open_through_links", open_through_links},
      {"climb_out", climb_out},
      {"cwd", current_folder},
      {"whiteout", rename_with_whiteout},
      {"open_resolved", clone_tree},
      {"reopen", reopen},
      {"deep", deep_folders},
      {"search", search_tree},
      {"chmod_read", chmod_then_read},
      {"chmod", [](const Words& w) { return verdict(::chmod(w[1].c_str(), static_cast<mode_t>(number(w, 2)))); }},
      {"chown", [](const Words& w) { return verdict(::chown(w[1].c_str(), static_cast<uid_t>(number(w, 2)), 0)); }},
      {"touch_times", [](const Words& w) { return verdict(::utimensat(AT_FDCWD, w[1].c_str(), nullptr, 0)); }},
      {"truncate", [](const Words& w) { return verdict(::truncate(w[1].c_str(), static_cast<off_t>(number(w, 2)))); }},
      {"read_link",
       [](const Words& w) {
         char target[4096];
         const ssize_t size = ::readlink(w[1].c_str(), target, sizeof target);
         return size < 0 ? error_name() : std::string(target, static_cast<std::size_t>(size));
       }},
      {"lock", lock_file},
      {"print_into",
       [](const Words& w) {
         const int fd = ::open(w[1].c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
         const std::string block(1 << 20, 'x');
         ssize_t written = 0;
         for (unsigned long i = 0; i < number(w, 2) && written >= 0; ++i)
           written = ::write(fd, block.data(), block.size());
         return verdict(written);
       }},
  };
  return kTable;
}

}  // namespace mycojobs::test
