// Redis Sentinel: finds the master of a group of servers, and closes the connections to a server that is not the master
// any more. All connections of a process to the same group share one SentinelGroup:
//
//   const auto group = SentinelGroup::find(endpoint, tls, settings);
//   group->connect_to_master(deadline, [&](const MasterCandidate& candidate, Deadline limit) -> Result<void> {
//     ... connects to candidate.address, registers the socket with watch(), and verifies the role ...
//   });
//
// A thread of the group subscribes to the event +switch-master of all sentinels. When a sentinel announces another
// master, the thread shuts down the registered sockets of other servers, so that pending and later calls on them fail.
// No connection is needed for this to work: a failure of the thread or of the sentinels only delays the detection.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/deadline.h"
#include "base/result.h"
#include "net/tls.h"
#include "store/redis/redis_endpoint.h"

namespace mycojobs {

class RedisConnection;

// Credentials for the sentinels. Those of the servers are a part of their address.
struct SentinelSettings {
  std::string user;
  // File with the password; empty: the sentinels require no password. It is read at each new connection to a sentinel.
  std::string password_file;
  bool operator==(const SentinelSettings&) const = default;
};

// Reads the password file. Errors: not_found, io, denied (other users can read it), invalid; they name the setting.
Result<void> check_sentinel_settings(const SentinelSettings&);

// The server that a sentinel has announced as the master.
struct MasterCandidate {
  RedisAddress address;
  std::uint64_t generation = 0;  // value of SentinelGroup::generation() before the sentinel was asked
};

// Replication state of a server, from INFO.
struct ReplicationState {
  bool is_master = false;
  std::string master;  // address of the master of a replica
  std::string replication_id, previous_replication_id;
};
ReplicationState parse_replication_state(std::string_view info);

class SentinelGroup;

// The registration of a socket with a group, which the destructor removes. It must be destroyed before the socket is
// closed.
class WatchedSocket {
 public:
  WatchedSocket(std::shared_ptr<SentinelGroup> group, int fd) : group_(std::move(group)), fd_(fd) {}
  ~WatchedSocket();
  WatchedSocket(const WatchedSocket&) = delete;
  WatchedSocket& operator=(const WatchedSocket&) = delete;

 private:
  std::shared_ptr<SentinelGroup> group_;
  int fd_;
};

// Thread-safe.
class SentinelGroup : public std::enable_shared_from_this<SentinelGroup> {
 public:
  // Returns the group of the process for this address, these certificates and these credentials.
  // REQUIRES: the endpoint uses sentinels.
  static std::shared_ptr<SentinelGroup> find(const RedisEndpoint&, const std::shared_ptr<TlsContext>&,
                                             const SentinelSettings&);
  ~SentinelGroup();
  SentinelGroup(const SentinelGroup&) = delete;
  SentinelGroup& operator=(const SentinelGroup&) = delete;

  using ConnectCandidate = std::function<Result<void>(const MasterCandidate&, Deadline)>;
  // Asks the sentinels one after another for the master, and calls `connect` with each different answer until it
  // succeeds. If `connect` fails with `unavailable`, for example because the server is a replica, the next sentinel is
  // asked; other errors are returned at once. Errors: unavailable, naming each answer; denied (all sentinels reject the
  // credentials); invalid (no sentinel knows the name of the master).
  Result<void> connect_to_master(Deadline, const ConnectCandidate& connect);

  // Registers the socket of a connection to a candidate. If another master was announced since, the socket is shut down
  // at once.
  std::unique_ptr<WatchedSocket> watch(int fd, const MasterCandidate&);
  // Shuts down the registered sockets of a server that has shown that it is a replica.
  void on_demotion(const RedisAddress&);
  // Logs a change of the master, and data that does not continue the data of the master before.
  void on_connected(const RedisAddress& master, const ReplicationState&);

  const RedisEndpoint& endpoint() const { return endpoint_; }
  // Opens a connection to a sentinel of the endpoint. The time-out is for the connection, and for each reply.
  Result<std::unique_ptr<RedisConnection>> open_sentinel(std::size_t index, std::uint32_t timeout_ms) const;
  // Asks a sentinel for the address of the master. Error invalid: the sentinel does not know the name.
  Result<RedisAddress> ask_master(RedisConnection& sentinel) const;

 private:
  friend class WatchedSocket;
  class Monitor;

  SentinelGroup(RedisEndpoint, std::shared_ptr<TlsContext>, SentinelSettings);
  Result<RedisAddress> ask_sentinel(std::size_t index, Deadline limit) const;
  std::vector<std::size_t> sentinel_order();  // indexes of the sentinels, the preferred sentinel first
  std::uint64_t generation();
  // A sentinel has announced a master with +switch-master, or with the state that a new subscription begins with.
  void on_announcement(std::size_t index, const RedisAddress&);
  void on_sentinel_state(std::size_t index, std::uint64_t config_epoch, const RedisAddress&);
  void start_monitor();
  void remove_socket(int fd);

  const RedisEndpoint endpoint_;
  const std::shared_ptr<TlsContext> tls_;           // certificates for the servers; null: the CAs of the system
  const std::shared_ptr<TlsContext> sentinel_tls_;  // without the name of the servers' certificates
  const SentinelSettings settings_;

  std::mutex mutex_;
  std::uint64_t generation_ = 0;           // number of announcements
  std::optional<RedisAddress> announced_;  // master of the latest announcement
  std::uint64_t config_epoch_ = 0;         // largest configuration epoch that a sentinel has reported
  std::size_t preferred_ = 0;              // index of the sentinel that is asked first
  std::map<int, RedisAddress> sockets_;    // registered sockets, with the server of each
  std::optional<RedisAddress> master_;     // server of the latest verified connection
  std::string replication_id_;             // state of the latest verified connection

  std::mutex monitor_mutex_;
  bool was_monitor_started_ = false;
  std::unique_ptr<Monitor> monitor_;  // null before the first connection, or if its thread could not be started
};

}  // namespace mycojobs
