// The proxy sits in the host's network and reads what hostile jobs send, so it keeps nothing that it does not need. In
// this order:
//
//   resource limits    descriptors, address space, no core file
//   ids                as root: no groups, group and user 65534; where that id is not mapped (a container without
//                      subordinate ids) root stays, without capabilities
//   capabilities       all of them, and the bounding set
//   no_new_privs, not dumpable (a credential change makes it dumpable again, so after the ids)
//   seccomp, last      what the loop, c-ares and malloc call; sockets of TCP, UDP and route netlink (getifaddrs) only;
//                      files for reading only; nothing executable in memory; no listen, no fork, no exec, no ptrace,
//                      no mount. All else is EPERM; another architecture's calls kill.
//
// It keeps the host's network, because that is its work, and may read what everybody may (/etc/resolv.conf,
// /etc/hosts).
#pragma once

#include <cstddef>

#include "mycojobs/result.h"

namespace mycojobs::egress {

// The number of descriptors that it may have from here on. Error: unsupported or io; the proxy must not run then.
Result<std::size_t> give_up_rights();

}  // namespace mycojobs::egress
