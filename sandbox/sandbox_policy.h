// Permissions and limits of a job. Three policies are combined for each run (agent/security/ceilings.h):
//
//   the executor's profile  -->  applies to a job that requests nothing
//   the job's request       -->  replaces the fields that it names; additions are added
//   the operator's ceiling  -->  for each context; a request above it is rejected, naming the field; other fields are
//                                lowered to it
//
// Text form: a JSON object or a TOML table with the names of agent/model/policy_json.h. Sizes are "64 MiB" or a number
// of bytes, times "30 s" or a number of milliseconds. Unknown names are errors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace mycojobs {

enum class Network {
  none,        // no sockets other than local pairs
  loopback,    // a network namespace of its own with only the loopback interface
  allow_list,  // like loopback, with a proxy that connects to the listed destinations only
};

// Address of the proxy in the network namespace of a job with an allow-list.
inline constexpr std::uint16_t kProxyPort = 3128;
inline constexpr const char* kProxyUrl = "http://127.0.0.1:3128";

struct Policy {
  // Folders of the host that appear at the same path in the sandbox. Absolute, without "..", below /srv /opt /home /var
  // /mnt /media /data. Files that jobs create below fs.write belong to one user of the context (sandbox/volume.h).
  // Files of other users are writable only if their mode bits permit it.
  std::vector<std::string> fs_read, fs_write;
  std::vector<std::string> volumes;    // names of the context's volumes (sandbox/volume.h)
  Network network = Network::none;     // net: "none", "loopback", or the list net_allow
  std::vector<std::string> net_allow;  // "host:port", "*.example.org:443", "192.0.2.7:5432", "[2001:db8::1]:443"
  bool exec = false;                   // fork and exec
  std::uint64_t cpu_ms = 0;            // CPU time of all processes; 0 if only the wall time is limited
  std::uint64_t memory_bytes = 256ULL << 20;
  std::uint32_t pids = 64;                 // threads included
  std::uint64_t wall_ms = 0;               // 0 if only the job's timeout applies
  std::uint64_t disk_bytes = 64ULL << 20;  // /tmp and the job's folder together; /dev/shm has the same limit again
  std::uint64_t file_bytes = 64ULL << 20;  // size of one file
  std::uint32_t open_files = 256;
  // output.keep: the beginning and the end of the output are kept, up to this size.
  std::uint64_t output_bytes = 1ULL << 20;
  bool output_kill = false;               // output.kill: more output kills the job instead of being cut
  bool output_merge = false;              // output.merge: stdout and stderr are one pipe, which keeps their order
  std::uint64_t log_bytes = 64ULL << 20;  // log.keep: size of the log on the disk of the agent; the middle is dropped
  bool log_full = false;                  // log.full: the complete log is stored as an artifact
  std::vector<std::string> syscalls;      // syscalls.add: names as in syscalls(2)
  std::vector<std::string> secrets;       // names of secret files of the operator
  // python.requirements: packages of a Python job in addition to those of its script, as in PEP 508.
  std::vector<std::string> python_requirements;
  // warm.runs, warm.idle: a process serves so many jobs with the same script, and is kept so long between two jobs
  // (docs/warm.md). With 0 runs each job has a process of its own.
  std::uint32_t warm_runs = 0;
  std::uint64_t warm_idle_ms = 60'000;
  bool artifacts_optional = false;  // artifacts.optional: dropped artifacts do not change the exit code
  bool operator==(const Policy&) const = default;
};
inline std::size_t count_folders(const Policy& policy) {
  return policy.fs_read.size() + policy.fs_write.size() + policy.volumes.size();
}

}  // namespace mycojobs
