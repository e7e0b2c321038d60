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

// Effective forms of the calls that end a job. Without the filter, the kernel checks the rights of the job.
struct CallRow {
  const char* row;
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
// Effective forms of calls that are refused without ending the job.
constexpr CallRow kRefusedCalls[] = {
    {"SF20", "open_by_handle /job"},
    {"SR6", "join_namespace /proc/1/ns/net"},
    {"SK16", "name_host x"},
    {"chroot", "change_root /tmp"},
};

struct LimitRow {
  const char* row;
  const char* line;
  bool exec;
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

Limits small_limits() {
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

// Except for these families, the available families depend on the kernel's modules.
bool is_rare_family(const std::string& line) {
  if (!line.starts_with("socket ")) return false;
  for (const char* common_family : {"socket 1 ", "socket 2 ", "socket 10 ", "socket 16 "}) {
    if (line.starts_with(common_family)) return false;
  }
  return true;
}

void add_table_rows(std::vector<MatrixRow>& rows) {
  MatrixRow families{"SN5", "socket of any other family and type", "", {"EAFNOSUPPORT", "EPERM"}};
  for (const auto* table : {&rows_on_files(), &rows_on_network(), &rows_on_kernel(), &rows_on_rights(),
                            &rows_combined(), &rows_with_exec()}) {
    for (const Row& row : *table) {
      if (is_among(row.accepted, "ok")) continue;  // permitted
      // The sandbox permits these calls, and the kernel refuses the arguments.
      if (std::string(row.row) == "SK14" || row.attempt == "prctl 15 0") continue;
      const bool exec = table == &rows_with_exec();
      if (is_rare_family(row.attempt)) {
        families.lines += row.attempt + "\n";
      } else {
        rows.push_back({row.row, row.attempt + (exec ? " [exec]" : ""), row.attempt + "\n", row.accepted,
                        find_preparation(row.attempt), exec});
      }
    }
  }
  rows.push_back(families);
}

void add_host_rows(std::vector<MatrixRow>& rows, const HostResources& host) {
  const std::vector<std::string> no_file = {"ENOENT", "EACCES"}, no_socket = {"EAFNOSUPPORT"};
  rows.push_back({"SF3", "open_read FILE OF THE HOST", "open_read " + host.file + "\n", no_file});
  rows.push_back(
      {"SF4", "open_read /tmp/../../..FILE OF THE HOST", "open_read /tmp/../../.." + host.file + "\n", no_file});
  rows.push_back({"SF12", "open_read FILE OF THE HOST'S /dev/shm", "open_read " + host.shared + "\n", no_file});
  rows.push_back({"SN3", "connect_unix SOCKET OF THE HOST", "connect_unix " + host.socket + "\n", no_socket});
  rows.push_back({"SN2", "connect_tcp PORT OF THE HOST", "connect_tcp 127.0.0.1 " + host.port + "\n", no_socket});
  rows.push_back({"SX6", "connect_abstract NAME OF THE HOST", "connect_abstract " + host.abstract + "\n", no_socket});
}

}  // namespace

HostResources::HostResources() {
  for (std::string* path : {&file, &shared}) {
    const int fd = ::mkstemp(path->data());
    EXPECT_GE(fd, 0);
    ::fchmod(fd, 0644);
    ::close(fd);
  }
  EXPECT_NE(::mkdtemp(folder.data()), nullptr);
  ::chmod(folder.c_str(), 0755);
  socket = folder + "/s";
  abstract = "mycojobs-matrix-" + std::to_string(::getpid());
  for (const bool named : {true, false}) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string& name = named ? socket : abstract;
    name.copy(address.sun_path + (named ? 0 : 1), sizeof address.sun_path - 2);
    const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + (named ? 0 : 1) + name.size());
    const int listener = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(::listen(listener, 8), 0);
    listeners_.push_back(listener);
  }
  ::chmod(socket.c_str(), 0777);
  sockaddr_in loopback{};
  loopback.sin_family = AF_INET;
  loopback.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof loopback;
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  EXPECT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&loopback), size), 0);
  EXPECT_EQ(::listen(listener, 8), 0);
  EXPECT_EQ(::getsockname(listener, reinterpret_cast<sockaddr*>(&loopback), &size), 0);
  port = std::to_string(ntohs(loopback.sin_port));
  listeners_.push_back(listener);
}

HostResources::~HostResources() {
  for (int fd : listeners_) ::close(fd);
  for (const auto& path : {file, shared, socket}) ::unlink(path.c_str());
  ::rmdir(folder.c_str());
}

std::vector<MatrixRow> matrix_rows(const HostResources& host) {
  std::vector<MatrixRow> rows;
  add_table_rows(rows);
  add_host_rows(rows, host);
  const std::vector<std::string> denied = {"EPERM", "EACCES"};
  rows.push_back({"SF15", "exec_copy /tmp/true", "exec_copy /tmp/true\n", denied});
  rows.push_back({"exec off", "exec /bin/true", "exec /bin/true\n", denied});
  rows.push_back({"exec off", "fork", "fork\n", denied});
  rows.push_back({"exec off", "run /bin/true", "run /bin/true\n", denied});
  for (const char* call : sandbox::forbidden_calls()) {
    const std::string line = std::string("call ") + call;
    if (attempt_outside(line) != "no such call") rows.push_back({"SK4", line, line + "\n", {}});
  }
  for (const CallRow& call : kEndingCalls) rows.push_back({call.row, call.line, call.line + std::string("\n"), {}});
  for (const CallRow& call : kRefusedCalls)
    rows.push_back({call.row, call.line, call.line + std::string("\n"), {"handle: EOPNOTSUPP"}});
  for (const LimitRow& limit : kLimitRows) {
    rows.push_back({limit.row, limit.line, limit.line + std::string("\n"), {}, "", limit.exec, small_limits()});
  }
  return rows;
}

bool can_be_tried(const MatrixRow& row, const MatrixColumn& column) {
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
