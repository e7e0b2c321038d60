// as_user UID PROGRAM [ARGUMENT...] runs a program as an unprivileged user. The user owns only a folder for HOME and
// TMPDIR, and a cgroup below the cgroup of this process, as delegated by systemd. Both are removed at the end.
#include <fcntl.h>
#include <grp.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "sandbox/cgroup.h"
#include "support/build_paths.h"

namespace {

namespace fs = std::filesystem;

bool write_text(const std::string& path, const std::string& text) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  const bool ok = fd >= 0 && ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  if (fd >= 0) ::close(fd);
  return ok;
}

std::vector<std::string> delegate_cgroups(uid_t uid) {
  std::vector<std::string> folders;
  for (const auto& cgroup : mycojobs::sandbox::find_cgroups()) {
    const std::string folder = cgroup.path + "/mycojobs-as-user-" + std::to_string(::getpid());
    if (::mkdir(folder.c_str(), 0755) != 0) continue;
    folders.push_back(folder);
    for (const char* file : {"", "/cgroup.procs", "/tasks", "/cgroup.subtree_control", "/cgroup.threads"}) {
      (void)!::chown((folder + file).c_str(), uid, uid);  // Not every cgroup version has all of these files.
    }
  }
  return folders;
}

// Removes child groups first, because a group with children cannot be removed. An exiting process can make a group busy
// for a moment.
void remove_cgroups(const std::string& folder) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (entry.is_directory(error)) remove_cgroups(entry.path());
  }
  for (int tries = 0; tries < 200 && ::rmdir(folder.c_str()) != 0 && errno == EBUSY; ++tries) ::usleep(10000);
}

// Returns the first folder of the path that other users cannot enter, or "" if there is none.
std::string find_closed_folder(const std::string& path) {
  for (std::size_t slash = path.find('/', 1);; slash = path.find('/', slash + 1)) {
    const std::string folder = path.substr(0, slash);
    struct stat info {};
    if (::stat(folder.c_str(), &info) == 0 && (info.st_mode & S_IXOTH) == 0) return folder;
    if (slash == std::string::npos) return {};
  }
}

// If the source tree is below a closed folder (for example the home of root), makes it accessible at the same path in a
// new mount namespace that contains nothing else of the closed folder.
bool expose_source_tree() {
  const std::string source = mj::test::source_folder();
  const std::string closed_folder = find_closed_folder(fs::path(source).parent_path());
  if (closed_folder.empty()) return true;
  const int tree = ::open_tree(AT_FDCWD, source.c_str(), OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_RECURSIVE);
  std::error_code error;
  return tree >= 0 && ::unshare(CLONE_NEWNS) == 0 &&
         ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         ::mount("tmpfs", closed_folder.c_str(), "tmpfs", 0, "mode=755,size=1m") == 0 &&
         (fs::create_directories(source, error), !error) &&
         ::move_mount(tree, "", AT_FDCWD, source.c_str(), MOVE_MOUNT_F_EMPTY_PATH) == 0;
}

[[noreturn]] void exec_as_user(uid_t uid, const std::vector<std::string>& groups, const std::string& home,
                               char** argv) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (const auto& folder : groups) {
    if (!write_text(folder + "/cgroup.procs", "0")) std::perror(folder.c_str());
  }
  if (!expose_source_tree())
    std::perror(("as_user: cannot make the source tree accessible: " + mj::test::source_folder()).c_str());
  ::setenv("HOME", home.c_str(), 1);
  ::setenv("TMPDIR", home.c_str(), 1);
  ::setenv("USER", "ordinary", 1);
  if (!groups.empty()) ::setenv("MYCOJOBS_TEST_DELEGATED", "1", 1);
  if (::chdir(home.c_str()) != 0 || ::setgroups(0, nullptr) != 0 || ::setresgid(uid, uid, uid) != 0 ||
      ::setresuid(uid, uid, uid) != 0) {
    std::perror("as_user");
    ::_exit(126);
  }
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // setresuid() has cleared the parent-death signal.
  ::execv(argv[0], argv);
  std::perror(argv[0]);
  ::_exit(127);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: as_user UID PROGRAM [ARGUMENT...]\n");
    return 64;
  }
  if (::geteuid() != 0) {  // This process already runs as an unprivileged user.
    ::execv(argv[2], argv + 2);
    std::perror(argv[2]);
    return 127;
  }
  const auto uid = static_cast<uid_t>(std::strtoul(argv[1], nullptr, 10));
  char home[] = "/tmp/mycojobs-home-XXXXXX";
  if (::mkdtemp(home) == nullptr || ::chown(home, uid, uid) != 0) {
    std::perror("as_user: home");
    return 73;
  }
  const auto groups = delegate_cgroups(uid);
  const pid_t child = ::fork();
  if (child == 0) exec_as_user(uid, groups, home, argv + 2);
  int status = 0;
  ::waitpid(child, &status, 0);
  for (const auto& folder : groups) remove_cgroups(folder);
  std::error_code error;
  fs::remove_all(home, error);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
