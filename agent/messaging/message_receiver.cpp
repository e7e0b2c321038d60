#include "messaging/message_receiver.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "base/parse.h"
#include "messaging/message_codec.h"
#include "messaging/transport/transport.h"
#include "model/codec.h"
#include "net/json_rpc_client.h"
#include "net/mycelium_address.h"
#include "security/rights.h"
#include "security/sender_check.h"
#include "store/acl_context.h"
#include "text/json.h"
#include "text/plural.h"
#include "text/split.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxRunners = 10000;
constexpr std::uint64_t kAnyBytes = std::numeric_limits<std::uint64_t>::max();

std::string mark_key(const std::string& message_key) { return "mj:message:" + message_key; }

// Converts errors of the local store, except not_found, to `unavailable`, so that the peer tries again. The peer would
// take any other error as final.
template <class T>
Result<T> ours(Result<T> got) {
  if (got || got.error().code == Code::not_found || got.error().code == Code::unavailable) return got;
  return fail(Code::unavailable, "the store there: " + got.error().message);
}

// Returns whether the key signed the message, regardless of the message's age.
bool is_signed(const Message& message, const std::string& pubkey) {
  return check_signature(message, {pubkey, message.created_at}).has_value();
}

bool names(const Fields& mark, const std::string& job_key) {
  if (job_key.empty() || job_key.find(' ') != std::string::npos) return false;  // a key contains no space; two keys do
  const std::string all = ' ' + std::string(field_of(mark, "jobs")) + ' ';
  return all.find(' ' + job_key + ' ') != std::string::npos;
}

}  // namespace

Result<Actor> ActorKeys::find(Store& store, const std::string& pubkey, std::uint64_t now_s) {
  constexpr std::size_t kMaxRequested = 1000;
  if (!is_public_key(pubkey))
    return fail(Code::denied, "signer: " + excerpt(pubkey, 80) + " is not an ed25519 public key");
  MJ_TRY(owner, ours(store.owner_of_key(pubkey)));
  if (owner.actors == 1) {
    Actor actor = decode<Actor>(owner.record).record;
    actor.id = owner.id;
    return actor;
  }
  if (owner.actors > 1)
    return fail(
        Code::denied,
        "signer: more than one actor here has the key " + pubkey +
            ", so it identifies no actor; an operator can give one actor another key: mycojobs actor update --key");
  if (asked_.size() >= kMaxRequested) asked_.clear();
  const auto asked = asked_.try_emplace(pubkey, now_s).first;
  if (!owner.checked_now && owner.checked_ms / 1000 <= asked->second)
    return fail(Code::unavailable, "signer: is not known yet; try again in a second");
  asked_.erase(asked);
  return fail(Code::denied, "signer: no actor here has the key " + pubkey +
                                "; an operator can create an actor with it: mycojobs actor create --key");
}

Result<void> check_message(const Message& message, const Actor& signer, std::uint64_t now_s) {
  if (message.timeout > kMaxDeliverS)
    return fail(Code::invalid, "timeout: " + std::to_string(message.timeout) +
                                   " s is more than the limit for a message, " + std::to_string(kMaxDeliverS));
  SignatureCheck against{signer.pubkey, now_s, kSignatureWindowS};
  against.window_s = std::max(against.window_s, message.timeout);
  MJ_CHECK(check_signature(message, against));
  against.window_s = kSignatureWindowS;
  return message.created_at > now_s ? check_moment("created_at", message.created_at, against) : Result<void>();
}

namespace {

// Returns the public key of the runner, or an empty text if it has another address, no key, or no record.
Result<std::string> key_if_at(RecordStore& store, Id context, const std::string& runner, const std::string& address) {
  constexpr std::string_view kAsked[] = {"address", "pubkey"};
  auto fields = store.load_fields(context, runner, kAsked);
  const bool is_absent =  // absent, or a value of another client that is not a record
      !fields && (fields.error().code == Code::not_found || fields.error().code == Code::invalid);
  if (!fields && !is_absent) return ours<std::string>(tl::unexpected<Error>(std::move(fields).error()));
  const bool is_there = fields && field_of(*fields, "address") == address && is_public_key(field_of(*fields, "pubkey"));
  return std::string(is_there ? field_of(*fields, "pubkey") : "");
}

// Returns the record key and the public key of the runner with this address.
Result<std::pair<std::string, std::string>> search_supervisor(RecordStore& store, Id context,
                                                              const std::string& address) {
  MJ_TRY(keys, ours(store.keys(context, "runner:", kMaxRunners)));
  for (const std::string& runner : keys) {
    MJ_TRY(pubkey, key_if_at(store, context, runner, address));
    if (!pubkey.empty()) return std::pair(runner, pubkey);
  }
  return fail(Code::denied,
              "address: no runner of context " + std::to_string(context) + " has the address " + excerpt(address, 120) +
                  " and a key: register one with mycojobs runner create --address " + excerpt(address, 120) +
                  " --pubkey KEY, with the key that the coordinator there reports");
}

}  // namespace

Result<std::string> supervisor_key(RecordStore& store, Id context, const std::string& address,
                                   const std::string& own_key) {
  if (address.empty()) return own_key;
  MJ_TRY(found, search_supervisor(store, context, address));
  return std::move(found.second);
}

Result<std::string> SupervisorKeys::find(RecordStore& store, Id context, const std::string& address) {
  constexpr std::size_t kMaxKept = 10000;
  const std::pair name(context, address);
  if (const auto kept = runners_.find(name); kept != runners_.end()) {
    MJ_TRY(pubkey, key_if_at(store, context, kept->second, address));
    if (!pubkey.empty()) return pubkey;
    runners_.erase(kept);
  }
  MJ_TRY(found, search_supervisor(store, context, address));
  if (runners_.size() >= kMaxKept) runners_.clear();
  runners_[name] = found.first;
  return std::move(found.second);
}

std::string MessageReceiver::answer(std::string_view request, const std::string& node) {
  node_ = node;
  proven_.clear();
  by_known_ = false;
  is_unknown_ = true;
  is_repeated_ = false;
  actor_ = 0;
  list_.clear();
  return answer_rpc(request, kMaxRequestBytes, [this](std::string_view method, const json& params) -> Result<json> {
    if (method != "message.deliver")
      return fail(Code::invalid, "method: only message.deliver is served, not " + excerpt(method));
    return deliver(params);
  });
}

Result<std::uint64_t> MessageReceiver::now_s() {
  MJ_TRY(now_ms, ours(store_.now_ms()));
  return now_ms / 1000;
}

// The key of a node identifies the host, and the key of a coordinator identifies the sender. If an address contains
// both, both are checked.
Result<void> MessageReceiver::check_node(const std::string& address, bool allows_other_transport) const {
  const auto named = parse_mycelium(address);
  if (!named || named->key.empty() || named->key == node_ || (node_.empty() && allows_other_transport)) return {};
  return fail(Code::denied, "node: the message was received " +
                                (node_.empty() ? "not over Mycelium" : "from the node " + node_) +
                                ", but the record on this host names the node " + named->key);
}

namespace {

// Returns the label of an error in the metric of deliveries.
std::string_view result_word(const Error& error) { return error.code == Code::unavailable ? "later" : "refused"; }

}  // namespace

Result<json> MessageReceiver::accept_envelope(const Envelope& envelope, const json& sealed) {
  switch (envelope.kind) {
    case EnvelopeKind::message:
      return accept_inbound_message(envelope, sealed);
    case EnvelopeKind::answer:
      return accept_answer(envelope, sealed);
    case EnvelopeKind::logs:
      return accept_logs(envelope, sealed);
    case EnvelopeKind::cancel:
      return accept_cancel(envelope, sealed);
    case EnvelopeKind::file:
      return accept_file(envelope, sealed);
  }
  return fail(Code::internal, "the envelope has no kind");
}

Result<json> MessageReceiver::deliver(const json& params) {
  if (!params.is_object() || !params.contains("envelope")) return fail(Code::invalid, "envelope: is missing");
  const json& sealed = params["envelope"];
  MJ_TRY(envelope, read_envelope(sealed));
  if (gate_ != nullptr) {
    auto open = gate_->check(store_, envelope.context);
    if (!open) {
      gate_->count(0, to_string(envelope.kind), result_word(open.error()));
      return tl::unexpected<Error>(std::move(open).error());
    }
  }
  auto done = accept_envelope(envelope, sealed);
  is_unknown_ = is_repeated_ || (!done && !by_known_);
  if (gate_ != nullptr)
    gate_->count(envelope.context, to_string(envelope.kind), done ? "ok" : result_word(done.error()));
  if (done) return done;
  proven_.clear();
  const std::string why = cut(done.error().message, kMaxReasonBytes);
  if (done.error().code != Code::unavailable) note_refused(envelope, why);
  return fail(done.error().code, why);
}

namespace {

// Returns the mark of a received message. address: receives the answer.
MessageState mark_of(const Message& message, const std::string& content, const std::string& address) {
  const std::uint64_t fresh_s = std::uint64_t{message.created_at} + std::max(kSignatureWindowS, message.timeout);
  MessageState mark{content,
                    {{"origin", std::to_string(message.caller_id) + ':' + std::to_string(message.id)},
                     {"from", std::to_string(message.context_id)},
                     {"address", address},
                     {"signer", message.signer},
                     {"answer", "wanted"},
                     {"fresh_until", std::to_string((fresh_s + kSignatureWindowS) * 1000)}}};
  if (message.stream_logs) mark.more.emplace_back("stream", "1");
  return mark;
}

}  // namespace

// Stores the message under the id that its sender chose. If another message has that id here, derives the id from the
// hash of the content.
Result<Arrival> MessageReceiver::store_message(Id context, Message& message, const MessageState& mark) {
  Arrival arrival = Arrival::taken;
  for (std::size_t at = 0; arrival == Arrival::taken && at + 8 <= mark.content.size(); at += 8) {
    MessageState with = mark;
    MJ_TRY(stored, content_hash(message));
    with.more.emplace_back("stored", std::move(stored));
    MJ_TRY(done, store_.receive_message(context, redis_key(message), with, encode(message)));
    arrival = done;
    if (arrival == Arrival::taken)
      message.id = std::max<Id>(1, static_cast<Id>(std::stoul(mark.content.substr(at, 8), nullptr, 16)));
  }
  return arrival;
}

// Returns the received message with this content_hash(), if there is one.
Result<std::optional<MessageReceiver::ReceivedMessage>> MessageReceiver::find_received(Id context,
                                                                                       const std::string& content) {
  const std::string_view asked[] = {content};
  auto index = ours(store_.load_fields(context, "mj:came", asked));
  if (!index && index.error().code == Code::unavailable) return tl::unexpected<Error>(std::move(index).error());
  const std::string key(index ? field_of(*index, content) : "");
  if (key.empty()) return std::optional<ReceivedMessage>();
  auto mark = ours(store_.load(context, mark_key(key)));
  if (!mark && mark.error().code == Code::unavailable) return tl::unexpected<Error>(std::move(mark).error());
  if (!mark || field_of(*mark, "content") != content) return std::optional<ReceivedMessage>();
  return std::optional(ReceivedMessage{key, std::move(*mark)});
}

// A message that is signed for one host must not be accepted by another. A message without a target address is for a
// context on its sender's host, so only the local supervisor may deliver it.
Result<void> MessageReceiver::check_target(const Envelope& envelope, const Message& message) const {
  if (!message.target_address.empty()) {
    if (message.target_key == own_key_) return {};
    return fail(Code::denied, "target_key: it is signed for the coordinator " + excerpt(message.target_key, 80) +
                                  " at " + excerpt(message.target_address, 120) + ", and this one is " + own_key_ +
                                  ": correct the runner record at the sender and sign the message again");
  }
  if (envelope.signer == own_key_) return {};
  return fail(Code::denied, "target_address: is missing, so the message is signed for a context on the sender's host");
}

void MessageReceiver::note_refused(const Envelope& envelope, const std::string& why) {
  constexpr std::size_t kMaxRecordedRefusals = 1000;
  const std::uint64_t count = gate_ != nullptr ? gate_->refused(envelope.context, by_known_) : 1;
  if (count == 0) return;
  std::string what = std::string(to_string(envelope.kind)) + " from elsewhere";
  if (count > 1) what = count_with_noun(count, "refusal") + " since the last record, the latest: " + what;
  what += ": " + std::string(whole_characters(why, kMaxRecordedRefusals));
  log(LogLevel::warn, "supervisor", "context {}: refused: {}", envelope.context, what);
  // A note for a context without a record would let unknown peers fill its database.
  auto place = by_known_ ? Result<AclContext>() : read_acl_context(store_, envelope.context, EntryPoint::rpc);
  if (!by_known_ && (!place || !place->record)) return;
  if (auto noted = store_.record_refusal(envelope.context, {0, 0, actor_, "deliver", what, list_}); !noted)
    log(LogLevel::warn, "supervisor", "context {}: a refusal was not recorded: {}", envelope.context,
        noted.error().message);
}

Result<void> MessageReceiver::check_send_permission(Id context) {
  MJ_TRY(place, ours(read_acl_context(store_, context, EntryPoint::rpc)));
  const auto no = find_refusal(actor_, Action::create, place, {.name = "messages"});
  if (!no) return {};
  list_ = no->list;
  return tl::unexpected<Error>(refusal_error(*no));
}

namespace {

// Parses a message and checks its format, before any signature is checked.
Result<Message> read_message(const json& body, Id context) {
  if (!body.contains("message") || !body["message"].is_object()) return fail(Code::invalid, "message: is missing");
  auto decoded = decode_json<Message>(body["message"]);
  if (!decoded.ok()) return fail(Code::invalid, "message: " + join(decoded.problems));
  Message& message = decoded.record;
  message.unknown.clear();  // unknown fields are not part of the signature
  for (Job& job : message.job) job.unknown.clear();
  if (message.flow) message.flow->unknown.clear();
  if (message.id == 0 || message.caller_id == 0 || message.context_id == 0)
    return fail(Code::invalid, "message: id, caller_id or context_id is missing");
  if (message.job.size() > kMaxMessageJobs)
    return fail(Code::too_large,
                "job: a message carries at most " + std::to_string(kMaxMessageJobs) + " jobs; send a flow for more");
  if (message.target_context != context)
    return fail(Code::denied, "target_context: the message is signed for context " +
                                  std::to_string(message.target_context) + ", not for " + std::to_string(context));
  return std::move(message);
}

// key: record key of the message at this host
json stored_answer(const char* status, Id context, const std::string& key) {
  return {{"status", status}, {"id", std::to_string(context) + ' ' + key}};
}

}  // namespace

Result<json> MessageReceiver::accept_inbound_message(const Envelope& envelope, const json& sealed) {
  MJ_TRY(message, read_message(sealed["body"], envelope.context));
  MJ_TRY(content, content_hash(message));
  MJ_TRY(came, find_received(envelope.context, content));
  // Age and permissions of a stored message are not checked again. Otherwise the sender would get a refusal for a
  // message that was accepted.
  if (came && field_of(came->mark, "signer") == message.signer && is_signed(message, message.signer)) {
    is_repeated_ = true;
    return stored_answer("known", envelope.context, came->key);
  }
  MJ_TRY(now, now_s());
  MJ_TRY(actor, known_.actors.find(store_, message.signer, now));
  MJ_CHECK(check_message(message, actor, now));
  by_known_ = true;
  actor_ = actor.id;
  MJ_CHECK(check_send_permission(envelope.context));
  // Only this coordinator may use its own key as signer of an envelope.
  if (envelope.signer == own_key_) MJ_CHECK(check_seal(sealed, {own_key_, now}));
  MJ_CHECK(check_target(envelope, message));
  const bool is_local = message.target_address.empty();
  if (!is_local && actor.address.empty())
    return fail(Code::denied, "actor " + std::to_string(actor.id) +
                                  " has no address on this host for answers; set one: mycojobs actor update " +
                                  std::to_string(actor.id) + " --address http://HOST:PORT");
  // The signature proves the message, regardless of the host that delivers it. However, a Mycelium node other than the
  // sender's is refused.
  if (!is_local) MJ_CHECK(check_node(actor.address.front(), true));
  MJ_TRY(missing, missing_file(envelope, message, {message.caller_id, message.id, content}));
  if (missing) return to_json(*missing);

  const MessageState mark = mark_of(message, content, is_local ? "" : actor.address.front());
  MJ_CHECK(apply_sender(message, {message.caller_id, message.context_id}));
  message.unknown = {{"origin_caller", std::to_string(message.caller_id)},
                     {"origin_context", std::to_string(message.context_id)}};
  message.caller_id = actor.id;
  message.context_id = envelope.context;
  message.status = MessageStatus::dispatched;
  message.transport_status = "delivered";
  MJ_TRY(arrival, ours(store_message(envelope.context, message, mark)));
  if (arrival == Arrival::other || arrival == Arrival::taken)
    return fail(Code::conflict, "id: " + redis_key(message) +
                                    " exists on this host with other content: send the message with another id");
  if (arrival == Arrival::full)
    return fail(Code::unavailable, "messages arrive faster than they are processed: try again later");
  if (arrival == Arrival::sender_full)
    return fail(Code::unavailable, "messages of actor " + std::to_string(actor.id) +
                                       " arrive faster than they are processed, and a sender can use at most a tenth "
                                       "of the queue: try again later");
  // A repeated message proves nothing about the peer, since any host that has seen it can repeat it.
  if (arrival == Arrival::stored && check_seal(sealed, {envelope.signer, now})) proven_ = message.signer;
  return stored_answer(arrival == Arrival::stored ? "stored" : "known", envelope.context, redis_key(message));
}

Result<std::optional<RequestedFile>> MessageReceiver::missing_file(const Envelope& envelope, const Message& message,
                                                                   const MessageName& name) {
  MJ_TRY(files, files_of(message));
  const std::uint64_t bytes = bytes_of(files);
  const bool any = std::any_of(files.begin(), files.end(), [](const JobFileList& each) { return !each.files.empty(); });
  if (!any) return std::optional<RequestedFile>();
  if (!files_.store) return fail(Code::invalid, "given: this coordinator has no state_dir for files; set state_dir");
  if (bytes > files_.max_bytes)
    return fail(Code::too_large, "given: the jobs of the message bring artifacts of " + std::to_string(bytes) +
                                     " bytes; " + kCarriedLimit + " is " + std::to_string(files_.max_bytes) + " there");
  return first_missing(*files_.store, store_, envelope.context, message_bundle_id(name, message.signer), files);
}

Result<std::optional<RequestedFile>> MessageReceiver::missing_file(const Envelope& envelope, const MessageName& name,
                                                                   const json& jobs) {
  if (!files_.store) return std::optional<RequestedFile>();
  return first_missing(*files_.store, store_, envelope.context, answer_bundle_id(name, envelope.signer),
                       files_of_answer(jobs));
}

Result<std::unique_ptr<ArtifactStore::RetainedFiles>> MessageReceiver::retain_files(const Envelope& envelope,
                                                                                    const MessageName& name,
                                                                                    const json& jobs) {
  std::vector<ArtifactStore::ForJob> to;
  for (JobFileList& each : files_of_answer(jobs)) {
    if (!each.files.empty()) to.push_back({each.job_key, std::move(each.files)});
  }
  if (to.empty() || !files_.store) return std::unique_ptr<ArtifactStore::RetainedFiles>();
  return files_.store->retain_files(store_, envelope.context, answer_bundle_id(name, envelope.signer), to);
}

// Stores a piece of a file that was requested before. The space was reserved with the request.
Result<json> MessageReceiver::accept_file(const Envelope& envelope, const json& sealed) {
  const json& body = sealed["body"];
  MJ_TRY(name, read_message_name(body.value("of", json())));
  MJ_TRY(piece, read_piece(body));
  const bool is_of_message = body.contains("by");
  if (is_of_message) {
    if (!body["by"].is_string()) return fail(Code::invalid, "by: is not a key");
    MJ_TRY(now, now_s());
    MJ_TRY(actor, known_.actors.find(store_, body["by"].get<std::string>(), now));
    if (envelope.signer != own_key_ && actor.address.empty())
      return fail(Code::denied, "by: actor " + std::to_string(actor.id) + " has no address on this host");
    const std::string address = envelope.signer == own_key_ ? "" : actor.address.front();
    MJ_CHECK(verify_peer(envelope, sealed, address, "is not the supervisor that receives the answer", actor.id));
  } else {
    MJ_CHECK(find_sent_message(envelope, sealed));
  }
  if (!files_.store) return fail(Code::not_found, "sha256: this coordinator has no state_dir and accepts no files");
  // A larger file was never requested, so no space was reserved for it.
  if (piece.file.bytes > files_.max_bytes)
    return fail(Code::too_large, "bytes: " + std::to_string(piece.file.bytes) +
                                     " are more than the limit for the files of a message; " + kCarriedLimit + " is " +
                                     std::to_string(files_.max_bytes) + " there");
  const InboundBundleId bundle =
      is_of_message ? message_bundle_id(name, body["by"].get<std::string>()) : answer_bundle_id(name, envelope.signer);
  MJ_TRY(have, files_.store->add(envelope.context, bundle, piece.file, piece.offset, piece.bytes));
  return json{{"have", have}};
}

// Checks the seal against the current record of the supervisor with this address, and the node that delivered the
// request.
Result<void> MessageReceiver::verify_peer(const Envelope& envelope, const json& sealed, const std::string& address,
                                          const std::string& otherwise, Id actor) {
  MJ_TRY(peer, address.empty() ? own_key_ : known_.supervisors.find(store_, envelope.context, address));
  if (envelope.signer != peer) return fail(Code::denied, "signer: " + otherwise);
  MJ_TRY(now, now_s());
  MJ_CHECK(check_seal(sealed, {peer, now}));
  by_known_ = true;
  actor_ = actor;
  MJ_CHECK(check_node(address, false));
  proven_ = peer;
  return {};
}

Result<MessageReceiver::SentMessage> MessageReceiver::find_sent_message(const Envelope& envelope, const json& sealed) {
  SentMessage out;
  MJ_TRY(name, read_message_name(sealed["body"].value("of", json())));
  out.name = std::move(name);
  Message message;
  message.caller_id = out.name.caller;
  message.id = out.name.id;
  out.key = redis_key(message);
  auto mark = ours(store_.load(envelope.context, mark_key(out.key)));
  if (!mark && mark.error().code == Code::unavailable) return tl::unexpected<Error>(std::move(mark).error());
  const std::string_view state = mark ? field_of(*mark, "state") : "";
  if ((state != "away" && state != "over") || field_of(*mark, "content") != out.name.content)
    return fail(Code::not_found, "of: no such message was sent from this host");
  out.mark = std::move(*mark);
  // Uses the current record, so that a changed key is accepted and a removed key is refused.
  MJ_CHECK(verify_peer(envelope, sealed, std::string(field_of(out.mark, "address")),
                       envelope.signer + " is not the coordinator to which " + out.key + " was sent"));
  return out;
}

Result<json> MessageReceiver::accept_answer(const Envelope& envelope, const json& sealed) {
  MJ_TRY(of, find_sent_message(envelope, sealed));
  MJ_TRY(jobs, jobs_of_answer(sealed["body"], files_.max_bytes, files_.store ? files_.store->share() : kAnyBytes));
  MJ_TRY(body, read_answer(sealed["body"], jobs));
  for (std::size_t i = 0; i < body.jobs.size(); ++i) {
    if (!names(of.mark, body.jobs[i].job_key))
      return fail(Code::denied, "jobs[" + std::to_string(i) + "].key: " + excerpt(body.jobs[i].job_key) +
                                    " is not a job of " + of.key);
  }
  AnswerMessage answer{of.key, of.name.content, body.reason, {}, std::move(body.jobs), body.is_last, ""};
  if (!field_of(of.mark, "carried").empty()) answer.carried = dump_json(jobs);
  if (!body.flow.empty()) answer.fields.emplace_back(kFlowResultField, body.flow);
  std::unique_ptr<ArtifactStore::RetainedFiles> held;  // keeps the files until the records name them
  if (field_of(of.mark, "state") == "away") {
    MJ_TRY(missing, missing_file(envelope, of.name, jobs));
    if (missing) return to_json(*missing);
    MJ_TRY(handed, retain_files(envelope, of.name, jobs));
    held = std::move(handed);
  }
  MJ_TRY(known, ours(store_.answer_message(envelope.context, answer)));
  if (!known) return fail(Code::not_found, "of: no such message was sent from this host");
  // The files of this part are removed, since the next part of the answer needs the space.
  const bool is_over = held != nullptr || answer.is_last;
  if (files_.store && is_over) files_.store->drop(envelope.context, answer_bundle_id(of.name, envelope.signer));
  return json{{"status", "stored"}};
}

Result<json> MessageReceiver::accept_logs(const Envelope& envelope, const json& sealed) {
  MJ_TRY(of, find_sent_message(envelope, sealed));
  MJ_TRY(body, read_logs(sealed["body"]));
  if (!names(of.mark, body.job_key)) return fail(Code::denied, "job: is not a job of " + of.key);
  auto stored = store_.append_remote_log(envelope.context, of.key, of.name.content, body.job_key, body.lines);
  // A key of another client has replaced the log. The lines are dropped, so that they do not block the end of the job.
  const bool is_in_the_way = !stored && stored.error().code == Code::invalid;
  MJ_TRY(last, is_in_the_way ? std::move(stored) : ours(std::move(stored)));
  return json{{"last", last}};
}

// Only the supervisor that will get the answer may cancel.
Result<json> MessageReceiver::accept_cancel(const Envelope& envelope, const json& sealed) {
  MJ_TRY(body, read_cancel(sealed["body"]));
  // The message is found by its signer at the time of the signature, since the actor may have another key by now.
  MJ_TRY(came, find_received(envelope.context, body.of.content));
  const std::string origin = std::to_string(body.of.caller) + ':' + std::to_string(body.of.id);
  if (!came || field_of(came->mark, "origin") != origin || field_of(came->mark, "signer") != body.by)
    return fail(Code::not_found, "of: no such message was received on this host");
  const Fields& mark = came->mark;
  MJ_CHECK(verify_peer(
      envelope, sealed, std::string(field_of(mark, "address")),
      "is not the supervisor that receives the answer, by the record of a runner with that address on this host"));
  if (field_of(mark, "state") == "arrived")
    return fail(Code::unavailable, "of: the message has not been processed yet: try again in a second");
  // The supervisor daemon of this context cancels the flow.
  if (body.flow && !field_of(mark, "flow").empty()) MJ_CHECK(ours(store_.cancel_message(envelope.context, came->key)));
  const auto keys = split_words(field_of(mark, "jobs")), origins = split_words(field_of(mark, "origins"));
  for (const std::string& each : body.jobs) {
    const auto found = std::find(origins.begin(), origins.end(), each);
    if (found == origins.end()) continue;
    const std::size_t index = static_cast<std::size_t>(found - origins.begin());
    if (index >= keys.size()) continue;
    auto done = store_.cancel(envelope.context, keys[index]);
    if (!done && done.error().code != Code::not_found)
      return ours<json>(tl::unexpected<Error>(std::move(done).error()));
  }
  return json{{"status", "asked"}};
}

}  // namespace mycojobs
