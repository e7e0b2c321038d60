// mycojobs queue list | pause | resume | purge
#include <fmt/format.h>
#include <unistd.h>
#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>
#include <set>

#include "base/parse.h"
#include "cli/commands/command_table.h"
#include "cli/store_session.h"
#include "cli/terminal.h"
#include "inspect/runner_view.h"
#include "model/codec.h"
#include "service/queue_service.h"
#include "text/json.h"

namespace mycojobs {

namespace {

constexpr std::uint32_t kPurgeBatch = 500;  // entries per step, so that other clients do not wait for long

// Returns queues that have entries, and queues of live runners.
std::vector<QueueInfo> all_queues(std::vector<QueueInfo> queues, const std::vector<RunnerInfo>& runners) {
  std::set<std::string> names;
  for (const QueueInfo& info : queues) names.insert(info.queue);
  for (const RunnerInfo& info : runners) {
    if (presence(info) != RunnerPresence::live || !info.runner.local) continue;
    for (const std::string& type : info.runner.executors) {
      if (!names.insert(queue_key(type)).second) continue;
      queues.emplace_back().queue = queue_key(type);
    }
  }
  std::sort(queues.begin(), queues.end(), [](const auto& a, const auto& b) { return a.queue < b.queue; });
  return queues;
}

std::vector<Id> serving(const std::vector<RunnerInfo>& runners, const std::string& queue) {
  std::vector<Id> ids;
  for (const RunnerInfo& info : runners) {
    if (presence(info) == RunnerPresence::live && serves(info, queue)) ids.push_back(info.runner.id);
  }
  return ids;
}

std::string state_of(const QueueInfo& info) {
  if (!info.wrong_type.empty()) return paint(OutputStyle::bad, "is a " + info.wrong_type);
  return info.paused ? paint(OutputStyle::warn, "paused") : "open";
}

Result<int> list_queues(Invocation& call) {
  MJ_TRY(by, request_context(call));
  MJ_TRY(opened, open_to_answer(call));
  MJ_TRY(infos, service::list_queues(by, *opened.store));
  MJ_TRY(runners, opened.store->runners(context_of(call)));
  nlohmann::json array = nlohmann::json::array();
  std::vector<std::vector<std::string>> rows{{"QUEUE", "ENTRIES", "PRIORITISED", "STATE", "FACTS", "RUNNERS"}};
  for (const QueueInfo& info : all_queues(std::move(infos), runners)) {
    const std::vector<Id> ids = serving(runners, info.queue);
    const bool stuck = ids.empty() && info.length + info.prioritised > 0;
    array.push_back({{"queue", info.queue},
                     {"entries", info.length},
                     {"prioritised", info.prioritised},
                     {"paused", info.paused},
                     {"facts", info.facts},
                     {"journal_head", info.journal_head},
                     {"horizon_ms", info.horizon_ms},
                     {"runners", ids}});
    if (!info.wrong_type.empty()) array.back()["wrong_type"] = info.wrong_type;
    rows.push_back({printable(info.queue), std::to_string(info.length), std::to_string(info.prioritised),
                    state_of(info), std::to_string(info.facts),
                    ids.empty() ? paint(stuck ? OutputStyle::bad : OutputStyle::faint, "none")
                                : fmt::format("{}", fmt::join(ids, ","))});
  }
  if (call.json) {
    print(dump_json(array, 2) + "\n");
  } else {
    print_list(rows);
  }
  return 0;
}

struct NamedQueue {
  OpenedStore opened;
  std::string queue;
  std::uint64_t entries = 0;
  bool known = false;  // the queue has entries, or a live runner serves it
};
Result<NamedQueue> open_queue(const Invocation& call) {
  NamedQueue named;
  MJ_TRY(opened, open_to_answer(call));
  named.opened = std::move(opened);
  MJ_TRY(infos, named.opened.store->queues(context_of(call)));
  MJ_TRY(queue, service::queue_named(call.arguments.at(0), infos));
  named.queue = queue;
  MJ_TRY(runners, named.opened.store->runners(context_of(call)));
  for (const QueueInfo& info : all_queues(std::move(infos), runners)) {
    if (info.queue != queue) continue;
    named.entries = info.length + info.prioritised;
    named.known = true;
  }
  return named;
}

void answer(const Invocation& call, const nlohmann::json& object, const std::string& text) {
  print(call.json ? dump_json(object) + "\n" : text + "\n");
}

Result<int> pause(Invocation& call, bool paused) {
  MJ_TRY(by, request_context(call));
  MJ_TRY(named, open_queue(call));
  MJ_TRY(done, service::pause_queue(by, *named.opened.store, named.queue, paused));
  const bool same = !done.changed;
  std::string text = named.queue + (paused ? " is paused: no job is claimed from it" : " is open");
  if (same) text = named.queue + (paused ? " was paused already" : " was not paused");
  answer(call, {{"queue", named.queue}, {"paused", paused}, {"changed", !same}}, text);
  if (!named.known) {
    print_message(paint(OutputStyle::warn, "warning: ", true) + "no entry is in " + named.queue +
                  " and no live runner serves it; `mycojobs queue list` shows what there is");
  }
  return 0;
}

Result<void> confirm(const Invocation& call, const NamedQueue& named) {
  if (call.has("yes")) return {};
  const std::string what = fmt::format("permanently cancel the jobs of {} entries in {} of context {}", named.entries,
                                       named.queue, context_of(call));
  if (::isatty(STDIN_FILENO) == 0) return fail(Code::invalid, "this would " + what + ": give --yes to do it");
  std::fputs(fmt::format("This will {}. Go on? [yes/no] ", what).c_str(), stderr);
  std::string reply;
  std::getline(std::cin, reply);
  if (reply == "yes" || reply == "y") return {};
  return fail(Code::invalid, "nothing was changed");
}

Result<int> purge(Invocation& call) {
  MJ_TRY(named, open_queue(call));
  std::uint64_t gone = 0;
  if (named.entries > 0) {
    MJ_CHECK(confirm(call, named));
    ProgressLine progress(call.parts.clock);
    // Removes only the initial number of entries, so that the loop ends while other clients submit jobs.
    while (gone < named.entries) {
      const auto batch = static_cast<std::uint32_t>(std::min<std::uint64_t>(kPurgeBatch, named.entries - gone));
      MJ_TRY(went, named.opened.store->purge_queue(context_of(call), named.queue, batch));
      if (went == 0) break;
      gone += went;
      progress.show("purging " + named.queue, gone, named.entries);
    }
  }
  answer(call, {{"queue", named.queue}, {"purged", gone}},
         gone == 0 ? named.queue + " is empty"
                   : fmt::format("{} entries of {} were removed and their jobs cancelled", gone, named.queue));
  return 0;
}

}  // namespace

int queue_list_command(Invocation& call) { return finish(list_queues(call)); }
int queue_pause_command(Invocation& call) { return finish(pause(call, true)); }
int queue_resume_command(Invocation& call) { return finish(pause(call, false)); }
int queue_purge_command(Invocation& call) { return finish(purge(call)); }

// mycojobs queue dead

namespace {

constexpr std::size_t kAll = 200000;  // larger than the list's maximum length

Result<int> list(Invocation& call, const service::RequestContext& by, Store& store) {
  MJ_TRY(limit, count_flag(call, "limit", 50));
  MJ_TRY(letters, service::dead_letters(by, store, std::min<std::uint64_t>(limit, kAll) + 1));
  const bool more = letters.size() > limit;
  if (more) letters.erase(letters.begin());  // removes the oldest
  nlohmann::json array = nlohmann::json::array();
  std::vector<std::vector<std::string>> rows{{"ID", "JOB", "QUEUE", "REASON", "WHEN"}};
  for (const DeadLetter& letter : letters) {
    array.push_back({{"id", letter.id},
                     {"job", letter.job_key},
                     {"queue", letter.queue},
                     {"reason", letter.reason},
                     {"at_ms", letter.at_ms}});
    rows.push_back({letter.id, printable(letter.job_key.substr(0, 80)), printable(letter.queue),
                    paint(OutputStyle::bad, printable(letter.reason)), moment_text(letter.at_ms)});
  }
  if (call.json) {
    print(dump_json(array, 2) + "\n");
  } else {
    print_table(rows);
    if (more) print_message("there are older ones; --limit shows them");
  }
  return 0;
}

Error explained(const Error& error, const std::string& id) {
  // A retry cannot resolve this conflict.
  const Code code = error.code == Code::conflict ? Code::invalid : error.code;
  return {code, fmt::format("dead letter {}: {}", id, error.message)};
}

Result<int> settle(Invocation& call, const service::RequestContext& by, Store& store, const std::string& id,
                   bool requeue) {
  auto settled = service::settle_dead_letter(by, store, id, requeue);
  if (!settled && settled.error().code == Code::not_found) {
    return fail(Code::not_found, settled.error().message + "; `mycojobs queue dead` lists all dead letters");
  }
  if (!settled) return tl::unexpected(explained(settled.error(), id));
  const std::string done = requeue ? "requeued" : "dropped";
  print(call.json ? dump_json({{"id", id}, {"done", done}}) + "\n" : fmt::format("dead letter {} is {}\n", id, done));
  return 0;
}

// Requeues the dead letters that are listed now, and continues after those that cannot be requeued.
Result<int> requeue_all(Invocation& call, const service::RequestContext& by, Store& store) {
  MJ_TRY(letters, service::dead_letters(by, store, kAll));
  ProgressLine progress(call.parts.clock);
  std::uint64_t done = 0;
  nlohmann::json refused = nlohmann::json::array();
  for (const DeadLetter& letter : letters) {
    progress.show("requeuing", done + refused.size(), letters.size());
    auto settled = service::settle_dead_letter(by, store, letter.id, true);
    if (settled) {
      ++done;
      continue;
    }
    const Code code = settled.error().code;
    if (code == Code::not_found) continue;  // another client was faster
    if (code != Code::conflict && code != Code::invalid) return tl::unexpected(explained(settled.error(), letter.id));
    refused.push_back({{"id", letter.id}, {"job", letter.job_key}, {"error", settled.error().message}});
    if (!call.json) print_message(explained(settled.error(), letter.id).message);
  }
  if (call.json) {
    print(dump_json({{"requeued", done}, {"refused", refused}}, 2) + "\n");
  } else {
    print(fmt::format("{} requeued, {} left\n", done, refused.size()));
  }
  return refused.empty() ? 0 : 1;
}

Result<int> dead(Invocation& call) {
  const int chosen = (call.has("requeue") ? 1 : 0) + (call.has("requeue-all") ? 1 : 0) + (call.has("drop") ? 1 : 0);
  if (chosen > 1) return fail(Code::invalid, "--requeue, --requeue-all and --drop: use only one of them");
  MJ_TRY(by, request_context(call));
  MJ_TRY(opened, open_to_answer(call));
  if (call.has("requeue")) return settle(call, by, *opened.store, call.get("requeue"), true);
  if (call.has("drop")) return settle(call, by, *opened.store, call.get("drop"), false);
  return call.has("requeue-all") ? requeue_all(call, by, *opened.store) : list(call, by, *opened.store);
}

}  // namespace

int queue_dead_command(Invocation& call) { return finish(dead(call)); }

}  // namespace mycojobs
