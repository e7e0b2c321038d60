// Receives the envelopes that remote supervisors send (messaging/envelope.h): messages for local contexts, answers to
// messages that were sent from here, log lines, files, and requests to cancel. All checks are made here, on entry:
// format, size, signature, permissions, age, and equality with the first copy of a repeated message. Not thread-safe;
// each thread has an object of its own.
//
//   message --all checks passed--> stored in msg_in and acknowledged; message_loop.h processes it
//   answer  --from the supervisor that the message was sent to--> ends the jobs of the message, then the message
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

#include "messaging/envelope.h"
#include "messaging/inbound_filter.h"
#include "messaging/message_artifacts.h"
#include "messaging/message_codec.h"
#include "store/store.h"

namespace mycojobs {

// Longest time-out of a message, and validity of its signature.
inline constexpr std::uint32_t kMaxDeliverS = 7 * 24 * 3600;
// Field of a message's mark with the answer, as JSON. It is written for a message that carries a job for the router
// (router.h).
inline constexpr const char* kCarriedAnswer = "carried_answer";

// Finds the actor with a public key. The records in the store are authoritative.
class ActorKeys {
 public:
  // Returns the actor with this key. Errors: denied (no actor or several actors have the key); unavailable (the store
  // did not answer, or the key is unknown and the records have not been scanned since the first request for it, since
  // another client may have written an actor's record in between).
  Result<Actor> find(Store&, const std::string& pubkey, std::uint64_t now_s);

 private:
  std::map<std::string, std::uint64_t> asked_;  // unknown keys, with the time of the first request in s
};

// Checks the signature and the age of a message against the record of its signer. The signature is valid for the
// time-out of the message or kSignatureWindowS, whichever is longer. Errors: invalid (the time-out is over
// kMaxDeliverS); denied (as check_signature()).
Result<void> check_message(const Message&, const Actor& signer, std::uint64_t now_s);

// Returns the public key of the supervisor with this address, from the record of a runner of the context. Returns
// own_key for an empty address. Error denied: no runner has this address and a key; the message names the command that
// creates one.
Result<std::string> supervisor_key(RecordStore&, Id context, const std::string& address, const std::string& own_key);

// Same as supervisor_key(), with a cache of the runner's record key, so that not all records are scanned for each
// message. The record is read again for each call. Not thread-safe.
class SupervisorKeys {
 public:
  Result<std::string> find(RecordStore&, Id context, const std::string& address);

 private:
  std::map<std::pair<Id, std::string>, std::string> runners_;  // keys of runner records, by context and address
};

// Caches that outlive a receiver.
struct PublicKeyCache {
  ActorKeys actors;
  SupervisorKeys supervisors;
};

class MessageReceiver {
 public:
  // own_key: public key of this coordinator. Store and known must outlive this object.
  MessageReceiver(Store& store, PublicKeyCache& known, std::string own_key, MessageAttachments files)
      : store_(store), known_(known), own_key_(std::move(own_key)), files_(std::move(files)) {}

  // Sets the gate that requests from remote hosts must pass first. It must outlive this object.
  void set_filter(InboundMessageFilter& gate) { gate_ = &gate; }
  // Processes a JSON-RPC request and returns the answer. The only method is message.deliver {envelope}. Refusals are
  // journaled. node: public key of the Mycelium node that delivered the request; empty: another transport delivered it.
  std::string answer(std::string_view request, const std::string& node = {});
  // Returns the public key that signed the last request, if the request proves that a known sender sent it just now.
  // Empty otherwise, also for a repeated message, since any host that has seen a message can repeat it.
  const std::string& verified_sender() const { return proven_; }
  // Returns whether the last request shows no known sender: it was refused without a signature of a known actor or
  // supervisor, or it repeated a message that is here already, which every host that has seen the message can do.
  bool is_unknown_sender() const { return is_unknown_; }

 private:
  Result<nlohmann::json> deliver(const nlohmann::json& params);
  Result<nlohmann::json> accept_envelope(const Envelope&, const nlohmann::json& sealed);
  Result<nlohmann::json> accept_inbound_message(const Envelope&, const nlohmann::json& sealed);
  Result<void> check_target(const Envelope&, const Message&) const;
  Result<nlohmann::json> accept_answer(const Envelope&, const nlohmann::json& sealed);
  Result<nlohmann::json> accept_logs(const Envelope&, const nlohmann::json& sealed);
  Result<nlohmann::json> accept_cancel(const Envelope&, const nlohmann::json& sealed);
  Result<nlohmann::json> accept_file(const Envelope&, const nlohmann::json& sealed);
  Result<std::optional<RequestedFile>> missing_file(const Envelope&, const Message&, const MessageName&);
  Result<std::optional<RequestedFile>> missing_file(const Envelope&, const MessageName&, const nlohmann::json& jobs);
  Result<std::unique_ptr<ArtifactStore::RetainedFiles>> retain_files(const Envelope&, const MessageName&,
                                                                     const nlohmann::json& jobs);
  struct ReceivedMessage {
    std::string key;
    Fields mark;
  };
  Result<std::optional<ReceivedMessage>> find_received(Id context, const std::string& content);
  Result<Arrival> store_message(Id context, Message&, const MessageState&);
  struct SentMessage {
    std::string key;
    MessageName name;
    Fields mark;
  };
  // Returns the sent message that an answer, file or log line belongs to. Checks that the receiver of that message
  // sealed the envelope.
  Result<SentMessage> find_sent_message(const Envelope&, const nlohmann::json& sealed);
  // Checks that the supervisor with this address sealed the envelope. otherwise: error text for another signer. actor:
  // the actor to report in the journal.
  Result<void> verify_peer(const Envelope&, const nlohmann::json& sealed, const std::string& address,
                           const std::string& otherwise, Id actor = 0);
  Result<void> check_send_permission(Id context);  // Checks that actor_ may send messages to the context.
  void note_refused(const Envelope&, const std::string& why);
  Result<std::uint64_t> now_s();
  Result<void> check_node(const std::string& address, bool allows_other_transport) const;

  Store& store_;
  PublicKeyCache& known_;
  std::string own_key_;
  MessageAttachments files_;
  std::string node_;  // Mycelium node that delivered the request
  InboundMessageFilter* gate_ = nullptr;
  std::string proven_;
  bool is_unknown_ = false, is_repeated_ = false;
  // State of the current request: whether a known key signed it, the actor with that key, and the access list that
  // would allow it.
  bool by_known_ = false;
  Id actor_ = 0;
  std::string list_;
};

}  // namespace mycojobs
