// Three Redis servers with three sentinels on ports of the loopback, and an imitation of a sentinel that announces any
// address. Each object has its files in the folder of its test.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "store/redis/redis_stores.h"
#include "support/process.h"

namespace mycojobs::test {

inline constexpr std::size_t kServers = 3;
inline constexpr Id kContext = 1;

struct GroupOptions {
  std::vector<std::string> server_options;   // further options of each server
  std::vector<std::string> sentinel_lines;   // further lines of each sentinel's configuration
  std::string server_user, server_password;  // for the commands of the test; sentinels and replicas do not use them
  std::string sentinel_password;             // of the sentinels, which then require it
  std::array<std::vector<std::string>, kServers> environments;  // of the servers
};

class RedisGroup {
 public:
  explicit RedisGroup(const TempDir&, GroupOptions = {});

  // redis+sentinel://[credentials@]... with all sentinels.
  std::string url(const std::string& credentials = "") const;
  std::string server_url(std::size_t server) const;
  std::uint16_t server_port(std::size_t server) const { return server_ports_[server]; }
  std::uint16_t sentinel_port(std::size_t sentinel) const { return sentinel_ports_[sentinel]; }
  RedisAddress address(std::size_t server) const { return {"127.0.0.1", server_ports_[server]}; }

  // Runs a command on a server or a sentinel; null: an error, or no answer.
  std::optional<Reply> command(std::size_t server, const std::vector<std::string>& words) const;
  std::optional<Reply> ask_sentinel(std::size_t sentinel, const std::vector<std::string>& words) const;
  std::size_t master() const;  // index of the server that the sentinels announce; kServers: they do not agree
  // Waits until all running sentinels announce a server other than `old_master`, and returns it.
  std::size_t wait_for_failover(std::size_t old_master) const;
  // Waits until the master has two replicas that are online, and the sentinels know them.
  bool wait_until_complete() const;
  std::string role(std::size_t server) const;  // "master", "slave" or empty
  // Cuts the connections of a server to replicas and sentinels, which use the default user, or permits them again.
  // Clients with another user are not affected.
  void set_isolated(std::size_t server, bool is_isolated) const;

  void start_server(std::size_t server);
  void kill_server(std::size_t server);  // SIGKILL
  void signal_server(std::size_t server, int number) const { servers_[server]->signal(number); }
  void start_sentinel(std::size_t sentinel);
  void kill_sentinel(std::size_t sentinel);
  void signal_sentinel(std::size_t sentinel, int number) const { sentinels_[sentinel]->signal(number); }

 private:
  std::optional<Reply> send(std::uint16_t port, bool is_sentinel, const std::vector<std::string>& words) const;

  const TempDir& folder_;
  const GroupOptions options_;
  std::array<std::uint16_t, kServers> server_ports_{}, sentinel_ports_{};
  std::array<std::unique_ptr<Process>, kServers> servers_, sentinels_;
};

// Answers the commands of a client to a sentinel, without any checks.
class FakeSentinel {
 public:
  explicit FakeSentinel(RedisAddress master);
  ~FakeSentinel();
  FakeSentinel(const FakeSentinel&) = delete;
  FakeSentinel& operator=(const FakeSentinel&) = delete;
  std::uint16_t port() const { return port_; }
  void announce(RedisAddress master);                // also sends +switch-master to the subscribers
  unsigned questions() const { return questions_; }  // number of answered questions for the master

 private:
  struct Client {
    Fd socket;
    bool is_subscribed = false;
  };
  void run();
  void answer(Client&, const std::string& command);

  Fd listener_;
  std::uint16_t port_ = 0;
  std::mutex mutex_;
  RedisAddress master_;
  std::vector<Client> clients_;
  std::atomic<unsigned> questions_{0};
  std::atomic<bool> should_stop_{false};
  std::thread thread_;
};

// Settings of stores with short time-outs that a busy machine still keeps.
RedisStoreConfig make_store_config(const std::string& url, std::uint32_t wait_replicas = 0);
RedisConnection::Options make_sentinel_options(const std::string& url);

}  // namespace mycojobs::test
