// Two coordinators that speak with each other, each with a Redis of its own: "here" has context 1, "there" context 2.
// Clients, supervisors and runners take turns in one thread, on one clock. Any call of a supervisor that can change
// anything can be disturbed, and any request between the two; a supervisor that is killed begins anew.
//
// A job's script says what becomes of it: "ok", "fail", "hold" (runs until it is cancelled). Each writes two lines.
// One that ends in "leave" leaves an artifact, its script ("long": and much behind it); one that ends in "read" looks
// for files that it was given.
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/ed25519.h"
#include "coordinator/context_loop.h"
#include "coordinator/message_receiver.h"
#include "coordinator/message_rounds.h"
#include "support/hand_clock.h"
#include "support/process.h"
#include "support/redis/memory_server.h"

namespace mycojobs {

enum class MessageFate {
  fine,
  // Of a call of the store.
  killed_before,
  killed_after,
  reply_lost,
  request_lost,
  // Of a request to the other side.
  parcel_lost,
  answer_lost,
  twice,
  late,  // it arrives a second time, half a minute afterwards
};
struct MessageDisturbance {
  std::uint64_t call = 0;  // the number of the store's call, or of the request, from 1
  MessageFate fate = MessageFate::fine;
  std::uint64_t times =
      1;  // as often the same step is tried: the next calls of that script there, or requests to there
  std::string step = {};

  bool strikes(std::uint64_t number, const std::string& of) {
    if (number == call) step = of;
    if (times == 0 || step.empty() || step != of) return false;
    --times;
    return true;
  }
};

class MessageSide {
 public:
  MessageSide(MemoryServer& server, const Clock& clock, Id context, std::string address, const std::string& state_dir);

  Id context;
  std::string address;
  std::shared_ptr<const SigningKey> key;
  MemoryServer& server;
  std::unique_ptr<Store> store;      // of clients, runner and test: never disturbed
  std::unique_ptr<FlowStore> flows;  // the same
  std::vector<Claimed> running;
  std::map<std::string, int> claims;  // by script: how often it was begun
  std::string state_dir;              // of its host
  CarriedFiles files;

  // What a run of the job leaves: the field `artifacts`.
  std::string leave(const std::string& job_key, const std::string& name, const std::string& bytes);
  // Of a job's artifact, or a file that it was given; nothing: it is not on this host.
  std::string file_of(const std::string& job_key, const std::string& bytes);

  std::string text(const std::vector<std::string>& words) { return std::string(server.plain(context, words).text()); }
  std::vector<std::string> list(const std::vector<std::string>& words);
  std::string field(const std::string& of, const std::string& name) { return text({"HGET", of, name}); }

 private:
  friend class MessageStage;
  void begin(const Clock& clock);  // the supervisor, anew

  std::unique_ptr<Store> rounds_store_, receiver_store_;
  std::unique_ptr<FlowStore> rounds_flows_;
  std::unique_ptr<KnownKeys> known_;
  std::unique_ptr<MessageRounds> rounds_;
  std::unique_ptr<MessageReceiver> receiver_;
  std::unique_ptr<ContextRounds> flow_rounds_;  // undisturbed
  bool is_dead_ = false;
  bool is_idle_ = true;  // a look finds nothing, so that a cut of it is none
};

class MessageStage {
 public:
  static constexpr Id kAlice = 12, kAliceThere = 34;  // the sender, as the two sides number her
  static constexpr const char *kHere = "http://here:1", *kThere = "http://there:1";

  MessageStage();
  ~MessageStage();

  test::HandClock& clock;
  SigningKey alice = SigningKey::make();
  test::TempDir folder;  // both hosts' files
  MessageSide here, there;

  // To the other side; signed by nobody yet.
  Message message(Id id, std::vector<Job> jobs);
  static Job job(Id id, const std::string& script);
  static std::string left_by(const std::string& script);
  void send(Message message);  // signed, written and put on msg_out

  // Something that a client does once, when its time has come.
  void when(std::function<bool()> time, std::function<void()> act) {
    acts_.push_back({std::move(time), std::move(act)});
  }

  void when_later(std::uint64_t ms, std::function<void()> act) {
    when([this, until = clock.unix_ms() + ms] { return clock.unix_ms() >= until; }, std::move(act));
  }

  void disturb_calls(std::vector<MessageDisturbance> of) { calls_disturbed_ = std::move(of); }
  void disturb_requests(std::vector<MessageDisturbance> of) { requests_disturbed_ = std::move(of); }
  void part(bool apart) { apart_ = apart; }       // no request arrives
  void pace(std::uint64_t ms) { pace_ms_ = ms; }  // of the steps that play() makes
  // Requests to there arrive, and no answer to them is heard.
  void deafen(const std::string& address) { deaf_to_ = address; }
  // The transport of both sides refuses every request with this error; nothing: it carries them.
  void refuse_requests(std::optional<Error> error) { transport_error_ = std::move(error); }
  // What whoever carries hears instead of an answer.
  void tell_instead(std::function<std::string(const std::string& answer)> instead) { instead_ = std::move(instead); }

  void restart() {  // both supervisors, with other settings
    here.begin(clock);
    there.begin(clock);
  }
  void step(std::uint64_t ms = 250);  // of everybody
  void steps(int count) {
    for (int i = 0; i < count; ++i) step();
  }
  bool play(int rounds = 1500);  // until nothing is under way; false: that never came
  bool is_quiet();
  std::uint64_t calls() const { return calls_; }
  std::uint64_t requests() const { return requests_; }
  std::uint64_t commands() const { return commands_; }  // of the supervisors to their servers, reads too

  // Of every message and its jobs, on both sides, in words that do not rest on what was disturbed.
  std::string outcome();
  std::vector<std::string> trouble();  // what must never be

  std::string receive(MessageSide& side, const std::string& request, const std::string& node = {});
  Result<std::string> carry(const std::string& address, const std::string& request, std::uint64_t number);

 private:
  struct Act {
    std::function<bool()> time;
    std::function<void()> act;
  };
  struct Late {
    std::uint64_t at_ms;
    std::string address, request;
  };
  Fault judge(MessageSide& side, const ServerCall& call);
  void prepare(MessageSide& side);
  void supervise(MessageSide& side);
  void run_jobs(MessageSide& side);
  bool has_mail(MessageSide& side);
  void trouble_of(MessageSide& side, std::vector<std::string>& all);

  std::vector<MessageDisturbance> calls_disturbed_, requests_disturbed_;
  std::deque<Act> acts_;
  std::vector<Late> late_;
  std::set<std::string> sent_;
  std::uint64_t calls_ = 0, requests_ = 0, commands_ = 0;
  std::vector<std::string> let_go_;  // files, too early
  MessageSide* at_work_ = nullptr;   // whose calls are counted
  bool apart_ = false;
  std::optional<Error> transport_error_;
  std::string deaf_to_;
  std::uint64_t pace_ms_ = 250;
  std::function<std::string(const std::string&)> instead_;
};

}  // namespace mycojobs
