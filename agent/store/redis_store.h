// The store on Redis 7 or newer. A job's protocol is in scripts/*.lua, one atomic step a call; the keys are in
// keys.cpp.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "mycojobs/store.h"
#include "store/redis_connection.h"

namespace mycojobs {

struct RedisStoreConfig {
  std::string default_url = "redis://127.0.0.1:6379";
  // Contexts with a server of their own. There the URL may name a database (/3, ?db=3); everywhere else a context's id
  // is the number of its database.
  std::map<Id, std::string> context_urls;
  std::string client_name = "mycojobs";  // as CLIENT LIST shows it; no blanks
  std::uint32_t connect_timeout_ms = 3000, command_timeout_ms = 5000;
};

// Where a context lives. Error: invalid (the URL; context 0).
Result<RedisConnection::Options> connection_options(const RedisStoreConfig&, Id context);

class RedisStore final : public Store {
 public:
  explicit RedisStore(RedisStoreConfig config) : config_(std::move(config)) {}

  Result<ClaimReply> claim(const ClaimRequest&) override;
  Result<std::vector<Renewal>> renew(Id context, std::span<const ClaimRef>, std::uint32_t lease_ms) override;
  Result<std::vector<Result<void>>> report(Id context, std::span<const Report>) override;
  Result<std::vector<Lease>> leases(Id context) override;
  Result<bool> expire(Id context, const Lease&) override;
  Result<std::uint32_t> sweep_missing(Id context, std::uint32_t wait_ms) override;

  Result<Job> submit(const Job&) override;
  Result<void> cancel(Id context, const std::string& job_key) override;
  Result<Fields> load(Id context, const std::string& key) override;
  Result<void> save(Id context, const std::string& key, const Fields&) override;
  Result<std::vector<std::string>> keys(Id context, std::string_view prefix, std::size_t max) override;
  Result<std::uint64_t> queue_length(Id context, const std::string& queue) override;
  Result<std::vector<DeadLetter>> dead_letters(Id context, std::size_t max) override;
  Result<std::vector<std::string>> anomalies(Id context, std::size_t max) override;
  Result<LogPage> logs(Id context, const std::string& job_key, std::uint64_t after_seq, std::size_t max,
                       std::uint32_t wait_ms) override;

  Result<void> hold_runner(Id context, const Runner&, const RunnerHold& self, std::uint32_t ttl_ms,
                           const std::string& replaces, RunnerHold& held_by) override;
  Result<void> release_runner(Id context, Id runner, const RunnerHold& self) override;
  Result<std::vector<std::string>> topic_pending(Id context, const std::string& topic) override;
  Result<void> topic_send(Id context, const std::string& topic, const std::string& message_key,
                          const Fields& message) override;
  Result<MessageIntake> take_message(Id context, const std::string& topic, const std::string& message_key,
                                     std::span<const Job> jobs, const std::string& queue) override;
  Result<void> refuse_message(Id context, const std::string& topic, const std::string& message_key,
                              const std::string& reason) override;
  Result<ServerFacts> facts() override;
  Result<std::uint64_t> now_ms() override;

 private:
  Result<RedisConnection*> connection(Id context);  // connected; leases granted if the server is a new one
  Result<RedisConnection*> server();                // the default server, no context
  Result<Reply> run(Id context, const Script&, const Arguments&);
  Result<Reply> command(Id context, const Arguments&, std::uint32_t extra_ms = 0);

  RedisStoreConfig config_;
  std::map<Id, RedisConnection> connections_;  // 0: no context
};

// Does not connect yet.
std::unique_ptr<StoreFactory> make_redis_stores(RedisStoreConfig);

}  // namespace mycojobs
