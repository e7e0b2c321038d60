// What a job may do, as data. Three of them meet for each run (agent/domain/policy.h):
//
//   the executor's profile  -->  what a job has that asks for nothing
//   the job's request       -->  replaces what it names; additions add
//   the operator's ceiling  -->  for each context; a request above it is refused, naming the field; what was not asked
//                                for is lowered to it
//
// As text: a JSON object or a TOML table with the names of agent/domain/policy.h, sizes as "64 MiB" and times as "30 s"
// or plain numbers of bytes and milliseconds. Unknown names are errors.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace mycojobs {

enum class Network {
  none,        // no socket but a local pair
  loopback,    // a network namespace of its own, in which there is nobody else
  allow_list,  // the same, with a proxy that leads to the listed places and nowhere else
};

// Where a job with an allow-list finds its proxy: in its own network.
inline constexpr std::uint16_t kProxyPort = 3128;
inline constexpr const char* kProxyUrl = "http://127.0.0.1:3128";

struct Policy {
  // Folders of the host that appear at the same place. Absolute, without "..", below /srv /opt /home /var /mnt /media
  // /data. fs.write: as far as the job's own user id may write there.
  std::vector<std::string> fs_read, fs_write;
  Network network = Network::none;     // net: "none", "loopback", or a list of
  std::vector<std::string> net_allow;  // "host:port", "*.example.org:443", "192.0.2.7:5432", "[2001:db8::1]:443"
  bool exec = false;                   // fork and exec
  std::uint64_t cpu_ms = 0;            // CPU time of all its processes; 0: as much as wall allows
  std::uint64_t memory_bytes = 256ULL << 20;
  std::uint32_t pids = 64;                 // threads count
  std::uint64_t wall_ms = 0;               // 0: the job's timeout decides alone
  std::uint64_t disk_bytes = 64ULL << 20;  // /tmp and the job's folder together; /dev/shm as much again
  std::uint64_t file_bytes = 64ULL << 20;  // size of one file
  std::uint32_t open_files = 256;
  std::uint64_t output_bytes = 1ULL << 20;  // output.keep: head and tail of this are kept
  bool output_kill = false;                 // output.kill: over it the job is killed instead of shortened
  std::vector<std::string> syscalls;        // syscalls.add: names as in syscalls(2)
  std::vector<std::string> secrets;         // names of the operator's files
  // warm.runs, warm.idle: its process serves so many jobs with the same script, and rests so long between two of them
  // (docs/warm.md). 0 runs: each job has a process of its own.
  std::uint32_t warm_runs = 0;
  std::uint64_t warm_idle_ms = 60'000;
  bool artifacts_optional = false;  // artifacts.optional: files that are not kept change no exit code
  bool operator==(const Policy&) const = default;
};

}  // namespace mycojobs
