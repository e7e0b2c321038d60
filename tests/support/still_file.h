// A file on a disk that stands still: whoever opens it waits until the test lets the disk go on, as with a frozen file
// system, where no signal ends the wait either. It is a lease of the kernel's (fcntl(2), F_SETLEASE) that the test does
// not give up. The kernel takes it away after 45 s (/proc/sys/fs/lease-break-time): so a test asks stands_still()
// behind what was to happen meanwhile. Nobody may have the file open before.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>
#include <string>

#include "base/fd.h"

namespace mycojobs::test {

class StillFile {
 public:
  // Makes it, and its folder.
  explicit StillFile(const std::string& path) : path_(path) {
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    file_.reset(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    EXPECT_EQ(::fcntl(file_.get(), F_SETLEASE, F_WRLCK), 0) << path;
    EXPECT_EQ(::fcntl(file_.get(), F_SETOWN, 0), 0) << "no SIGIO when somebody waits";
  }
  bool is_waited_for() const { return ::fcntl(file_.get(), F_GETLEASE) != F_WRLCK; }
  // Whoever waits still does.
  bool stands_still() const {
    return !Fd(::open(path_.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK)) && errno == EWOULDBLOCK;
  }
  void go_on() { file_.reset(); }

 private:
  std::string path_;
  Fd file_;
};

}  // namespace mycojobs::test
