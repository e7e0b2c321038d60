// The rows of the matrix: the tables of denied attempts, the calls that end a job, and some limits.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "matrix.h"
#include "sandbox/attempts/attempts.h"
#include "sandbox/denied/denied.h"
#include "sandbox/seccomp/filter.h"

namespace mycojobs::test {
namespace {

constexpr std::uint64_t kMiB = 1U << 20;

// Calls that end a job, with arguments for which they would have an effect. Without the filter, the kernel checks the
// rights of the job.
struct CallRow {
  const char* id;
  const char* line;
};
constexpr CallRow kEndingCalls[] = {
    {"SK5", "call_on bpf 5 @ 120"},
    {"SK6", "call keyctl 0 0xfffffffd 0"},
    {"SK6", "call keyctl 1 0"},
    {"SK11", "call userfaultfd 1"},
    {"SP4", "seize 1"},
    {"SP5", "read_memory_of 1"},
    {"SP5", "write_memory_of 1"},
    {"SP5", "take_descriptor 1 3"},
    {"SP5", "call kcmp 1 2 0 0 0"},
    {"SF15", "exec_memfd"},
    {"SF19", "mount_tmpfs /tmp"},
    {"SF19", "bind_over /job /usr"},
    {"SF19", "make_writable /usr"},
    {"SF19", "make_writable /"},
    {"SF19", "unmount /tmp"},
    {"SF19", "call_on open_tree 0xffffff9c @ 0x1001"},
    {"SF19", "call_on fsopen @ 0"},
    {"SR4", "call unshare 0x10000000"},
    {"SR4", "call unshare 0x20000"},
    {"SR4", "call unshare 0x40000000"},
    {"SR4", "call unshare 0x02000000"},
    {"SR4", "call unshare 0x80"},
    {"SR4", "call clone 0x10000011"},
    {"SR4", "call clone 0x00020011"},
    {"SR4", "call clone 0x20000011"},
    {"SR4", "call clone 0x40000011"},
    {"SR4", "call clone 0x7e020011"},
    {"SR9", "mount_in_own_namespaces /tmp"},
#ifdef __x86_64__
    {"SZ1", "call32 20"},
    {"SZ1", "call 0x40000027"},
#endif
};
// Calls that are refused without ending the job, with arguments for which they would have an effect.
constexpr CallRow kRefusedCalls[] = {
    {"SF20", "open_by_handle /job"},
    {"SR6", "join_namespace /proc/1/ns/net"},
    {"SK16", "name_host x"},
    {"chroot", "change_root /tmp"},
};

struct LimitRow {
  const char* id;
  const char* line;
  bool can_exec;
};
constexpr LimitRow kLimitRows[] = {
    {"SQ1", "fork_bomb", true},
    {"SQ2", "thread_bomb", false},
    {"SQ3", "touch 128", false},
    {"SQ5", "fill /tmp", false},
    {"SQ5", "fill /dev/shm", false},
    {"SQ7", "files /tmp", false},
    {"file size", "print_into /tmp/big 4", false},
    {"SQ11", "hold_pipes", false},
    {"SQ11", "hold_memfd 96", false},
};

Limits make_small_limits() {
  Limits limits;
  limits.memory_bytes = 64 * kMiB;
  limits.pids = 16;
  limits.file_bytes = 2 * kMiB;
  limits.tmp_bytes = 8 * kMiB;
  return limits;
}

// Returns the attempts that create the files of a row. Every row runs in a job of its own.
std::string find_preparation(const std::string& line) {
  if (line.find(" /tmp/through") != std::string::npos) return "symlink /usr/x /tmp/through\n";
  if (line.find("/tmp/s ") != std::string::npos || line == "open_read /tmp/s") return "symlink /etc/shadow /tmp/s\n";
  if (line == "rename_at /tmp s /etc passwd") return "symlink /etc/shadow /tmp/s\n";
  return line == "open_read /tmp/null" ? "mknod /tmp/null 0x2000\n" : "";
}

// Returns whether the attempt opens a socket of a rare family. The availability of rare families depends on the modules
// of the kernel.
bool is_rare_family(const std::string& line) {
  if (!line.starts_with("socket ")) return false;
  for (const char* common_family : {"socket 1 ", "socket 2 ", "socket 10 ", "socket 16 "}) {
    if (line.starts_with(common_family)) return false;
  }
  return true;
}

void add_table_rows(std::vector<MatrixRow>& rows) {
  MatrixRow families{"SN5", "socket of any other family and type", "", {"EAFNOSUPPORT", "EPERM"}};
  for (const auto* table :
       {&file_rows(), &network_rows(), &kernel_rows(), &capability_rows(), &combined_rows(), &exec_rows()}) {
    for (const DeniedRow& row : *table) {
      if (is_among(row.accepted_results, "ok")) continue;  // The sandbox permits the attempt.
      // The sandbox permits these calls, and the kernel refuses the arguments.
      if (std::string(row.id) == "SK14" || row.attempt == "prctl 15 0") continue;
      const bool can_exec = table == &exec_rows();
      if (is_rare_family(row.attempt)) {
        families.attempts += row.attempt + "\n";
      } else {
        rows.push_back({row.id, row.attempt + (can_exec ? " [exec]" : ""), row.attempt + "\n", row.accepted_results,
                        find_preparation(row.attempt), can_exec});
      }
    }
  }
  rows.push_back(families);
}

void add_host_rows(std::vector<MatrixRow>& rows, const HostResources& host) {
  const std::vector<std::string> missing_file_errors = {"ENOENT", "EACCES"}, missing_socket_errors = {"EAFNOSUPPORT"};
  rows.push_back({"SF3", "open_read FILE OF THE HOST", "open_read " + host.file_path + "\n", missing_file_errors});
  rows.push_back({"SF4", "open_read /tmp/../../..FILE OF THE HOST", "open_read /tmp/../../.." + host.file_path + "\n",
                  missing_file_errors});
  rows.push_back(
      {"SF12", "open_read FILE OF THE HOST'S /dev/shm", "open_read " + host.shm_file_path + "\n", missing_file_errors});
  rows.push_back(
      {"SN3", "connect_unix SOCKET OF THE HOST", "connect_unix " + host.socket_path + "\n", missing_socket_errors});
  rows.push_back(
      {"SN2", "connect_tcp PORT OF THE HOST", "connect_tcp 127.0.0.1 " + host.tcp_port + "\n", missing_socket_errors});
  rows.push_back({"SX6", "connect_abstract NAME OF THE HOST", "connect_abstract " + host.abstract_name + "\n",
                  missing_socket_errors});
}

}  // namespace

HostResources::HostResources() {
  for (std::string* path : {&file_path, &shm_file_path}) {
    const int fd = ::mkstemp(path->data());
    EXPECT_GE(fd, 0);
    ::fchmod(fd, 0644);
    ::close(fd);
  }
  EXPECT_NE(::mkdtemp(folder_path.data()), nullptr);
  ::chmod(folder_path.c_str(), 0755);
  socket_path = folder_path + "/s";
  abstract_name = "mycojobs-matrix-" + std::to_string(::getpid());
  for (const bool has_path : {true, false}) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string& name = has_path ? socket_path : abstract_name;
    name.copy(address.sun_path + (has_path ? 0 : 1), sizeof address.sun_path - 2);
    const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + (has_path ? 0 : 1) + name.size());
    const int listener = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(::listen(listener, 8), 0);
    listeners_.push_back(listener);
  }
  ::chmod(socket_path.c_str(), 0777);
  sockaddr_in loopback{};
  loopback.sin_family = AF_INET;
  loopback.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof loopback;
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  EXPECT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&loopback), size), 0);
  EXPECT_EQ(::listen(listener, 8), 0);
  EXPECT_EQ(::getsockname(listener, reinterpret_cast<sockaddr*>(&loopback), &size), 0);
  tcp_port = std::to_string(ntohs(loopback.sin_port));
  listeners_.push_back(listener);
}

HostResources::~HostResources() {
  for (int fd : listeners_) ::close(fd);
  for (const auto& path : {file_path, shm_file_path, socket_path}) ::unlink(path.c_str());
  ::rmdir(folder_path.c_str());
}

std::vector<MatrixRow> make_matrix_rows(const HostResources& host) {
  std::vector<MatrixRow> rows;
  add_table_rows(rows);
  add_host_rows(rows, host);
  const std::vector<std::string> denied_errors = {"EPERM", "EACCES"};
  rows.push_back({"SF15", "exec_copy /tmp/true", "exec_copy /tmp/true\n", denied_errors});
  rows.push_back({"exec off", "exec /bin/true", "exec /bin/true\n", denied_errors});
  rows.push_back({"exec off", "fork", "fork\n", denied_errors});
  rows.push_back({"exec off", "run /bin/true", "run /bin/true\n", denied_errors});
  for (const char* call : sandbox::forbidden_calls()) {
    const std::string line = std::string("call ") + call;
    if (run_attempt_outside(line) != "no such call") rows.push_back({"SK4", line, line + "\n", {}});
  }
  for (const CallRow& call : kEndingCalls) rows.push_back({call.id, call.line, call.line + std::string("\n"), {}});
  for (const CallRow& call : kRefusedCalls)
    rows.push_back({call.id, call.line, call.line + std::string("\n"), {"handle: EOPNOTSUPP"}});
  for (const LimitRow& limit : kLimitRows) {
    rows.push_back({limit.id, limit.line, limit.line + std::string("\n"), {}, "", limit.can_exec, make_small_limits()});
  }
  return rows;
}

bool is_safe_to_try(const MatrixRow& row, const MatrixColumn& column) {
  const auto is_disabled = [&](const char* layer) { return is_among(column.disabled_steps, layer); };
  // The matrix must not risk the host: if the layers do not hold, these calls could stop the whole host.
  constexpr const char* kHostWideCalls[] = {"reboot", "kexec_load",  "kexec_file_load", "swapon",       "swapoff",
                                            "acct",   "init_module", "finit_module",    "delete_module"};
  for (const char* call : kHostWideCalls) {
    if (row.name == std::string("call ") + call && is_disabled("seccomp")) return false;
  }
  // The inherited limit can be infinite, and infinity plus one is not a valid limit.
  if (is_disabled("rlimits") && row.name.starts_with("raise_limit ")) return false;
  // Without the network namespace, connections must reach only the server of this test.
  return !is_disabled("netns") || !row.name.starts_with("connect_tcp ") || row.name == "connect_tcp PORT OF THE HOST";
}

}  // namespace mycojobs::test
