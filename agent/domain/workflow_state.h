// What the facts of a world say together: its instances, their mail, what they wait for, who is next. fold() is total:
// a fact that does not fit is a problem, which has a name, and changes nothing. Pure; not for several threads at once.
// Source: seed 003, 3.6 and 7.
//
// An instance (CellState::status())
//   (none) --event--> running --step--> running (more mail) | waiting | completed
//                     waiting --event, receipt--> running
//                     completed --event--> running
//   any --failed--> failed      a receipt fault without an arm for it, a step that failed, another output on replay
//   running: it has mail. waiting: none, and it has a state or waits for receipts. completed: its state is null and it
//   waits for nothing; a cell is then deleted and listed no more. failed absorbs: who operates it removes it.
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

#include "domain/workflow_facts.h"
#include "mycojobs/result.h"

namespace mycojobs {

enum class InstanceStatus { running, waiting, completed, failed };
std::string_view word(InstanceStatus);

// An event, or a receipt, that an instance has not worked off. In the order in which it came.
struct Mail {
  MailId id;
  std::string schema;  // of the event itself: not of the variant around it
  std::string value;   // as the code gets it: CBOR, wrapped
  Sample sample;
  std::string intent;       // of a receipt; empty: a domain event
  std::uint64_t depth = 0;  // EventIn::depth
  bool operator==(const Mail&) const = default;
};
struct PendingIntent {
  Intent intent;
  std::uint64_t sequence = 0;  // height of its step
  std::uint64_t asked_ms = 0;
  bool published = false;
  std::string carrier;
  bool operator==(const PendingIntent&) const = default;
};
inline constexpr std::size_t kRememberedIntents = 1024;  // settled ones of an instance; older repeats are unknown

struct CellState {
  CellId id;
  std::string manifest;  // hash: the code that it keeps
  std::optional<StateRef> state;
  std::deque<Mail> mail;
  std::map<std::string, PendingIntent> pending;  // by intent
  std::deque<std::string> settled;               // the latest last
  bool failed = false;
  std::string failure, message;                              // of a failed one
  std::uint64_t born = 0, last = 0, steps = 0, refused = 0;  // heights of its first and last fact; refused receipts

  InstanceStatus status() const;
  std::string workflow_hash() const;
  bool knows_settled(std::string_view intent) const;
  // State null, no mail, nothing pending, not failed: Completed or Deleted follows.
  bool spent() const;
  CellState with_mail(std::size_t most) const;  // a copy with so much of its mail
  bool operator==(const CellState&) const = default;
};

struct WorldState {
  std::string id;        // "<context>/<manifest's name>"; bound by every intent
  std::string manifest;  // hash of the one in force; empty: none was applied
  std::uint64_t height = 0;
  std::map<CellId, CellState> cells;
  std::map<std::uint64_t, CellId> ready;    // by ticket: the lowest is next. Who has mail left after a step goes last
  std::map<CellId, std::uint64_t> tickets;  // the same, by cell
  std::uint64_t next_ticket = 0;
  std::map<std::string, CellId> intents;  // pending ones
  std::map<std::string, CellId> settled;  // settled ones that their cell remembers
  std::uint64_t refused = 0;              // receipts with a bad signature
  bool operator==(const WorldState&) const = default;

  const CellState* cell(const CellId&) const;
};

// What does not fit. rule: one of the names below; text names the height.
struct WorkflowProblem {
  std::string_view rule;
  std::string text;
};
inline constexpr std::string_view kWfHeight = "workflow-height";      // not the next height
inline constexpr std::string_view kWfCell = "workflow-cell";          // no such instance, or it must not be there
inline constexpr std::string_view kWfMail = "workflow-mail";          // not the mail that is next
inline constexpr std::string_view kWfIntent = "workflow-intent";      // not pending, or pending already
inline constexpr std::string_view kWfFailed = "workflow-failed";      // the instance has failed
inline constexpr std::string_view kWfState = "workflow-state";        // it is not spent; a state whose hash is none
inline constexpr std::string_view kWfManifest = "workflow-manifest";  // replaces another than the one in force
inline constexpr std::string_view kWfValue = "workflow-value";        // a value that is no CBOR

// What an instance gets of a fact: its mail's value. Error invalid: no CBOR, or too deep once it is wrapped.
Result<std::string> mail_value(const EventIn&, const EventTarget&);
Result<std::string> mail_value(const CellState&, const ReceiptAdmitted&);  // its intent must be pending
Result<std::string> mail_value(const CellState&, const ReceiptFaulted&);   // with an arm

std::optional<WorkflowProblem> fold(WorldState&, const WorkflowFact&);
// One instance alone, from its own facts (cells_of()): what fold() makes of it in its world. Nothing: it is gone.
std::optional<WorkflowProblem> fold(std::optional<CellState>&, const CellId&, const WorkflowFact&);

// The bytes of a state. Errors: unavailable (spilled, and nobody brought the blob), invalid (attach: another hash).
Result<std::string> bytes_of(const StateRef&);
Result<void> attach(StateRef&, std::string blob);

// A snapshot: the world in canonical CBOR; states that are spilled stay so. decode(encode(w)) == w.
Result<std::string> encode(const WorldState&);
Result<WorldState> decode_world(std::string_view bytes);
// The index of a keyed workflow's cells: SHA-256 over [key hash, key, state hash, size, last height], in order of the
// key hashes. The same cells, the same root.
std::string cell_index_root(const WorldState&, std::string_view workflow);
// Blobs that states refer to: what a collection must keep.
std::set<std::string> blobs_of(const WorldState&);

}  // namespace mycojobs
