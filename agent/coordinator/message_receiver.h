// What supervisors elsewhere send here (domain/envelope.h): messages for contexts of ours, answers to what we have
// sent, lines of logs, requests to cancel. Everything is checked here, where it enters: its form, its size, who has
// signed it, what that one may do, whether it is fresh, whether it is what it was the first time. One thread an
// instance.
//
//   message --holds--> stored in msg_in, and acknowledged by that (message_rounds.h takes it up)
//   answer  --from whom the message was sent to--> its jobs end, the message with them
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "coordinator/message_bodies.h"
#include "coordinator/message_files.h"
#include "coordinator/message_gate.h"
#include "domain/envelope.h"
#include "mycojobs/store.h"

namespace mycojobs {

inline constexpr std::uint32_t kMostDeliverS = 7 * 24 * 3600;  // for which a message is tried, and its signature counts
// In the mark of a message that carries a job which a router holds here: what its answer says of that, as JSON.
inline constexpr const char* kCarriedAnswer = "carried_answer";

// Which actor a public key is of. The records in the store decide.
class ActorKeys {
 public:
  // Error denied: nobody's here, or of two; unavailable, also until the records were looked through after nobody's was
  // asked for first: a plain client may have written one meanwhile.
  Result<Actor> find(Store&, const std::string& pubkey, std::uint64_t now_s);

 private:
  std::map<std::string, std::uint64_t> asked_;  // nobody's, and when they were asked for first, s
};

// A message as it was signed, checked as far as the record of its signer goes. Errors: invalid (it names more than
// kMostDeliverS), denied (what does not hold, as check_signature()); a message that names a time to be delivered in is
// fresh for so long.
Result<void> check_message(const Message&, const Actor& signer, std::uint64_t now_s);

// The public key of the supervisor at that address, by the record of a runner of the context; of the empty address:
// own_key. Error denied: no runner has it, and what makes one.
Result<std::string> supervisor_key(RecordStore&, Id context, const std::string& address, const std::string& own_key);

// The same, and where it was the last time is looked at first: a context with many records is not searched for each
// message. The records decide. One thread.
class SupervisorKeys {
 public:
  Result<std::string> find(RecordStore&, Id context, const std::string& address);

 private:
  std::map<std::pair<Id, std::string>, std::string> runners_;  // keys of their records
};

// What is remembered from one receiver to the next.
struct KnownKeys {
  ActorKeys actors;
  SupervisorKeys supervisors;
};

class MessageReceiver {
 public:
  // own_key: public key of this coordinator. Store and known outlive it.
  MessageReceiver(Store& store, KnownKeys& known, std::string own_key, CarriedFiles files)
      : store_(store), known_(known), own_key_(std::move(own_key)), files_(std::move(files)) {}

  // Who comes over the wire passes it first. It outlives this.
  void stand_behind(MessageGate& gate) { gate_ = &gate; }
  // A JSON-RPC request to its answer. The only method is message.deliver {envelope}; what is refused is journaled.
  // node: public key of the node of Mycelium that it has come from; empty: it came another way.
  std::string answer(std::string_view request, const std::string& node = {});
  // Of the last one: the key of whom it shows to have sent it, known here, by the seal of the envelope. Empty: of
  // nobody, as what was sent before shows nothing.
  const std::string& proven() const { return proven_; }
  // Returns whether the last request shows no known sender: it was refused without a signature of a known actor or
  // supervisor, or it repeated a message that is here already, which every host that has seen the message can do.
  bool is_strange() const { return is_strange_; }

 private:
  Result<nlohmann::json> deliver(const nlohmann::json& params);
  Result<nlohmann::json> take(const Envelope&, const nlohmann::json& sealed);
  Result<nlohmann::json> take_message(const Envelope&, const nlohmann::json& sealed);
  Result<void> check_target(const Envelope&, const Message&) const;
  Result<nlohmann::json> take_answer(const Envelope&, const nlohmann::json& sealed);
  Result<nlohmann::json> take_logs(const Envelope&, const nlohmann::json& sealed);
  Result<nlohmann::json> take_cancel(const Envelope&, const nlohmann::json& sealed);
  Result<nlohmann::json> take_file(const Envelope&, const nlohmann::json& sealed);
  Result<std::optional<WantedFile>> missing_of(const Envelope&, const Message&, const MessageName&);
  Result<std::optional<WantedFile>> missing_of(const Envelope&, const MessageName&, const nlohmann::json& jobs);
  Result<std::unique_ptr<ArtifactStore::HandedOver>> hand_over(const Envelope&, const MessageName&,
                                                               const nlohmann::json& jobs);
  struct Came {
    std::string key;
    Fields mark;
  };
  Result<std::optional<Came>> came_before(Id context, const std::string& content);
  Result<Arrival> arrive(Id context, Message&, const MessageMark&);
  struct Sent {
    std::string key;
    MessageName name;
    Fields mark;
  };
  // The message that left from here and that an answer or lines are of, sealed by whom it was sent to.
  Result<Sent> sent(const Envelope&, const nlohmann::json& sealed);
  // That the envelope is of the supervisor at that address; otherwise: the error for another signer.
  Result<void> prove_peer(const Envelope&, const nlohmann::json& sealed, const std::string& address,
                          const std::string& otherwise, Id actor = 0);
  Result<void> may_send(Id context);  // actor_
  void note_refused(const Envelope&, const std::string& why);
  Result<std::uint64_t> now_s();
  Result<void> check_node(const std::string& address, bool may_come_otherwise) const;

  Store& store_;
  KnownKeys& known_;
  std::string own_key_;
  CarriedFiles files_;
  std::string node_;  // that the request comes from
  MessageGate* gate_ = nullptr;
  std::string proven_;
  bool is_strange_ = false, is_repeated_ = false;
  // Of what is being checked: whether somebody known here has signed it, and which actor; the list that would allow it.
  bool by_known_ = false;
  Id actor_ = 0;
  std::string list_;
};

}  // namespace mycojobs
