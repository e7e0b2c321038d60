// What a run is granted beyond its profile, made by init before anything of the job's is in reach.
#include <fcntl.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <string>

#include "sandbox/job.h"

namespace mycojobs::sandbox {
namespace {

int raise_loopback() {
  const Fd any(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!any) return errno;
  ifreq request{};
  std::strcpy(request.ifr_name, "lo");
  request.ifr_flags = IFF_UP | IFF_RUNNING;
  return error_if(::ioctl(any.get(), SIOCSIFFLAGS, &request) != 0);
}

// Of a connection that nobody has accepted yet the kernel charges neither the socket nor what it has received to any
// group, nor one that is closed and waits for its last packets: so there are few, and they are small. How many may be
// waited for and by how many listeners is counted_calls.h.
int bound_connections() {
  constexpr std::pair<const char*, std::string_view> kSettings[] = {
      {"/proc/sys/net/ipv4/tcp_rmem", "4096 32768 65536"},
      {"/proc/sys/net/ipv4/tcp_wmem", "4096 16384 262144"},
      {"/proc/sys/net/ipv4/tcp_max_tw_buckets", "1024"},
      {"/proc/sys/net/ipv4/tcp_no_metrics_save", "1"},
  };
  for (const auto& [path, value] : kSettings) {
    const Fd file(::open(path, O_WRONLY | O_CLOEXEC));
    if (!file || ::write(file.get(), value.data(), value.size()) != static_cast<ssize_t>(value.size())) return errno;
  }
  return 0;
}

// It belongs to the job's network, whoever holds it: the proxy accepts here and connects outside.
int offer_listener(const ChildRun& run) {
  const Fd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener) return errno;
  sockaddr_in place{};
  place.sin_family = AF_INET;
  place.sin_port = htons(kProxyPort);
  place.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::bind(listener.get(), reinterpret_cast<sockaddr*>(&place), sizeof place) != 0) return errno;
  constexpr int kWaiting = 128;  // beside those that the proxy serves at a time
  if (::listen(listener.get(), kWaiting) != 0) return errno;
  return send_message(run.status, Listening{}, {listener.get()});
}

// "/srv/a/b" -> "/srv"
std::string top_of(const std::string& path) { return path.substr(0, path.find('/', 1)); }

int make_parents(const std::string& path) {
  for (std::size_t slash = path.find('/', 1); slash != std::string::npos; slash = path.find('/', slash + 1)) {
    if (::mkdir(path.substr(0, slash).c_str(), 0755) != 0 && errno != EEXIST) return errno;
  }
  return 0;
}

int make_mount_point(const std::string& path, int tree) {
  if (int error = make_parents(path); error != 0) return error;
  struct stat info {};
  if (::fstat(tree, &info) != 0) return errno;
  if (S_ISDIR(info.st_mode)) return error_if(::mkdir(path.c_str(), 0755) != 0 && errno != EEXIST);
  const Fd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0444));
  return error_if(!file && errno != EROFS);  // it may lie in a folder that is granted too
}

int set_read_only(const std::string& path) {
  mount_attr attr{};
  attr.attr_set = MOUNT_ATTR_RDONLY;
  return error_if(::mount_setattr(AT_FDCWD, path.c_str(), 0, &attr, sizeof attr) != 0);
}

}  // namespace

// Name by name, since a service manager may have taken openat2 away (RestrictSUIDSGID).
Fd open_without_links(const std::string& path) {
  Fd place(::open("/", O_PATH | O_DIRECTORY | O_CLOEXEC));
  for (std::size_t from = 1; place && from < path.size();) {
    const std::size_t end = std::min(path.find('/', from), path.size());
    Fd next(::openat(place.get(), path.substr(from, end - from).c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
    struct stat info {};
    if (next && (::fstat(next.get(), &info) != 0 || S_ISLNK(info.st_mode))) {
      next.reset();
      errno = ELOOP;
    }
    place = std::move(next);
    from = end + 1;
  }
  return place;
}

int own_network(ChildRun& run) {
  const Grants& grants = run.request.grants;
  if (grants.network == Network::none && grants.syscalls.empty()) return 0;
  if (::unshare(CLONE_NEWNET) != 0) return errno;
  if (grants.network == Network::none) return 0;
  if (int error = bound_connections(); error != 0) return error;
  if (int error = raise_loopback(); error != 0) return error;
  return grants.network == Network::allow_list ? offer_listener(run) : 0;
}

// The root is sealed, so each top folder becomes a small file system of its own that holds the mount points and is then
// sealed as well. The launcher has opened the trees and set what may be done in them.
int mount_grants(ChildRun& run) {
  std::vector<std::string> paths = run.request.grants.fs_read;
  paths.insert(paths.end(), run.request.grants.fs_write.begin(), run.request.grants.fs_write.end());
  std::vector<std::size_t> order(paths.size());
  std::iota(order.begin(), order.end(), 0U);
  std::sort(order.begin(), order.end(), [&](auto a, auto b) { return paths[a] < paths[b]; });  // outer before inner
  std::vector<std::string> tops;
  for (const std::size_t i : order) {
    const std::string top = top_of(paths[i]);
    if (std::find(tops.begin(), tops.end(), top) == tops.end()) {
      const unsigned long flags = MS_NOSUID | MS_NODEV | MS_NOEXEC;
      if (::mount("grants", top.c_str(), "tmpfs", flags, "size=256k,nr_inodes=256,mode=755") != 0) return errno;
      tops.push_back(top);
      if (top == "/var" && ::mkdir("/var/tmp", 0755) != 0) return errno;
    }
    if (int error = make_mount_point(paths[i], run.mounts[i]); error != 0) return error;
    // Within a folder that another job may write, it may have become a link by now, to our own /usr say.
    const Fd place = open_without_links(paths[i]);
    constexpr unsigned kByDescriptors = MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH;
    if (!place || ::move_mount(run.mounts[i], "", place.get(), "", kByDescriptors) != 0) return errno;
  }
  for (const auto& top : tops) {
    if (int error = set_read_only(top); error != 0) return error;
  }
  return 0;
}

}  // namespace mycojobs::sandbox
