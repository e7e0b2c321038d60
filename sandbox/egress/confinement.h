// The proxy uses the host's network and reads data of hostile jobs, so it drops all rights that it does not need, in
// this order:
//
//   resource limits    descriptors, address space, no core file
//   ids                as root: no groups, group and user 65534; if that id is not mapped (a container without
//                      subordinate ids), it stays root, without capabilities
//   capabilities       all, and the bounding set
//   no_new_privs, not dumpable (a change of ids makes the process dumpable again)
//   seccomp, last      only the calls of the loop, c-ares and malloc; only sockets of TCP, UDP and route netlink
//                      (getifaddrs); files read-only; no executable memory; no listen, fork, exec, ptrace or mount.
//                      Other calls fail with EPERM; calls of another architecture kill the process.
//
// The proxy stays in the host's network, which it needs, and may read public files (/etc/resolv.conf, /etc/hosts).
#pragma once

#include <cstddef>

#include "base/result.h"

namespace mycojobs::egress {

// Returns the limit of descriptors that now applies. Errors: unsupported, io; the proxy must then exit.
Result<std::size_t> drop_privileges();

}  // namespace mycojobs::egress
