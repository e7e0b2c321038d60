// Receives the envelopes that remote supervisors send (messaging/envelope.h): messages for local contexts, answers to
// messages of this supervisor, log lines, files, and requests to cancel. All checks are made on entry, before anything
// is stored: those of message_checks.h, the seal of the envelope, and the equality with the first copy of a repeated
// message. Not thread-safe; each thread has an object of its own.
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
#include "messaging/peer_keys.h"
#include "store/store.h"

namespace mycojobs {

// Field of the state of a message: the answer as JSON, which the router (router.h) reads. Only messages that carry a
// job of the router have this field.
inline constexpr const char* kRoutedAnswerField = "carried_answer";

class MessageReceiver {
 public:
  // own_key is the public key of this coordinator. The store and the cache must outlive this object.
  MessageReceiver(Store& store, PublicKeyCache& key_cache, std::string own_key, MessageAttachments files)
      : store_(store), key_cache_(key_cache), own_key_(std::move(own_key)), files_(std::move(files)) {}

  // Sets a filter for requests from remote hosts. The filter must outlive this object.
  void set_filter(InboundMessageFilter& filter) { filter_ = &filter; }
  // Processes a JSON-RPC request and returns the answer. The only method is message.deliver {envelope}. Refusals are
  // journaled. `node` is the public key of the Mycelium node that delivered the request, or empty if another transport
  // did.
  std::string handle_request(std::string_view request, const std::string& node = {});
  // Returns the public key that signed the last request, if the request proves that a known sender has just sent it.
  // Returns an empty text otherwise, also for a repeated message, since any host that has seen a message can repeat it.
  const std::string& verified_sender() const { return verified_sender_; }
  // Returns whether the last request does not prove a known sender: it was refused without a signature of a known actor
  // or supervisor, or it repeated a stored message, which every host that has seen the message can do.
  bool is_unknown_sender() const { return is_unknown_sender_; }

 private:
  Result<nlohmann::json> deliver(const nlohmann::json& params);
  Result<nlohmann::json> accept_envelope(const Envelope&, const nlohmann::json& sealed_envelope);
  Result<nlohmann::json> accept_inbound_message(const Envelope&, const nlohmann::json& sealed_envelope);
  Result<nlohmann::json> accept_answer(const Envelope&, const nlohmann::json& sealed_envelope);
  Result<nlohmann::json> accept_logs(const Envelope&, const nlohmann::json& sealed_envelope);
  Result<nlohmann::json> accept_cancel(const Envelope&, const nlohmann::json& sealed_envelope);
  Result<nlohmann::json> accept_file(const Envelope&, const nlohmann::json& sealed_envelope);
  Result<std::optional<RequestedFile>> find_missing_file(const Envelope&, const Message&, const MessageRef&);
  Result<std::optional<RequestedFile>> find_missing_file(const Envelope&, const MessageRef&,
                                                         const nlohmann::json& jobs);
  Result<std::unique_ptr<ArtifactStore::RetainedFiles>> retain_files(const Envelope&, const MessageRef&,
                                                                     const nlohmann::json& jobs);
  struct ReceivedMessage {
    std::string key;
    Fields state;
  };
  Result<std::optional<ReceivedMessage>> find_received(Id context, const std::string& message_hash);
  Result<Arrival> store_message(Id context, Message&, const MessageState&);
  struct SentMessage {
    std::string key;
    MessageRef ref;
    Fields state;
  };
  // Returns the sent message that an answer, file or log line belongs to. Checks that the receiver of that message
  // sealed the envelope.
  Result<SentMessage> find_sent_message(const Envelope&, const nlohmann::json& sealed_envelope);
  // Checks that the supervisor with this address sealed the envelope. mismatch_error is the error text for another
  // signer. `actor` is reported in the journal.
  Result<void> verify_peer(const Envelope&, const nlohmann::json& sealed_envelope, const std::string& address,
                           const std::string& mismatch_error, Id actor = 0);
  Result<void> check_send_permission(Id context);  // Checks that actor_ may send messages to the context.
  void record_refusal(const Envelope&, const std::string& reason);
  Result<std::uint64_t> read_time_s();

  Store& store_;
  PublicKeyCache& key_cache_;
  std::string own_key_;
  MessageAttachments files_;
  std::string node_;  // Mycelium node that delivered the request
  InboundMessageFilter* filter_ = nullptr;
  std::string verified_sender_;
  bool is_unknown_sender_ = false, is_repeated_message_ = false;
  // State of the current request.
  bool is_known_peer_ = false;        // whether a known key signed the request
  Id actor_ = 0;                      // the actor that the record of a refusal names; 0 if unknown
  std::string required_access_list_;  // after a refusal: the access list that must contain the actor
};

}  // namespace mycojobs
