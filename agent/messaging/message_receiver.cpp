#include "messaging/message_receiver.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "base/parse.h"
#include "messaging/message_checks.h"
#include "messaging/message_codec.h"
#include "messaging/transport/transport.h"
#include "model/codec.h"
#include "net/json_rpc_client.h"
#include "security/rights.h"
#include "security/sender_check.h"
#include "store/acl_context.h"
#include "store/keys.h"
#include "store/redis/format_version.h"
#include "text/json.h"
#include "text/plural.h"
#include "text/split.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

using nlohmann::json;

constexpr std::uint64_t kUnlimitedBytes = std::numeric_limits<std::uint64_t>::max();

// Returns whether the key signed the message, regardless of the message's age.
bool is_signed_by(const Message& message, const std::string& pubkey) {
  return check_signature(message, {pubkey, message.created_at}).has_value();
}

// Returns whether the message in this state has a job with this key.
bool lists_job(const Fields& state, const std::string& job_key) {
  if (job_key.empty() || job_key.find(' ') != std::string::npos) return false;  // a text with a space is not a key
  const std::string all = ' ' + std::string(field_of(state, "jobs")) + ' ';
  return all.find(' ' + job_key + ' ') != std::string::npos;
}

}  // namespace

std::string MessageReceiver::handle_request(std::string_view request, const std::string& node) {
  node_ = node;
  verified_sender_.clear();
  is_known_peer_ = false;
  is_unknown_sender_ = true;
  is_repeated_message_ = false;
  actor_ = 0;
  required_access_list_.clear();
  return answer_rpc(request, kMaxRequestBytes, [this](std::string_view method, const json& params) -> Result<json> {
    if (method != "message.deliver")
      return fail(Code::invalid, "method: only message.deliver is served, not " + excerpt(method));
    return deliver(params);
  });
}

Result<std::uint64_t> MessageReceiver::read_time_s() {
  MJ_TRY(now_ms, make_retriable(store_.now_ms()));
  return now_ms / 1000;
}

namespace {

// Returns the label of an error in the metric of deliveries.
std::string_view result_label(const Error& error) { return error.code == Code::unavailable ? "later" : "refused"; }

}  // namespace

Result<json> MessageReceiver::accept_envelope(const Envelope& envelope, const json& sealed_envelope) {
  switch (envelope.kind) {
    case EnvelopeKind::message:
      return accept_inbound_message(envelope, sealed_envelope);
    case EnvelopeKind::answer:
      return accept_answer(envelope, sealed_envelope);
    case EnvelopeKind::logs:
      return accept_logs(envelope, sealed_envelope);
    case EnvelopeKind::cancel:
      return accept_cancel(envelope, sealed_envelope);
    case EnvelopeKind::file:
      return accept_file(envelope, sealed_envelope);
  }
  return fail(Code::internal, "the envelope has no kind");
}

Result<json> MessageReceiver::deliver(const json& params) {
  if (!params.is_object() || !params.contains("envelope")) return fail(Code::invalid, "envelope: is missing");
  const json& sealed_envelope = params["envelope"];
  MJ_TRY(envelope, parse_envelope(sealed_envelope));
  if (filter_ != nullptr) {
    auto accepted = filter_->check(store_, envelope.context);
    if (!accepted) {
      filter_->count_request(0, to_string(envelope.kind), result_label(accepted.error()));
      return tl::unexpected<Error>(std::move(accepted).error());
    }
  }
  auto result = accept_envelope(envelope, sealed_envelope);
  is_unknown_sender_ = is_repeated_message_ || (!result && !is_known_peer_);
  if (filter_ != nullptr)
    filter_->count_request(envelope.context, to_string(envelope.kind), result ? "ok" : result_label(result.error()));
  if (result) return result;
  verified_sender_.clear();
  const std::string reason = truncate_utf8(describe_to_client(result.error()), kMaxReasonBytes);
  if (result.error().code != Code::unavailable) record_refusal(envelope, reason);
  return fail(result.error().code, reason);
}

namespace {

// Returns the state of a received message. address: the supervisor that receives the answer.
MessageState make_message_state(const Message& message, const std::string& message_hash, const std::string& address) {
  const std::uint64_t expiry_s = std::uint64_t{message.created_at} + std::max(kSignatureWindowS, message.timeout);
  MessageState state{message_hash,
                     {{"origin", std::to_string(message.caller_id) + ':' + std::to_string(message.id)},
                      {"from", std::to_string(message.context_id)},
                      {"address", address},
                      {"signer", message.signer},
                      {"answer", std::string(kAnswerStateWanted)},
                      {"fresh_until", std::to_string((expiry_s + kSignatureWindowS) * 1000)}}};
  if (message.stream_logs) state.extra_fields.emplace_back("stream", "1");
  return state;
}

}  // namespace

// Stores the message under the id that its sender chose. If another message has that id here, derives the id from the
// hash of the content.
Result<Arrival> MessageReceiver::store_message(Id context, Message& message, const MessageState& state) {
  Arrival arrival = Arrival::key_in_use;
  for (std::size_t hash_offset = 0; arrival == Arrival::key_in_use && hash_offset + 8 <= state.content_hash.size();
       hash_offset += 8) {
    MessageState stored_state = state;
    MJ_TRY(stored, content_hash(message));
    stored_state.extra_fields.emplace_back("stored", std::move(stored));
    MJ_TRY(result, store_.receive_message(context, redis_key(message), stored_state, encode(message)));
    arrival = result;
    if (arrival == Arrival::key_in_use)
      message.id = std::max<Id>(1, static_cast<Id>(std::stoul(state.content_hash.substr(hash_offset, 8), nullptr, 16)));
  }
  return arrival;
}

// Returns the received message whose content_hash() is message_hash, if there is one.
Result<std::optional<MessageReceiver::ReceivedMessage>> MessageReceiver::find_received(
    Id context, const std::string& message_hash) {
  const std::string_view fields[] = {message_hash};
  auto index = make_retriable(store_.load_fields(context, kReceivedKey, fields));
  if (!index && index.error().code == Code::unavailable) return tl::unexpected<Error>(std::move(index).error());
  const std::string key(index ? field_of(*index, message_hash) : "");
  if (key.empty()) return std::optional<ReceivedMessage>();
  auto state = make_retriable(store_.load(context, message_state_key(key)));
  if (!state && state.error().code == Code::unavailable) return tl::unexpected<Error>(std::move(state).error());
  if (!state || field_of(*state, "content") != message_hash) return std::optional<ReceivedMessage>();
  return std::optional(ReceivedMessage{key, std::move(*state)});
}

void MessageReceiver::record_refusal(const Envelope& envelope, const std::string& reason) {
  constexpr std::size_t kMaxRefusalBytes = 1000;
  const std::uint64_t count = filter_ != nullptr ? filter_->record_refusal(envelope.context, is_known_peer_) : 1;
  if (count == 0) return;
  std::string note = std::string(to_string(envelope.kind)) + " from elsewhere";
  if (count > 1) note = count_with_noun(count, "refusal") + " since the last record, the latest: " + note;
  note += ": " + std::string(whole_characters(reason, kMaxRefusalBytes));
  log(LogLevel::warn, "supervisor", "context {}: refused: {}", envelope.context, note);
  // A note for a context without a record would let unknown peers fill its database.
  auto acl_context =
      is_known_peer_ ? Result<AclContext>() : read_acl_context(store_, envelope.context, EntryPoint::rpc);
  if (!is_known_peer_ && (!acl_context || !acl_context->record)) return;
  if (auto recorded = store_.record_refusal(envelope.context, {0, 0, actor_, "deliver", note, required_access_list_});
      !recorded)
    log(LogLevel::warn, "supervisor", "context {}: a refusal was not recorded: {}", envelope.context,
        recorded.error().message);
}

Result<void> MessageReceiver::check_send_permission(Id context) {
  MJ_TRY(acl_context, make_retriable(read_acl_context(store_, context, EntryPoint::rpc)));
  const auto refusal = find_send_refusal(actor_, acl_context);
  if (!refusal) return {};
  required_access_list_ = refusal->list;
  return tl::unexpected<Error>(make_refusal_error(*refusal));
}

namespace {

// Returns the answer to an accepted message. key: record key of the message on this host.
json make_stored_answer(const char* status, Id context, const std::string& key) {
  return {{"status", status}, {"id", std::to_string(context) + ' ' + key}};
}

}  // namespace

Result<json> MessageReceiver::accept_inbound_message(const Envelope& envelope, const json& sealed_envelope) {
  MJ_TRY(message, parse_signed_message(sealed_envelope["body"], envelope.context));
  MJ_TRY(message_hash, content_hash(message));
  MJ_TRY(received, find_received(envelope.context, message_hash));
  // Age and permissions of a stored message are not checked again. Otherwise the sender would get a refusal for a
  // message that was accepted.
  if (received && field_of(received->state, "signer") == message.signer && is_signed_by(message, message.signer)) {
    is_repeated_message_ = true;
    return make_stored_answer("known", envelope.context, received->key);
  }
  MJ_TRY(now, read_time_s());
  MJ_TRY(actor, key_cache_.actors.find(store_, message.signer, now));
  MJ_CHECK(check_message(message, actor, now));
  is_known_peer_ = true;
  actor_ = actor.id;
  MJ_CHECK(check_send_permission(envelope.context));
  // Only this coordinator may use its own key as signer of an envelope.
  if (envelope.signer == own_key_) MJ_CHECK(check_seal(sealed_envelope, {own_key_, now}));
  MJ_CHECK(check_target(message, envelope.signer, own_key_));
  const bool is_local = message.target_address.empty();
  if (!is_local && actor.address.empty())
    return fail(Code::denied, "actor " + std::to_string(actor.id) +
                                  " has no address on this host for answers; set one: mycojobs actor update " +
                                  std::to_string(actor.id) + " --address http://HOST:PORT");
  // The signature proves the origin of the message, regardless of the host that delivers it. However, a Mycelium node
  // other than that of the sender is refused.
  if (!is_local) MJ_CHECK(check_node(actor.address.front(), node_, true));
  MJ_TRY(missing, find_missing_file(envelope, message, {message.caller_id, message.id, message_hash}));
  if (missing) return to_json(*missing);

  const MessageState state = make_message_state(message, message_hash, is_local ? "" : actor.address.front());
  MJ_CHECK(fill_and_check_sender(message, {message.caller_id, message.context_id}));
  message.unknown = {{"origin_caller", std::to_string(message.caller_id)},
                     {"origin_context", std::to_string(message.context_id)}};
  message.caller_id = actor.id;
  message.context_id = envelope.context;
  message.status = MessageStatus::dispatched;
  message.transport_status = "delivered";
  MJ_TRY(arrival, make_retriable(store_message(envelope.context, message, state)));
  if (arrival == Arrival::content_conflict || arrival == Arrival::key_in_use)
    return fail(Code::conflict, "id: " + redis_key(message) +
                                    " exists on this host with other content: send the message with another id");
  if (arrival == Arrival::inbox_full)
    return fail(Code::unavailable, "messages arrive faster than they are processed: try again later");
  if (arrival == Arrival::sender_limit_reached)
    return fail(Code::unavailable, "messages of actor " + std::to_string(actor.id) +
                                       " arrive faster than they are processed, and a sender can use at most a tenth "
                                       "of the queue: try again later");
  // A repeated message proves nothing about the peer, since any host that has seen it can repeat it.
  if (arrival == Arrival::stored && check_seal(sealed_envelope, {envelope.signer, now}))
    verified_sender_ = message.signer;
  return make_stored_answer(arrival == Arrival::stored ? "stored" : "known", envelope.context, redis_key(message));
}

Result<std::optional<RequestedFile>> MessageReceiver::find_missing_file(const Envelope& envelope,
                                                                        const Message& message, const MessageRef& ref) {
  MJ_TRY(files, find_dependency_files(message));
  const std::uint64_t bytes = sum_bytes(files);
  const bool has_files =
      std::any_of(files.begin(), files.end(), [](const JobFiles& entry) { return !entry.files.empty(); });
  if (!has_files) return std::optional<RequestedFile>();
  if (!files_.store) return fail(Code::invalid, "given: this coordinator has no state_dir for files; set state_dir");
  if (bytes > files_.max_bytes)
    return fail(Code::too_large, "given: the jobs of the message bring artifacts of " + std::to_string(bytes) +
                                     " bytes; " + kMessageFilesSetting + " is " + std::to_string(files_.max_bytes) +
                                     " there");
  return mycojobs::find_missing_file(*files_.store, store_, envelope.context, message_bundle_id(ref, message.signer),
                                     files);
}

Result<std::optional<RequestedFile>> MessageReceiver::find_missing_file(const Envelope& envelope, const MessageRef& ref,
                                                                        const json& jobs) {
  if (!files_.store) return std::optional<RequestedFile>();
  return mycojobs::find_missing_file(*files_.store, store_, envelope.context, answer_bundle_id(ref, envelope.signer),
                                     find_answer_files(jobs));
}

Result<std::unique_ptr<ArtifactStore::RetainedFiles>> MessageReceiver::retain_files(const Envelope& envelope,
                                                                                    const MessageRef& ref,
                                                                                    const json& jobs) {
  std::vector<JobFiles> job_files = find_answer_files(jobs);
  std::erase_if(job_files, [](const JobFiles& entry) { return entry.files.empty(); });
  if (job_files.empty() || !files_.store) return std::unique_ptr<ArtifactStore::RetainedFiles>();
  return files_.store->retain_files(store_, envelope.context, answer_bundle_id(ref, envelope.signer), job_files);
}

// Stores a piece of a file that was requested before. The space was reserved with the request.
Result<json> MessageReceiver::accept_file(const Envelope& envelope, const json& sealed_envelope) {
  const json& body = sealed_envelope["body"];
  MJ_TRY(ref, parse_message_ref(body.value("of", json())));
  MJ_TRY(piece, parse_piece(body));
  const bool is_message_file = body.contains("by");
  if (is_message_file) {
    if (!body["by"].is_string()) return fail(Code::invalid, "by: is not a key");
    MJ_TRY(now, read_time_s());
    MJ_TRY(actor, key_cache_.actors.find(store_, body["by"].get<std::string>(), now));
    if (envelope.signer != own_key_ && actor.address.empty())
      return fail(Code::denied, "by: actor " + std::to_string(actor.id) + " has no address on this host");
    const std::string address = envelope.signer == own_key_ ? "" : actor.address.front();
    MJ_CHECK(
        verify_peer(envelope, sealed_envelope, address, "is not the supervisor that receives the answer", actor.id));
  } else {
    MJ_CHECK(find_sent_message(envelope, sealed_envelope));
  }
  if (!files_.store) return fail(Code::not_found, "sha256: this coordinator has no state_dir and accepts no files");
  // A larger file was never requested, so no space was reserved for it.
  if (piece.file.bytes > files_.max_bytes)
    return fail(Code::too_large, "bytes: " + std::to_string(piece.file.bytes) +
                                     " are more than the limit for the files of a message; " + kMessageFilesSetting +
                                     " is " + std::to_string(files_.max_bytes) + " there");
  const InboundBundleId bundle =
      is_message_file ? message_bundle_id(ref, body["by"].get<std::string>()) : answer_bundle_id(ref, envelope.signer);
  MJ_TRY(have, files_.store->add_piece(envelope.context, bundle, piece.file, piece.offset, piece.bytes));
  return json{{"have", have}};
}

// Checks the seal against the current record of the supervisor with this address, and the node that delivered the
// request.
Result<void> MessageReceiver::verify_peer(const Envelope& envelope, const json& sealed_envelope,
                                          const std::string& address, const std::string& mismatch_error, Id actor) {
  MJ_TRY(peer, address.empty() ? own_key_ : key_cache_.supervisors.find(store_, envelope.context, address));
  if (envelope.signer != peer) return fail(Code::denied, "signer: " + mismatch_error);
  MJ_TRY(now, read_time_s());
  MJ_CHECK(check_seal(sealed_envelope, {peer, now}));
  is_known_peer_ = true;
  actor_ = actor;
  MJ_CHECK(check_node(address, node_, false));
  verified_sender_ = peer;
  return {};
}

Result<MessageReceiver::SentMessage> MessageReceiver::find_sent_message(const Envelope& envelope,
                                                                        const json& sealed_envelope) {
  SentMessage sent_message;
  MJ_TRY(ref, parse_message_ref(sealed_envelope["body"].value("of", json())));
  sent_message.ref = std::move(ref);
  Message message;
  message.caller_id = sent_message.ref.caller;
  message.id = sent_message.ref.id;
  sent_message.key = redis_key(message);
  auto state = make_retriable(store_.load(envelope.context, message_state_key(sent_message.key)));
  if (!state && state.error().code == Code::unavailable) return tl::unexpected<Error>(std::move(state).error());
  const std::string_view status = state ? field_of(*state, "state") : "";
  if ((status != kMessageStateAway && status != kMessageStateOver) ||
      field_of(*state, "content") != sent_message.ref.content)
    return fail(Code::not_found, "of: no such message was sent from this host");
  sent_message.state = std::move(*state);
  // The current record of the peer is used, so that a changed key is accepted and a removed key is refused.
  MJ_CHECK(verify_peer(envelope, sealed_envelope, std::string(field_of(sent_message.state, "address")),
                       envelope.signer + " is not the coordinator to which " + sent_message.key + " was sent"));
  return sent_message;
}

Result<json> MessageReceiver::accept_answer(const Envelope& envelope, const json& sealed_envelope) {
  MJ_TRY(sent_message, find_sent_message(envelope, sealed_envelope));
  MJ_TRY(jobs, parse_answer_jobs(sealed_envelope["body"], files_.max_bytes,
                                 files_.store ? files_.store->sender_limit() : kUnlimitedBytes));
  MJ_TRY(body, parse_answer(sealed_envelope["body"], jobs));
  for (std::size_t i = 0; i < body.jobs.size(); ++i) {
    if (!lists_job(sent_message.state, body.jobs[i].job_key))
      return fail(Code::denied, "jobs[" + std::to_string(i) + "].key: " + excerpt(body.jobs[i].job_key) +
                                    " is not a job of " + sent_message.key);
  }
  AnswerMessage answer{
      sent_message.key, sent_message.ref.content, body.reason, {}, std::move(body.jobs), body.is_last, ""};
  if (!field_of(sent_message.state, "carried").empty()) answer.router_answer = dump_json(jobs);
  if (!body.flow.empty()) answer.fields.emplace_back(kFlowResultField, body.flow);
  std::unique_ptr<ArtifactStore::RetainedFiles> retained;  // protects the files until the records of the jobs name them
  if (field_of(sent_message.state, "state") == kMessageStateAway) {
    MJ_TRY(missing, find_missing_file(envelope, sent_message.ref, jobs));
    if (missing) return to_json(*missing);
    MJ_TRY(files, retain_files(envelope, sent_message.ref, jobs));
    retained = std::move(files);
    if (retained) answer.files_holder = retained->holder();
  }
  MJ_TRY(is_known, make_retriable(store_.answer_message(envelope.context, answer)));
  if (!is_known) return fail(Code::not_found, "of: no such message was sent from this host");
  // The files of this part are removed, since the next part of the answer needs the space.
  const bool is_part_done = retained != nullptr || answer.is_last;
  if (files_.store && is_part_done)
    files_.store->remove_bundle(envelope.context, answer_bundle_id(sent_message.ref, envelope.signer));
  return json{{"status", "stored"}};
}

Result<json> MessageReceiver::accept_logs(const Envelope& envelope, const json& sealed_envelope) {
  MJ_TRY(sent_message, find_sent_message(envelope, sealed_envelope));
  MJ_TRY(body, parse_logs(sealed_envelope["body"]));
  if (!lists_job(sent_message.state, body.job_key))
    return fail(Code::denied, "job: is not a job of " + sent_message.key);
  auto stored =
      store_.append_remote_log(envelope.context, sent_message.key, sent_message.ref.content, body.job_key, body.lines);
  // A key of another client has replaced the log. The lines are dropped, so that they do not block the end of the job.
  const bool is_log_replaced = !stored && stored.error().code == Code::invalid;
  MJ_TRY(last, is_log_replaced ? std::move(stored) : make_retriable(std::move(stored)));
  return json{{"last", last}};
}

// Only the supervisor that receives the answer may cancel.
Result<json> MessageReceiver::accept_cancel(const Envelope& envelope, const json& sealed_envelope) {
  MJ_TRY(body, parse_cancel(sealed_envelope["body"]));
  // The message is found by its signer at the time of the signature, since the actor may have another key by now.
  MJ_TRY(received, find_received(envelope.context, body.message.content));
  const std::string origin = std::to_string(body.message.caller) + ':' + std::to_string(body.message.id);
  if (!received || field_of(received->state, "origin") != origin ||
      field_of(received->state, "signer") != body.signer_key)
    return fail(Code::not_found, "of: no such message was received on this host");
  const Fields& state = received->state;
  MJ_CHECK(verify_peer(
      envelope, sealed_envelope, std::string(field_of(state, "address")),
      "is not the supervisor that receives the answer, by the record of a runner with that address on this host"));
  if (field_of(state, "state") == kMessageStateArrived)
    return fail(Code::unavailable, "of: the message has not been processed yet: try again in a second");
  // The supervisor daemon of this context cancels the flow.
  if (body.includes_flow && !field_of(state, "flow").empty())
    MJ_CHECK(make_retriable(store_.cancel_message(envelope.context, received->key)));
  const auto local_keys = split_words(field_of(state, "jobs")), remote_keys = split_words(field_of(state, "origins"));
  for (const std::string& job_key : body.jobs) {
    const auto position = std::find(remote_keys.begin(), remote_keys.end(), job_key);
    if (position == remote_keys.end()) continue;
    const std::size_t index = static_cast<std::size_t>(position - remote_keys.begin());
    if (index >= local_keys.size()) continue;
    auto result = store_.cancel(envelope.context, local_keys[index]);
    if (!result && result.error().code != Code::not_found)
      return make_retriable<json>(tl::unexpected<Error>(std::move(result).error()));
  }
  return json{{"status", "asked"}};
}

}  // namespace mycojobs
