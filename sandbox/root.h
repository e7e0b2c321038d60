// What a job sees as its file system: the root of a zygote and of its jobs. A tmpfs with the system mounted read-only,
// sealed before anything runs in it.
//
//   /usr              the host's, read-only, nosuid, nodev, with all that is mounted below
//   /bin /lib ...     as on the host: links into /usr, or mounted like it
//   /etc              few files, made here or copied; some folders mounted read-only. A sandbox has its own passwd and
//                     group
//   /dev              null zero full random urandom, links, shm
//   /host             the script host's program
//   /venv ...         read-only, the folders of the script host, each at a place of its own
//   /proc /tmp /job   mount points of a job's own
//   /srv /home ...    empty; what a run is granted is mounted below (grants.cpp)
//
// In the child that becomes the zygote. Each function is a step: 0 or errno.
#pragma once

#include <string>
#include <vector>

namespace mycojobs::sandbox {

inline constexpr const char* kProgram = "/host";  // the script host's program, in the new root
struct Program {
  std::string path;
  // A detached mount of it, made where its path can be walked. -1: we may not, and the path is ours to walk.
  int fd = -1;
};
struct HostFolder {
  std::string place;
  int fd = -1;  // a detached mount
};
int build_root(const Program&, const std::vector<HostFolder>&);
int enter_root();
int seal_root();

}  // namespace mycojobs::sandbox
