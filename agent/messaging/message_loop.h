// The work of the supervisor daemon for one context, in steps (supervisor.h runs them on a pool). Only the supervisor
// daemon consumes msg_out and processes the messages that were received.
//
//   msg_out --> msg_out_coordinator --signature, permissions, address--> mj:outbox
//     --sent--> acknowledged by the receiver
//   mj:inbox --signature and permissions were checked on entry--> jobs in their queues, or a flow
//   end of a received message --> answer with the receipts of the jobs, sent back
//
// Each step is one server-side step of the store, so that another process continues after a crash. Outgoing requests
// are returned to the caller, which sends them and reports the results with complete(). Not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "flows/flow_run.h"
#include "jobs/job_limits.h"
#include "messaging/message_artifacts.h"
#include "messaging/message_receiver.h"
#include "security/rights.h"
#include "store/flow_store.h"
#include "store/store.h"

namespace mycojobs {

struct MessageSettings {
  Id context = 0;
  std::shared_ptr<const SigningKey> key;  // key of this coordinator
  bool has_public_key = false;            // whether remote hosts know the public key, so that messages can be exchanged
  std::uint64_t retention_ms = 0;         // retention of completed messages; 0 means unlimited
  MessageAttachments files = {};
  JobLimits limits = {};  // limits of the flows that messages start
};

// An outgoing request, with the changes of its outbox entry for each result.
struct OutboundRequest {
  OutboxEntry entry;
  std::string address;    // empty for a context of this host
  std::string request;    // JSON-RPC
  MailResult on_success;  // change of the entry after a response
  // Change of the entry after a permanent error. Without a value, the entry ends with that error.
  std::optional<MailResult> on_rejected = std::nullopt;
  // Set for a piece of a file: the requested file and the offset of this piece.
  std::optional<RequestedFile> file_request = std::nullopt;
  std::uint64_t file_bytes = 0;
  std::size_t files = 0;  // number of files that the receiver may request
};

class MessageLoop {
 public:
  // Store, flows and clock must outlive this object.
  MessageLoop(Store& store, FlowStore& flows, const Clock& clock, MessageSettings settings)
      : store_(store), flows_(flows), clock_(clock), settings_(std::move(settings)) {}

  struct Batch {
    std::vector<OutboundRequest> requests;
    std::uint64_t next_ms = 0;  // time until the next round is due if no event arrives before
  };
  // Returns 0 if the entry can be sent now, otherwise the time in ms until the entry is checked again.
  using SendDelay = std::function<std::uint64_t(const OutboxEntry&)>;
  // Runs one round and returns at most max_requests requests. A request without complete() is returned again after
  // kClaimTimeoutMs. Returns the error `unavailable` if the store did not answer.
  Result<Batch> run_round(std::uint32_t max_requests, const SendDelay& send_delay = nullptr);
  // Stores the result of a request. `answer` is the response, or the error of the transport.
  Result<void> complete(const OutboundRequest&, const Result<std::string>& answer);
  // Returns a request unsent. It is due again after `pause_ms`.
  Result<void> requeue_unsent(const OutboundRequest&, std::uint64_t pause_ms);

  static constexpr std::uint32_t kClaimTimeoutMs = 30000;  // longer than the time-out of a request

 private:
  Result<void> fail_entry(const OutboxEntry&, const Error&);
  Result<void> route_message(const std::string& message_key);
  Result<RouteMessage> route_request(const std::string& message_key, Message&);
  Result<void> process_inbound(const std::string& message_key);
  Result<void> process_inbound(const std::string& message_key, Message&, const Fields& state);
  Result<bool> must_wait_for_settings(const std::string& message_key, const Fields& state, const Error& reason);
  Result<Fields> accept_local_message(const std::string& message_key, const Message&);
  Result<std::vector<MessageJob>> assign_local_ids(Message&, AcceptMessage&);
  Result<Id> start_flow(const std::string& message_key, const Message&);
  Result<std::string> find_topic_queue(const std::string& topic);
  Result<std::optional<OutboundRequest>> make_request(const OutboxEntry&);
  Result<OutboundRequest> make_send_request(const OutboxEntry&);
  Result<OutboundRequest> make_file_request(const OutboxEntry&, const MessageRef&, const std::string& job_key,
                                            const FileContent&, const RequestedFile&, Id context);
  Result<std::optional<OutboundRequest>> make_answer_file_request(const OutboxEntry&, const MessageRef&);
  Result<std::string> add_artifacts(const OutboxEntry&, const std::string& job_key, const Job&,
                                    nlohmann::json& encoded_job);
  Result<std::unique_ptr<ArtifactStore::RetainedFiles>> retain_received_files(const Message&, const AcceptMessage&,
                                                                              const Fields& state);
  Result<void> cancel_flow(const OutboxEntry&);
  Result<OutboundRequest> make_cancel_request(const OutboxEntry&);
  Result<OutboundRequest> make_answer_request(const OutboxEntry&);
  Result<bool> can_send(const OutboxEntry&, const SendDelay&);
  Result<std::optional<OutboundRequest>> skip_log_lines(const OutboxEntry&, const Error& reason);
  Result<std::vector<Log>> read_final_lines(const OutboxEntry&, const std::string& job_key, std::uint64_t after_seq);
  Result<std::optional<OutboundRequest>> make_log_request(const OutboxEntry&);
  Result<nlohmann::json> collect_answer_jobs(const OutboxEntry&, std::size_t first, std::size_t& next);
  Result<OutboundRequest> seal_request(const OutboxEntry&, EnvelopeKind, const nlohmann::json& body,
                                       std::string address, Id context);
  Result<void> log_and_continue(const std::string& subject, Result<void> result) const;
  // Records that many messages of a round need. They are read once and again after kRecordCacheMs.
  struct RecordCache {
    std::uint64_t read_boot_ms = 0;
    std::optional<std::uint64_t> now_ms;    // time of the store
    std::optional<AclContext> acl_context;  // access control data of this context
    std::map<Id, Actor> actors;             // an actor without a record has only its id
  };
  static constexpr std::uint64_t kRecordCacheMs = 100;
  RecordCache& get_record_cache();
  Result<std::uint64_t> read_time_ms();
  Result<std::uint64_t> read_time_s();
  Result<AclContext> read_acl(EntryPoint);
  Result<Actor> find_actor(Id);

  Store& store_;
  FlowStore& flows_;
  const Clock& clock_;
  MessageSettings settings_;
  RunCache runs_{1000};
  RecordCache record_cache_;
  SupervisorKeys peers_;
  std::map<std::string, std::string, std::less<>> topics_;  // record key of the runner that served a topic last
  std::uint64_t next_retire_ms_ = 0;
  std::uint64_t last_round_ms_ = 0;  // clock of the store in the previous round
  bool clock_went_back_ = true;      // true at the start, since the clock may have gone back before
};

}  // namespace mycojobs
