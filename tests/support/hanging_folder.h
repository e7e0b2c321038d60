// A folder on a disk that hangs, like an unreachable network mount: a name lookup in it blocks in the kernel, and no
// signal interrupts the wait. The name kFile alone is found, and reading that file blocks. This process mounts a FUSE
// file system that never answers, in a new mount namespace, which launchers that are started later inherit. Requires
// root and /dev/fuse.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/fuse.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>
#include <thread>

#include "base/fd.h"
#include "support/process.h"

namespace mycojobs::test {

class HangingFolder {
 public:
  static constexpr const char* kFile = "file";  // a file of 4096 bytes

  HangingFolder()
      : path_("/var/tmp/mycojobs-hang-" + std::to_string(::getpid())), disk_(::open("/dev/fuse", O_RDWR | O_CLOEXEC)) {
    std::filesystem::create_directories(path_);
    EXPECT_TRUE(disk_) << "/dev/fuse: " << std::strerror(errno);
    EXPECT_TRUE(enter_mount_namespace()) << std::strerror(errno);
    const std::string options =
        "fd=" + std::to_string(disk_.get()) + ",rootmode=40000,user_id=0,group_id=0,allow_other";
    EXPECT_EQ(::mount("hangs", path_.c_str(), "fuse", MS_NOSUID | MS_NODEV, options.c_str()), 0)
        << std::strerror(errno);
    server_thread_ = std::thread([this] { serve(); });
  }
  HangingFolder(const HangingFolder&) = delete;
  HangingFolder& operator=(const HangingFolder&) = delete;
  ~HangingFolder() {
    disconnect();
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  std::string root() const { return path_; }
  // Returns the path of a name in the folder.
  std::string path() const { return path_ + "/inner"; }
  // Returns the number of name lookups and reads so far that are not answered.
  int waiting_count() const { return waiting_count_; }
  // Aborts the file system permanently: all blocked lookups fail, since the file system is not connected.
  void disconnect() {
    if (!server_thread_.joinable()) return;
    ::umount2(path_.c_str(), MNT_FORCE | MNT_DETACH);
    server_thread_.join();
  }

 private:
  static constexpr std::uint64_t kFileNode = 2;

  static fuse_attr file_attributes() {
    fuse_attr file{};
    file.ino = kFileNode;
    file.mode = S_IFREG | 0644;
    file.nlink = 1;
    file.size = 4096;
    return file;
  }
  void answer(const fuse_in_header& request, const void* body, std::size_t size) {
    char bytes[sizeof(fuse_out_header) + sizeof(fuse_attr_out) + sizeof(fuse_init_out)];
    const fuse_out_header head{static_cast<std::uint32_t>(sizeof head + size), 0, request.unique};
    std::memcpy(bytes, &head, sizeof head);
    std::memcpy(bytes + sizeof head, body, size);
    (void)!::write(disk_.get(), bytes, sizeof head + size);
  }
  void serve() {
    alignas(fuse_in_header) char request[FUSE_MIN_READ_BUFFER * 4];
    while (::read(disk_.get(), request, sizeof request) > 0) {
      fuse_in_header head;
      std::memcpy(&head, request, sizeof head);
      if (head.opcode == FUSE_INIT) {
        fuse_init_out init{};
        init.major = FUSE_KERNEL_VERSION;
        init.minor = FUSE_KERNEL_MINOR_VERSION;
        init.flags = FUSE_ASYNC_READ;  // lets KILL end a process that waits for a page, as on NFS
        answer(head, &init, sizeof init);
      } else if (head.opcode == FUSE_GETATTR && head.nodeid == FUSE_ROOT_ID) {
        fuse_attr_out root{};
        root.attr_valid = 3600;
        root.attr.ino = FUSE_ROOT_ID;
        root.attr.mode = S_IFDIR | 0755;
        root.attr.nlink = 2;
        answer(head, &root, sizeof root);
      } else if (head.opcode == FUSE_LOOKUP && std::strcmp(request + sizeof head, kFile) == 0) {
        fuse_entry_out entry{};
        entry.nodeid = kFileNode;
        entry.entry_valid = entry.attr_valid = 3600;
        entry.attr = file_attributes();
        answer(head, &entry, sizeof entry);
      } else if (head.opcode == FUSE_GETATTR && head.nodeid == kFileNode) {
        fuse_attr_out file{};
        file.attr_valid = 3600;
        file.attr = file_attributes();
        answer(head, &file, sizeof file);
      } else if (head.opcode == FUSE_OPEN || head.opcode == FUSE_OPENDIR) {
        const fuse_open_out open{};
        answer(head, &open, sizeof open);
      } else if (head.opcode == FUSE_FLUSH) {  // sent by close(); no signal interrupts its wait
        const fuse_out_header error{sizeof error, -ENOSYS, head.unique};
        (void)!::write(disk_.get(), &error, sizeof error);
      } else {
        waiting_count_ += head.opcode == FUSE_LOOKUP || head.opcode == FUSE_READ ? 1 : 0;
      }
    }
  }

  std::string path_;
  Fd disk_;
  std::atomic<int> waiting_count_ = 0;
  std::thread server_thread_;
};

}  // namespace mycojobs::test
