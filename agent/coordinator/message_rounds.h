// The supervisor daemon's work for one context, step by step (supervisor.h gives it a thread): it alone takes from
// msg_out, and takes up what has arrived.
//
//   msg_out -> msg_out_coordinator --signature, rights, where to--> mj:outbox --carried--> acknowledged there
//   mj:inbox --signature and rights were checked where it entered--> jobs in their queues, or a flow
//   the end of a message that came from elsewhere --> its answer, with the jobs' receipts, carried back
//
// Each step is one of the store's: killed anywhere, whoever comes next goes on. What is to be carried is handed out as
// parcels, and settled with what came of them. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/flow_run.h"
#include "coordinator/message_files.h"
#include "coordinator/message_receiver.h"
#include "domain/job_limits.h"
#include "domain/rights.h"
#include "mycojobs/clock.h"
#include "mycojobs/flows.h"
#include "mycojobs/store.h"

namespace mycojobs {

struct MessageSettings {
  Id context = 0;
  std::shared_ptr<const SigningKey> key;  // of this coordinator
  bool is_known = false;                  // others know its public key: it may speak with them
  std::uint64_t retention_ms = 0;         // of ended messages; 0: for ever
  CarriedFiles files = {};
  JobLimits limits = {};  // of the flows that messages start
};

// A request on its way, and what becomes of its entry once it was answered.
struct Parcel {
  OutboxEntry entry;
  std::string address;  // empty: a context here
  std::string request;  // JSON-RPC
  MailAfter done;
  // If it was refused for good; nothing: so has the entry.
  std::optional<MailAfter> refused = std::nullopt;
  // Of a piece of a file that was asked for: whose end it is, if it comes whole.
  std::optional<WantedFile> piece_of = std::nullopt;
  std::uint64_t file_bytes = 0;
  std::size_t files = 0;  // that may be asked for
};

class MessageRounds {
 public:
  // All of them outlive it.
  MessageRounds(Store& store, FlowStore& flows, const Clock& clock, MessageSettings settings)
      : store_(store), flows_(flows), clock_(clock), settings_(std::move(settings)) {}

  struct Round {
    std::vector<Parcel> parcels;
    std::uint64_t next_ms = 0;  // until there is more to do, if nothing happens meanwhile
  };
  // Whether what is due can be carried now: 0, else in how many ms it is asked for again.
  using Room = std::function<std::uint64_t(const OutboxEntry&)>;
  // At most so many parcels; each is given out again after kHoldMs unless it was settled. Error unavailable.
  Result<Round> round(std::uint32_t max_parcels, const Room& room = nullptr);
  Result<void> settle(const Parcel&, const Result<std::string>& answer);
  // There was no room for it: again after this time.
  Result<void> put_back(const Parcel&, std::uint64_t pause_ms);

  static constexpr std::uint32_t kHoldMs = 30000;  // longer than an exchange takes

 private:
  Result<void> not_made(const OutboxEntry&, const Error&);
  Result<void> route(const std::string& message_key);
  Result<RouteMessage> routed(const std::string& message_key, Message&);
  Result<void> take_up(const std::string& message_key);
  Result<void> take_up(const std::string& message_key, Message&, const Fields& mark);
  Result<bool> waits_for_settings(const std::string& message_key, const Fields& mark, const Error& why);
  Result<Fields> written_by_hand(const std::string& message_key, const Message&);
  Result<std::vector<MessageJob>> jobs_of(Message&, TakeMessage&);
  Result<Id> flow_of(const std::string& message_key, const Message&);
  Result<std::string> queue_of_topic(const std::string& topic);
  Result<std::optional<Parcel>> parcel(const OutboxEntry&);
  Result<Parcel> sending(const OutboxEntry&);
  Result<Parcel> piece(const OutboxEntry&, const MessageName&, const std::string& job_key, const FileContent&,
                       const WantedFile&, Id context);
  Result<std::optional<Parcel>> piece_of_answer(const OutboxEntry&, const MessageName&);
  Result<std::string> add_files(const OutboxEntry&, const std::string& job_key, const Job&, nlohmann::json& answered);
  Result<std::unique_ptr<ArtifactStore::HandedOver>> hand_over(const Message&, const TakeMessage&, const Fields& mark);
  Result<void> cancel_flow(const OutboxEntry&);
  Result<Parcel> cancelling(const OutboxEntry&);
  Result<Parcel> answering(const OutboxEntry&);
  Result<bool> has_room(const OutboxEntry&, const Room&);
  Result<std::optional<Parcel>> without_lines(const OutboxEntry&, const Error& why);
  Result<std::optional<Parcel>> logging(const OutboxEntry&);
  Result<nlohmann::json> answered_jobs(const OutboxEntry&, std::size_t from, std::size_t& next);
  Result<Parcel> sealed(const OutboxEntry&, EnvelopeKind, const nlohmann::json& body, std::string address, Id context);
  Result<void> apart(const std::string& what, Result<void> done) const;
  // What many messages of one round ask for is read once, and anew after kKnownMs.
  struct Known {
    std::uint64_t read_boot_ms = 0;
    std::optional<std::uint64_t> now_ms;  // of the store
    std::optional<Place> place;           // this context
    std::map<Id, Actor> actors;           // one without a record has its id alone
  };
  static constexpr std::uint64_t kKnownMs = 100;
  Known& known();
  Result<std::uint64_t> now_ms();
  Result<std::uint64_t> now_s();
  Result<Place> place(WayIn);
  Result<Actor> actor(Id);

  Store& store_;
  FlowStore& flows_;
  const Clock& clock_;
  MessageSettings settings_;
  RunCache runs_{1000};
  Known known_;
  SupervisorKeys peers_;
  std::map<std::string, std::string, std::less<>>
      topics_;  // where the runner of one was the last time: its record's key
  std::uint64_t next_retire_ms_ = 0;
  std::uint64_t redis_ms_ = 0;   // its clock in the last round
  bool clock_went_back_ = true;  // or it may have, before we began
};

}  // namespace mycojobs
