#include "inspect/world_verify.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>
#include <utility>

#include "base/ids.h"
#include "base/sha256.h"
#include "domain/codec.h"
#include "domain/workflow_decide.h"
#include "domain/workflow_manifest.h"
#include "domain/workflow_snapshot.h"

namespace mycojobs {
namespace {

using nlohmann::json;

constexpr std::uint32_t kFactsPage = 1000, kMailAtOnce = 1000;
constexpr std::size_t kMostWorlds = 100000;
constexpr int kWorldLooks = 3;   // a finding must occur in all of them
constexpr int kWorldTries = 20;  // attempts to read a world that changes continuously
constexpr std::chrono::milliseconds kWorldPause{100};

// One read of one world. Moved: other clients have committed during the read, so that the result is invalid.
class WorldLook {
 public:
  WorldLook(WorkflowStore& worlds, Store& store, Id context, const std::string& world)
      : worlds_(&worlds), store_(&store) {
    sight_.context = context;
    sight_.world = world;
    sight_.state.id = std::to_string(context) + '/' + world;
  }

  Result<void> run() {
    auto places = worlds_->places(sight_.context, sight_.world);
    if (!places && places.error().code != Code::invalid) return tl::unexpected<Error>(std::move(places).error());
    if (!places) return wrong("cannot be read: " + places.error().message);
    sight_.places = *places;
    MJ_CHECK(read_snapshot());
    MJ_CHECK(read_journal());
    if (sight_.journal.empty()) {
      MJ_CHECK(read_code());
      MJ_CHECK(read_carriers());
    }
    MJ_TRY(after, worlds_->places(sight_.context, sight_.world));
    moved = after.height != sight_.places.height || after.mail != sight_.places.mail;
    findings = judge(sight_);
    return {};
  }

  bool moved = false;
  std::vector<WorldFinding> findings;
  std::uint64_t height() const { return sight_.places.height; }

 private:
  Result<void> wrong(const std::string& text) {
    sight_.journal = text;
    findings = judge(sight_);
    return {};
  }
  // Returns the problem of a key that should hold a value; `unavailable` is an error.
  template <class T>
  static Result<std::string> trouble_of(const Result<T>& read) {
    if (!read && read.error().code == Code::unavailable) return tl::unexpected<Error>(read.error());
    return read ? std::string() : read.error().message;
  }

  Result<void> read_snapshot() {
    const WorldPlaces& places = sight_.places;
    if (places.snapshot_height == 0) return {};
    if (places.snapshot_height > places.height)
      return sight_.snapshot = "its snapshot is of later than now", Result<void>();
    auto read = mycojobs::read_snapshot(
        places.snapshot, [&](const std::string& hash) { return worlds_->blob(sight_.context, sight_.world, hash); });
    MJ_TRY(trouble, trouble_of(read));
    if (read)
      snapshot_ = std::move(read->world);
    else
      sight_.snapshot = "its snapshot: " + trouble;
    return {};
  }

  Result<void> read_journal() {
    std::uint64_t after = 0;
    while (after < sight_.places.height && sight_.journal.empty()) {
      auto page = worlds_->read(sight_.context, sight_.world, after, kFactsPage);
      MJ_TRY(unread, trouble_of(page));
      if (!unread.empty()) return sight_.journal = "cannot be read: " + unread, Result<void>();
      if (page->facts.empty()) {
        sight_.journal = "the fact at height " + std::to_string(after + 1) + " is missing";
        return {};
      }
      for (const std::string& bytes : page->facts) {
        if (after >= sight_.places.height || !fold_one(++after, bytes)) break;
      }
    }
    return {};
  }
  bool fold_one(std::uint64_t height, const std::string& bytes) {
    const std::string at = "height " + std::to_string(height);
    const auto fact = decode_workflow_fact(bytes);
    if (!fact) return sight_.journal = at + " is not a valid fact: " + fact.error().message, false;
    if (const auto problem = fold(sight_.state, *fact))
      return sight_.journal = std::string(problem->rule) + ": " + problem->text, false;
    if (const auto* refused = std::get_if<ReceiptRefused>(&fact->what)) refused_.insert(refused->intent);
    if (snapshot_ && snapshot_->height == height && !(*snapshot_ == sight_.state))
      sight_.snapshot = "its snapshot differs from its journal at height " + std::to_string(height);
    return true;
  }

  Result<void> read_code() {
    std::set<std::string> run{sight_.state.manifest};
    for (const auto& [id, cell] : sight_.state.cells) {
      run.insert(cell.manifest);
      if (cell.state && cell.state->spilled()) MJ_CHECK(read_blob(id, *cell.state));
    }
    run.erase("");
    for (const std::string& hash : run) MJ_CHECK(read_manifest_of(hash));
    return {};
  }
  Result<void> read_blob(const CellId& id, const StateRef& state) {
    const auto bytes = worlds_->blob(sight_.context, sight_.world, state.hash);
    MJ_TRY(gone, trouble_of(bytes));
    if (gone.empty() && sha256_hex(*bytes) == state.hash) return {};
    sight_.blobs[state.hash] =
        "the state of " + shown(id) + ": " +
        (gone.empty() ? "the blob " + state.hash + " does not have the content of its hash" : gone);
    return {};
  }
  Result<void> read_manifest_of(const std::string& hash) {
    const auto text = worlds_->manifest(sight_.context, sight_.world, hash);
    MJ_TRY(gone, trouble_of(text));
    std::string why = gone;
    if (gone.empty()) {
      const auto stored = parse_json(*text);
      const bool whole = stored && stored->is_object() && stored->contains("manifest");
      CodeFiles code;
      const json files = whole ? stored->value("code", json::object()) : json::object();
      for (const auto& [module, source] : files.items())
        if (source.is_string()) code.emplace(module, source.get<std::string>());
      const ManifestRead read = whole ? read_manifest(stored->at("manifest"), std::move(code)) : ManifestRead();
      if (!read.manifest) why = "manifest " + hash + " cannot be read";
      if (read.manifest && read.manifest->hash != hash) why = "manifest " + hash + " is stored with other content";
    }
    if (!why.empty()) sight_.manifests[hash] = why;
    return {};
  }

  // Reads all pages, since a single read has a size limit and would hide the rest.
  Result<std::vector<WorldMail>> read_mail() {
    std::vector<WorldMail> all;
    for (std::string after; all.size() <= kMaxWorldMail;) {
      MJ_TRY(page, worlds_->mail(sight_.context, sight_.world, kMailAtOnce, kMaxMailBytes, after));
      if (page.empty()) break;
      after = page.back().id;
      for (WorldMail& mail : page) {
        mail.fields.erase(std::remove_if(mail.fields.begin(), mail.fields.end(),
                                         [](const auto& field) { return field.first != "key"; }),
                          mail.fields.end());
        all.push_back(std::move(mail));
      }
    }
    return all;
  }
  Result<void> read_carriers() {
    std::set<std::string> arrived;
    MJ_TRY(waiting, read_mail());
    static constexpr std::array<std::string_view, 5> kKinds{"event", "job", "flow", "answer", "remove"};
    for (const WorldMail& mail : waiting) {
      if (mail.kind == "job" || mail.kind == "flow") arrived.insert(std::string(field_of(mail.fields, "key")));
      if (std::find(kKinds.begin(), kKinds.end(), mail.kind) == kKinds.end()) sight_.odd_mail.push_back(mail.id);
    }
    for (const auto& [intent, id] : sight_.state.intents) {
      const PendingIntent& pending = sight_.state.cell(id)->pending.at(intent);
      const bool by_time = pending.carrier == kTimerCarrier || pending.carrier == kApprovalCarrier;
      if (!pending.published || by_time) continue;
      CarrierSight each{id, intent, pending.carrier};
      each.has_arrived = arrived.contains(pending.carrier);
      each.is_refused = refused_.contains(intent);
      MJ_CHECK(read_record(each));
      sight_.carriers.push_back(std::move(each));
    }
    return {};
  }
  Result<void> read_record(CarrierSight& carrier) {
    if (carrier.carrier.find(':') == std::string::npos) return {};
    static constexpr std::array<std::string_view, 3> kAsked{"status", "effect_of", "idempotency_key"};
    const auto record = store_->load_fields(sight_.context, carrier.carrier, kAsked);
    MJ_TRY(gone, trouble_of(record));
    if (!gone.empty() || record->empty()) return {};
    carrier.is_there = true;
    const std::string_view status = field_of(*record, "status");
    carrier.has_ended = status == "finished" || status == "error";
    carrier.effect_of = field_of(*record, "effect_of");
    if (carrier.carrier.starts_with("job:")) carrier.key = field_of(*record, "idempotency_key");
    return {};
  }

  WorkflowStore* worlds_;
  Store* store_;
  WorldSight sight_;
  std::optional<WorldState> snapshot_;
  std::set<std::string> refused_;
};

Result<WorldLook> still_look(WorkflowStore& worlds, Store& store, Id context, const std::string& world) {
  for (int attempt = 0;; ++attempt) {
    WorldLook look(worlds, store, context, world);
    MJ_CHECK(look.run());
    if (!look.moved || attempt == kWorldTries) return look;
    std::this_thread::sleep_for(kWorldPause);
  }
}

// Repeats the read, so that data that changes during the read gives no finding.
Result<WorldLook> lasting_look(WorkflowStore& worlds, Store& store, Id context, const std::string& world) {
  MJ_TRY(look, still_look(worlds, store, context, world));
  for (int again = 1; again < kWorldLooks && !look.findings.empty(); ++again) {
    std::this_thread::sleep_for(kWorldPause);
    MJ_TRY(next, still_look(worlds, store, context, world));
    std::erase_if(next.findings, [&](const WorldFinding& each) {
      return std::none_of(look.findings.begin(), look.findings.end(), [&](const WorldFinding& other) {
        return other.rule == each.rule && other.text == each.text;
      });
    });
    look = std::move(next);
  }
  return look;
}

// Returns the worlds that are listed and the worlds that have a journal.
Result<std::set<std::string>> worlds_of(WorkflowStore& worlds, Store& store, Id context) {
  constexpr std::string_view kJournals = "mj:world:";
  MJ_TRY(listed, worlds.worlds(context));
  std::set<std::string> all(listed.begin(), listed.end());
  MJ_TRY(keys, store.keys(context, kJournals, kMostWorlds));
  for (const std::string& key : keys) all.insert(key.substr(kJournals.size()));
  return all;
}

Result<void> rebuild_world(WorkflowStore& worlds, Store& store, Id context, const std::string& world, bool dry_run,
                           std::vector<std::string>& differences) {
  for (int attempt = 0; attempt < kWorldTries; ++attempt) {
    MJ_TRY(look, lasting_look(worlds, store, context, world));
    std::vector<std::string> lines;
    std::vector<WorldFix> fixes;
    for (const WorldFinding& each : look.findings) {
      if (!each.violation) continue;
      lines.push_back(each.text + (each.fixes.empty() ? " (cannot be repaired)" : ""));
      fixes.insert(fixes.end(), each.fixes.begin(), each.fixes.end());
    }
    Result<bool> done = true;
    if (!dry_run && !fixes.empty()) done = worlds.repair(context, world, look.height(), fixes);
    if (!done) return fail(std::move(done).error(), world);
    if (!*done) continue;
    std::move(lines.begin(), lines.end(), std::back_inserter(differences));
    return {};
  }
  return {};
}

}  // namespace

Result<std::vector<Finding>> verify_worlds(WorkflowStore& worlds, Store& store, Id context) {
  std::vector<Finding> findings;
  MJ_TRY(all, worlds_of(worlds, store, context));
  for (const std::string& world : all) {
    MJ_TRY(look, lasting_look(worlds, store, context, world));
    std::move(look.findings.begin(), look.findings.end(), std::back_inserter(findings));
  }
  return findings;
}

Result<std::vector<std::string>> rebuild_worlds(WorkflowStore& worlds, Store& store, Id context, bool dry_run) {
  std::vector<std::string> differences;
  MJ_TRY(all, worlds_of(worlds, store, context));
  for (const std::string& world : all) MJ_CHECK(rebuild_world(worlds, store, context, world, dry_run, differences));
  return differences;
}

}  // namespace mycojobs
