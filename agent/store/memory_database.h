// One context of the store in memory: the rules of scripts/*.lua, in C++. Plain data and one step a call; the caller
// holds the lock and sets the time. Functions are those of the port (mycojobs/store.h).
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mycojobs/store.h"

namespace mycojobs {

class MemoryDatabase {
 public:
  void set_now(Id context, std::uint64_t now_ms) { context_ = context, now_ms_ = now_ms; }

  Result<ClaimReply> claim(const ClaimRequest&);
  Result<std::vector<Renewal>> renew(std::span<const ClaimRef>, std::uint32_t lease_ms);
  Result<std::vector<Result<void>>> report(std::span<const Report>);
  Result<std::vector<Lease>> leases() const;
  Result<bool> expire(const Lease&);
  Result<std::uint32_t> sweep_missing(std::uint32_t wait_ms);

  Result<Job> submit(const Job&);
  Result<void> cancel(const std::string& job);
  std::string owner_topic(const std::string& job) const;  // of the runner that has it now; empty: nobody
  Result<Fields> load(const std::string& key) const;
  Result<void> save(const std::string& key, const Fields&);
  Result<std::vector<std::string>> keys(std::string_view prefix, std::size_t max) const;
  Result<std::uint64_t> queue_length(const std::string& queue) const;
  Result<std::vector<DeadLetter>> dead_letters(std::size_t max) const;
  Result<std::vector<std::string>> anomalies(std::size_t max) const;
  Result<LogPage> logs(const std::string& job, std::uint64_t after_seq, std::size_t max) const;

  Result<void> hold_runner(const Runner&, const RunnerHold&, std::uint32_t ttl_ms, const std::string& replaces,
                           RunnerHold& held_by);
  Result<void> release_runner(Id runner, const RunnerHold&);
  Result<std::vector<std::string>> topic_pending(const std::string& topic) const;
  Result<void> topic_send(const std::string& topic, const std::string& message, const Fields&);
  Result<MessageIntake> take_message(const std::string& topic, const std::string& message, std::span<const Job>,
                                     const std::string& queue);
  Result<void> refuse_message(const std::string& topic, const std::string& message, const std::string& reason);

  // What plain clients of a Redis do.
  void push(const std::string& queue, const std::string& entry) { lists_[queue].push_front(entry); }
  void put_text(const std::string& key, const std::string& text) { erase(key), texts_[key] = text; }
  void erase(const std::string& key) { hashes_.erase(key), lists_.erase(key), texts_.erase(key); }

 private:
  enum class State { fresh, live, released, expired, ended };
  struct Claim {
    State state = State::fresh;
    std::string claim_id, token, queue, message;
    std::uint64_t epoch = 0, lease_ms = 0, until_ms = 0, log_base = 0;
    std::uint32_t attempt = 1, deliveries = 0;
    bool cancel = false;
    bool leftover = false;  // its queue entry is no anomaly
    JobEnd end;
  };
  struct JobLog {
    std::vector<Log> lines;
    bool ended = false;
  };
  struct Hold {
    RunnerHold holder;
    std::uint64_t until_ms = 0;
  };
  struct Taken {
    std::size_t left = 0, failed = 0;
  };
  using List = std::deque<std::string>;  // back() is the right end

  enum class Take { taken, set_aside, silent, full };
  Take take(const ClaimRequest&, const std::string& queue, const std::string& entry, ClaimReply&, std::uint64_t& bytes);
  void start(const ClaimRequest&, const std::string& queue, const std::string& job, ClaimReply&);
  Result<void> append(const LogAppend&);
  Result<void> end(const EndReport&);
  Result<void> release(const Release&);
  tl::unexpected<Error> stale(const ClaimRef&, std::string_view what);
  Claim* live(const ClaimRef&);
  void finish(const std::string& job, const JobEnd&, bool by_owner);
  Result<void> give_back(const std::string& job, State);
  void settle(const std::string& message, bool finished);

  void anomaly(std::string text);
  void dead_letter(const std::string& entry, const std::string& queue, std::string reason);
  std::string_view type_of(const std::string& key) const;
  Result<void> want(const std::string& key, std::string_view type) const;
  std::string field(const std::string& key, const std::string& name) const;
  void set(const std::string& key, const Fields&);
  void queued(const std::string& job);
  bool ended_by_others(const std::string& job) const;
  std::string now_s() const { return std::to_string(now_ms_ / 1000); }
  tl::unexpected<Error> missing(const std::string& key) const;

  Id context_ = 0;
  std::uint64_t now_ms_ = 0;
  std::map<std::string, std::map<std::string, std::string>> hashes_;
  std::map<std::string, List> lists_;
  std::map<std::string, std::string> texts_;
  std::map<std::string, Claim> claims_;
  std::map<std::string, JobLog> logs_;
  std::map<std::pair<std::string, std::string>, std::uint64_t> missing_;  // job, queue: since when
  std::map<std::string, Taken> messages_;
  std::map<std::string, List> topics_;
  std::map<Id, Hold> holds_;
  std::map<Id, Id> last_id_;
  std::vector<DeadLetter> dead_;
  std::vector<std::string> anomalies_;
};

}  // namespace mycojobs
