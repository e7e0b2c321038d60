#include "executors/plugin/plugin_file.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "base/errno_text.h"

namespace mycojobs::plugin {
namespace {

constexpr mode_t kOthersWrite = S_IWGRP | S_IWOTH;

Result<void> check_owner(const std::string& what, const struct stat& about) {
  if (about.st_uid != 0 && about.st_uid != ::geteuid()) {
    return fail(Code::invalid,
                fmt::format("{}user {} owns it: chown it to root or to user {}", what, about.st_uid, ::geteuid()));
  }
  // In a sticky folder (/tmp) nobody replaces another one's file.
  const bool sticky = S_ISDIR(about.st_mode) && (about.st_mode & S_ISVTX) != 0;
  if ((about.st_mode & kOthersWrite) != 0 && !sticky) {
    return fail(Code::invalid,
                fmt::format("{}mode {:04o} lets others write it: chmod go-w", what, about.st_mode & 07777));
  }
  return {};
}

Result<void> check_folder(const std::string& path) {
  const auto slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  struct stat about {};
  if (::stat(folder.c_str(), &about) != 0) return fail(Code::io, folder + ": " + errno_text(errno));
  return check_owner("its folder " + folder + ": ", about);
}

}  // namespace

Result<Fd> open_plugin_file(const std::string& path) {
  constexpr const char* kNotRegular = "it is not a regular file: put the plugin itself there";
  // Neither through a link, nor waiting for whoever writes into a pipe.
  Fd file(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  if (!file && (errno == ELOOP || errno == ENXIO)) return fail(Code::invalid, kNotRegular);
  if (!file) return fail(errno == ENOENT ? Code::not_found : Code::io, errno_text(errno));
  struct stat about {};
  if (::fstat(file.get(), &about) != 0) return fail(Code::io, errno_text(errno));
  if (!S_ISREG(about.st_mode)) return fail(Code::invalid, kNotRegular);
  MJ_CHECK(check_owner("", about));
  MJ_CHECK(check_folder(path));
  if (::geteuid() == 0 && (about.st_mode & S_IROTH) == 0) {
    return fail(Code::invalid, fmt::format("mode {:04o}: it is loaded as user 65534, who may not read it: chmod o+r",
                                           about.st_mode & 07777));
  }
  return file;
}

}  // namespace mycojobs::plugin
