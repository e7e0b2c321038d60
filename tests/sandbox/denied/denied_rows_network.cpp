// Attempts to use the network.
#include <algorithm>

#include "denied.h"

namespace mycojobs::test {

const std::vector<DeniedRow>& network_rows() {
  static const std::vector<DeniedRow> kRows = [] {
    const std::vector<std::string> kNoNetworkErrors = {"EAFNOSUPPORT", "EPERM", "ENETUNREACH"};
    // Outside the sandbox, in a network namespace of the attempt, a socket can be created but reaches no peer.
    const char* const kUnreachable = "=> ENETUNREACH";
    std::vector<DeniedRow> rows = {
        {"SN1", "connect_tcp 1.1.1.1 80", kNoNetworkErrors, kUnreachable},
        {"SN1", "connect_tcp 192.168.1.1 80", kNoNetworkErrors, kUnreachable},
        {"SN1", "connect_tcp 169.254.169.254 80", kNoNetworkErrors, kUnreachable},
        {"SN2", "connect_tcp 127.0.0.1 6379", kNoNetworkErrors, kUnreachable},
        {"SN3", "connect_unix /run/dbus/system_bus_socket", kNoNetworkErrors, "=> ENOENT|ECONNREFUSED|ok"},
        {"SN3", "connect_unix /run/docker.sock", kNoNetworkErrors, "=> ENOENT|ECONNREFUSED|ok"},
        {"SN3", "connect_unix /run/systemd/private", kNoNetworkErrors, "=> ENOENT|ECONNREFUSED|ok"},
        {"SN3", "connect_abstract /tmp/.X11-unix/X0", kNoNetworkErrors, "=> ECONNREFUSED"},
        {"SN6", "socket 2 3", kNoNetworkErrors, "socket 2 1"},  // SOCK_RAW
        {"SN6", "socket 10 3", kNoNetworkErrors, "socket 10 1"},
        {"SN6", "call socket 2 2 1", kNoNetworkErrors, "socket 2 2"},  // ICMP
        {"SN9", "call bind 0 0 0", {"EPERM"}, "=> ENOTSOCK"},
        {"SN9", "call listen 0 1", {"EPERM"}, "=> ENOTSOCK"},
        {"SN9", "call accept 0 0 0", {"EPERM"}, "=> ENOTSOCK"},
        {"SN9", "call accept4 0 0 0 0", {"EPERM"}, "=> ENOTSOCK"},
        {"SN9", "call connect 0 0 0", {"EPERM"}, "=> ENOTSOCK"},
        {"SN9", "call sendto 0 0 0 0 4096 16", {"EPERM"}, "=> ENOTSOCK"},
        {"SN10", "ioctl 0x8914", {"EPERM"}, "=> ENOTTY"},  // SIOCSIFFLAGS
        {"SN10", "socket_ioctl 0x8914", {"EPERM"}, "=> ENODEV|ENOTTY"},
        {"SN10", "socket_ioctl 0x890b", {"EPERM"}, "=> EINVAL|ENOTTY|ENODEV|EAFNOSUPPORT"},  // SIOCADDRT
        {"SN10", "socket_ioctl 0x400454ca", {"EPERM"}, "=> ENOTTY|ENODEV"},                  // TUNSETIFF
        {"SN10", "open_read /dev/net/tun", {"ENOENT", "EACCES"}, "open_read /dev/null"},
        {"SN12", "call sendmmsg 3 0 0 0", {"EPERM"}, "=> ENOTSOCK|EBADF|ok"},
        {"SN14", "call io_uring_setup 1 0", {"ENOSYS"}, "=> EFAULT|EPERM|ENOSYS"},
        {"SN14", "call io_uring_enter 0 0 0 0 0 0", {"ENOSYS"}, "=> EOPNOTSUPP|EBADFD|EBADF|ENOSYS|EINVAL"},
        {"SN14", "call io_uring_register 0 0 0 0", {"ENOSYS"}, "=> EOPNOTSUPP|EBADFD|EBADF|ENOSYS|EINVAL"},
        {"asyncio", "socketpair 1 1", {"ok"}},
        {"asyncio", "socketpair 1 0x80801", {"ok"}},
        {"datagram pair", "socketpair 1 2", {"EPERM"}},
        {"seqpacket pair", "socketpair 1 5", {"EPERM"}},
        {"descriptors", "call sendmsg 3 0 0", {"EPERM"}, "=> ENOTSOCK|EBADF|EFAULT"},
        {"descriptors", "call getsockopt 3 1 77", {"EPERM"}, "=> ENOTSOCK|EBADF|EFAULT"},  // SO_PEERPIDFD
        // The address of a message is ignored on a connected pair, on every descriptor.
        {"SZ2", "address_on_four", {"EISCONN", "EOPNOTSUPP", "EPERM"}, "=> EISCONN|EOPNOTSUPP"},
        // The kernel uses only the lower half of the family.
        {"SZ3", "call socket 0x100000002 1 0", kNoNetworkErrors},
        {"SZ3", "call socket 0x10000000a 1 0", kNoNetworkErrors},
        {"SZ3",
         "call_on socketpair 0x100000002 1 0 @",
         {"EPERM", "EOPNOTSUPP"},
         "call_on socketpair 0x100000001 1 0 @"},
        {"SZ3", "call_on socketpair 0x100000001 0x100000002 0 @", {"EPERM"}, "call_on socketpair 0x100000001 1 0 @"},
    };
    const std::vector<int> common_families = {1, 2, 10, 16};
    for (int family = 0; family < 48; ++family) {  // SN5
      const bool is_common_family =
          std::find(common_families.begin(), common_families.end(), family) != common_families.end();
      for (const char* type : {"1", "2", "3", "5"}) {
        const std::string line = "socket " + std::to_string(family) + " " + type;
        rows.push_back(
            {"SN5", line, kNoNetworkErrors, is_common_family && type == std::string("2") ? "" : "socket 2 2"});
      }
    }
    return rows;
  }();
  return kRows;
}

}  // namespace mycojobs::test
