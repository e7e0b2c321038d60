// Two coordinators that exchange messages, each with its own Redis: "here" has context 1, "there" context 2. Clients,
// supervisors and runners take turns on one thread with one clock. A fault can be injected into every writing call of a
// supervisor and every request between the two; a killed supervisor is restarted.
//
// The script of a job selects its behaviour: "ok", "fail", "hold" (runs until it is cancelled). Each script writes two
// lines. A script that ends in "leave" stores its own text as an artifact (with "long": followed by much data); a
// script that ends in "read" reads the files given to the job.
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
#include "messaging/message_loop.h"
#include "messaging/message_receiver.h"
#include "support/hand_clock.h"
#include "support/process.h"
#include "support/redis/memory_server.h"

namespace mycojobs {

enum class MessageFate {
  fine,
  // Faults of a store call.
  killed_before,
  killed_after,
  reply_lost,
  request_lost,
  // Faults of a request to the other side.
  parcel_lost,
  answer_lost,
  twice,
  late,  // delivered a second time after half a minute
};
struct MessageDisturbance {
  std::uint64_t call = 0;  // number of the store call or of the request, from 1
  MessageFate fate = MessageFate::fine;
  // How often the fault is repeated: at the next calls of the same script on that side, or the next requests to it.
  std::uint64_t times = 1;
  std::string step = {};

  bool matches(std::uint64_t number, const std::string& of) {
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
  std::unique_ptr<Store> store;      // for clients, runner and test; without faults
  std::unique_ptr<FlowStore> flows;  // without faults
  std::vector<ClaimedJob> running;
  std::map<std::string, int> claims;  // how often each script was started
  std::string state_dir;              // of the side's host
  MessageAttachments files;

  // Stores an artifact of the job. Returns the value for the field `artifacts`.
  std::string store_artifact(const std::string& job_key, const std::string& name, const std::string& bytes);
  // Reads the job's artifact or given file with the hash of `bytes`. Returns "" if the file is not on this host.
  std::string read_job_file(const std::string& job_key, const std::string& bytes);

  std::string text(const std::vector<std::string>& words) {
    return std::string(server.run_command(context, words).text());
  }
  std::vector<std::string> list(const std::vector<std::string>& words);
  std::string field(const std::string& of, const std::string& name) { return text({"HGET", of, name}); }

 private:
  friend class MessageStage;
  void begin(const Clock& clock);  // restarts the supervisor

  std::unique_ptr<Store> rounds_store_, receiver_store_;
  std::unique_ptr<FlowStore> rounds_flows_;
  std::unique_ptr<PublicKeyCache> known_;
  std::unique_ptr<MessageLoop> rounds_;
  std::unique_ptr<MessageReceiver> receiver_;
  std::unique_ptr<ContextLoop> flow_rounds_;  // without faults
  bool is_dead_ = false;
  bool is_idle_ = true;  // a query would find no mail, so a fault in it has no effect
};

class MessageStage {
 public:
  static constexpr Id kAlice = 12, kAliceThere = 34;  // the ids of the sender on the two sides
  static constexpr const char *kHere = "http://here:1", *kThere = "http://there:1";

  MessageStage();
  ~MessageStage();

  test::ManualClock& clock;
  SigningKey alice = SigningKey::make();
  test::TempDir folder;  // the files of both hosts
  MessageSide here, there;

  // Returns an unsigned message to the other side.
  Message message(Id id, std::vector<Job> jobs);
  static Job job(Id id, const std::string& script);
  static std::string get_artifact_bytes(const std::string& script);
  void send(Message message);  // signs and stores the message, and pushes it on msg_out

  // An action of a client, done once when its condition holds.
  void when(std::function<bool()> time, std::function<void()> act) {
    acts_.push_back({std::move(time), std::move(act)});
  }

  void when_later(std::uint64_t ms, std::function<void()> act) {
    when([this, until = clock.unix_ms() + ms] { return clock.unix_ms() >= until; }, std::move(act));
  }

  void disturb_calls(std::vector<MessageDisturbance> disturbances) { calls_disturbed_ = std::move(disturbances); }
  void disturb_requests(std::vector<MessageDisturbance> disturbances) { requests_disturbed_ = std::move(disturbances); }
  void set_disconnected(bool disconnected) { is_disconnected_ = disconnected; }  // all requests are lost
  void set_step_ms(std::uint64_t ms) { step_ms_ = ms; }                          // time between the steps of play()
  // Requests to this address arrive, but their answers are lost.
  void drop_answers_to(const std::string& address) { address_without_answers_ = address; }
  // The transport of both sides refuses every request with this error; nothing: requests are carried.
  void refuse_requests(std::optional<Error> error) { transport_error_ = std::move(error); }
  // Replaces the answers that the requesting side receives.
  void replace_answers(std::function<std::string(const std::string& answer)> instead) {
    replacement_ = std::move(instead);
  }

  void restart() {  // restarts both supervisors, with new settings
    here.begin(clock);
    there.begin(clock);
  }
  void step(std::uint64_t ms = 250);  // a step of all participants
  void steps(int count) {
    for (int i = 0; i < count; ++i) step();
  }
  bool play(int rounds = 1500);  // runs until no work is left; false if work is left after `rounds` rounds
  bool is_quiet();
  std::uint64_t calls() const { return calls_; }
  std::uint64_t requests() const { return requests_; }
  std::uint64_t commands() const { return commands_; }  // commands of the supervisors to their servers, including reads

  // Describes every message and its jobs on both sides, independently of the injected faults.
  std::string outcome();
  std::vector<std::string> find_violations();  // returns the violated invariants

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
  Fault choose_fault(MessageSide& side, const ServerCall& call);
  void prepare(MessageSide& side);
  void supervise(MessageSide& side);
  void run_jobs(MessageSide& side);
  bool has_mail(MessageSide& side);
  void add_violations(MessageSide& side, std::vector<std::string>& all);

  std::vector<MessageDisturbance> calls_disturbed_, requests_disturbed_;
  std::deque<Act> acts_;
  std::vector<Late> late_;
  std::set<std::string> sent_;
  std::uint64_t calls_ = 0, requests_ = 0, commands_ = 0;
  std::vector<std::string> released_early_;  // files released too early
  MessageSide* active_side_ = nullptr;       // the side whose calls are counted
  bool is_disconnected_ = false;
  std::optional<Error> transport_error_;
  std::string address_without_answers_;
  std::uint64_t step_ms_ = 250;
  std::function<std::string(const std::string&)> replacement_;
};

}  // namespace mycojobs
