// A file whose open() blocks until the test calls unblock(), as on a disk that hangs. No signal interrupts the wait.
// Implemented with a kernel lease (fcntl(2), F_SETLEASE) that is not released. The kernel revokes the lease after 45 s
// (/proc/sys/fs/lease-break-time), so a test must check is_blocked() after the tested behaviour. The file must not be
// open elsewhere when the object is created.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>
#include <string>

#include "base/fd.h"

namespace mycojobs::test {

class BlockingFile {
 public:
  // Creates the file and its folder.
  explicit BlockingFile(const std::string& path) : path_(path) {
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    file_.reset(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    EXPECT_EQ(::fcntl(file_.get(), F_SETLEASE, F_WRLCK), 0) << path;
    EXPECT_EQ(::fcntl(file_.get(), F_SETOWN, 0), 0) << "no SIGIO when an open() waits";
  }
  // Returns whether an open() of the file is blocked.
  bool is_waited_for() const { return ::fcntl(file_.get(), F_GETLEASE) != F_WRLCK; }
  // Returns whether the lease is still held, so that an open() still blocks.
  bool is_blocked() const {
    return !Fd(::open(path_.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK)) && errno == EWOULDBLOCK;
  }
  void unblock() { file_.reset(); }

 private:
  std::string path_;
  Fd file_;
};

}  // namespace mycojobs::test
