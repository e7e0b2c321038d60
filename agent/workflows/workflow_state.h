// The state of a world, computed from its facts: instances, their mail, pending intents, and the order of steps. fold()
// is total: a fact that does not fit is reported as a problem and changes nothing. Pure; not thread-safe. Source: seed
// 003, 3.6 and 7.
//
// Status of an instance (InstanceState::status()):
//   (none) --event--> running --step--> running (more mail) | waiting | completed
//                     waiting --event, receipt--> running
//                     completed --event--> running
//   any --failed--> failed      a receipt fault without an arm for it, a step that failed, another output on replay
// running: it has mail. waiting: it has no mail, but a state or pending intents. completed: its state is null and it
// has no pending intents; a cell is then deleted and no longer listed. failed is terminal: an operator removes the
// instance.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "workflows/workflow_facts.h"

namespace mycojobs {

enum class InstanceStatus { running, waiting, completed, failed };
std::string_view to_string(InstanceStatus);

// An event or receipt that an instance has not processed. Mail is ordered by arrival.
struct Mail {
  MailId id;
  std::string schema;  // schema of the event itself, not of the variant that wraps it
  std::string value;   // as passed to the code: CBOR, wrapped
  Sample sample;
  std::string intent;       // intent of a receipt; empty: the mail is a domain event
  std::uint64_t depth = 0;  // EventAccepted::depth
  bool operator==(const Mail&) const = default;
};
struct PendingIntent {
  Intent intent;
  std::uint64_t sequence = 0;  // height of the fact of its step
  std::uint64_t asked_ms = 0;
  bool published = false;
  std::string effect_ref;
  bool operator==(const PendingIntent&) const = default;
};
// Settled intents kept per instance; a repeated receipt of an older intent is unknown.
inline constexpr std::size_t kRememberedIntents = 1024;

struct InstanceState {
  InstanceId id;
  std::string manifest;  // hash of the manifest whose code the instance runs
  std::optional<StateRef> state;
  std::deque<Mail> mail;
  std::map<std::string, PendingIntent> pending;  // by hash of the intent
  std::deque<std::string> settled;               // the latest at the end
  bool failed = false;
  std::string failure, message;  // if failed
  // Heights of its first and last fact; number of steps; number of refused receipts.
  std::uint64_t born = 0, last = 0, steps = 0, refused = 0;

  InstanceStatus status() const;
  std::string workflow_hash() const;
  bool is_settled(std::string_view intent) const;
  // Returns whether the instance ends now: state null, no mail, no pending intents, not failed. Completed or Deleted
  // follows.
  bool ends_now() const;
  InstanceState with_limited_mail(std::size_t max) const;  // a copy with at most this much of its mail
  bool operator==(const InstanceState&) const = default;
};

struct DeploymentState {
  std::string id;        // "<context>/<manifest's name>"; part of every intent hash
  std::string manifest;  // hash of the manifest in force; empty: none was applied
  std::uint64_t height = 0;
  std::map<InstanceId, InstanceState> cells;
  // Instances with mail by ticket; the lowest ticket is next. An instance with mail after a step gets a new ticket.
  std::map<std::uint64_t, InstanceId> ready;
  std::map<InstanceId, std::uint64_t> tickets;  // the same tickets by instance
  std::uint64_t next_ticket = 0;
  std::map<std::string, InstanceId> intents;  // pending intents
  std::map<std::string, InstanceId> settled;  // settled intents that their instance remembers
  std::uint64_t refused = 0;                  // number of receipts with an invalid signature
  bool operator==(const DeploymentState&) const = default;

  const InstanceState* cell(const InstanceId&) const;
};

// A fact that does not fit. rule: one of the names below; text names the height.
struct WorkflowProblem {
  std::string_view rule;
  std::string text;
};
inline constexpr std::string_view kWfHeight = "workflow-height";  // not the next height
inline constexpr std::string_view kWfCell = "workflow-cell";  // no such instance, or an instance that must not exist
inline constexpr std::string_view kWfMail = "workflow-mail";  // not the next mail
inline constexpr std::string_view kWfIntent = "workflow-intent";  // not pending, or already pending
inline constexpr std::string_view kWfFailed = "workflow-failed";  // the instance has failed
// The instance is not at its end, or the hash of a state is wrong.
inline constexpr std::string_view kWfState = "workflow-state";
inline constexpr std::string_view kWfManifest = "workflow-manifest";  // replaces a manifest that is not in force
inline constexpr std::string_view kWfValue = "workflow-value";        // a value that is not CBOR

// Returns the value of the mail that a fact delivers to an instance. Error invalid: not CBOR, or too deep when wrapped.
Result<std::string> mail_value(const EventAccepted&, const EventTarget&);
Result<std::string> mail_value(const InstanceState&, const ReceiptAdmitted&);    // REQUIRES: its intent is pending
Result<std::string> mail_value(const InstanceState&, const ReceiptMismatched&);  // REQUIRES: it has an arm

std::optional<WorkflowProblem> fold(DeploymentState&, const WorkflowFact&);
// Folds one instance alone, from its own facts (instances_of()), with the same result as in its world. No value: the
// instance does not exist.
std::optional<WorkflowProblem> fold(std::optional<InstanceState>&, const InstanceId&, const WorkflowFact&);

// Returns the bytes of a state, or sets them. Errors: unavailable (spilled, and the blob was not attached), invalid
// (attach: the blob has another hash).
Result<std::string> bytes_of(const StateRef&);
Result<void> attach(StateRef&, std::string blob);

// Returns a snapshot: the world as canonical CBOR, without the bytes of spilled states. decode_deployment(encode(w)) ==
// w.
Result<std::string> encode(const DeploymentState&);
Result<DeploymentState> decode_deployment(std::string_view bytes);
// Returns the root of the cells of a keyed workflow: SHA-256 over [key hash, key, state hash, size, last height], in
// the order of key hashes. Equal cells have equal roots.
std::string cell_index_root(const DeploymentState&, std::string_view workflow);
// Returns the hashes of the blobs that states refer to, which garbage collection must keep.
std::set<std::string> blobs_of(const DeploymentState&);

}  // namespace mycojobs
