// mycojobs queue list | pause | resume | purge | dead
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/command_output.h"
#include "cli/commands/commands.h"
#include "cli/request_arguments.h"
#include "cli/store_session.h"
#include "cli/terminal.h"
#include "inspect/runner_view.h"
#include "service/queue_service.h"

namespace mycojobs {

namespace {

constexpr std::uint32_t kMaxPurgeBatch = 500;  // entries per step, so that other clients do not wait for long

// Returns queues that have entries, and queues of live runners.
std::vector<QueueInfo> merge_queues(std::vector<QueueInfo> queues, const std::vector<RunnerInfo>& runners) {
  std::set<std::string> names;
  for (const QueueInfo& info : queues) names.insert(info.queue);
  for (const RunnerInfo& info : runners) {
    if (get_presence(info) != RunnerPresence::live || !info.runner.local) continue;
    for (const std::string& type : info.runner.executors) {
      if (!names.insert(queue_key(type)).second) continue;
      queues.emplace_back().queue = queue_key(type);
    }
  }
  std::sort(queues.begin(), queues.end(), [](const auto& a, const auto& b) { return a.queue < b.queue; });
  return queues;
}

std::vector<Id> find_serving_runners(const std::vector<RunnerInfo>& runners, const std::string& queue) {
  std::vector<Id> ids;
  for (const RunnerInfo& info : runners) {
    if (get_presence(info) == RunnerPresence::live && serves_queue(info, queue)) ids.push_back(info.runner.id);
  }
  return ids;
}

std::string format_queue_state(const QueueInfo& info) {
  if (!info.wrong_type.empty()) return paint(OutputStyle::bad, "is a " + info.wrong_type);
  return info.paused ? paint(OutputStyle::warn, "paused") : "open";
}

struct QueueSession {
  StoreSession session;
  std::string queue;
  std::uint64_t entries = 0;
  bool is_known = false;  // the queue has entries, or a live runner serves it
};
Result<QueueSession> open_queue_session(const Invocation& call) {
  QueueSession queue_session;
  MJ_TRY(session, open_store_for_query(call));
  queue_session.session = std::move(session);
  MJ_TRY(queues, queue_session.session.store->queues(call.context()));
  MJ_TRY(queue, service::resolve_queue_key(call.arguments.at(0), queues));
  queue_session.queue = queue;
  MJ_TRY(runners, queue_session.session.store->runners(call.context()));
  for (const QueueInfo& info : merge_queues(std::move(queues), runners)) {
    if (info.queue != queue) continue;
    queue_session.entries = info.length + info.prioritised;
    queue_session.is_known = true;
  }
  return queue_session;
}

Result<int> pause_queue(Invocation& call, bool paused) {
  MJ_TRY(caller, request_context(call));
  MJ_TRY(queue_session, open_queue_session(call));
  MJ_TRY(result, service::pause_queue(caller, *queue_session.session.store, queue_session.queue, paused));
  const bool is_unchanged = !result.changed;
  std::string text = queue_session.queue + (paused ? " is paused: no job is claimed from it" : " is open");
  if (is_unchanged) text = queue_session.queue + (paused ? " was paused already" : " was not paused");
  print_answer(call, {{"queue", queue_session.queue}, {"paused", paused}, {"changed", !is_unchanged}}, text);
  if (!queue_session.is_known) {
    print_warning("no entry is in " + queue_session.queue +
                  " and no live runner serves it; `mycojobs queue list` shows what there is");
  }
  return 0;
}

Result<void> confirm_purge(const Invocation& call, const QueueSession& queue_session) {
  if (call.has("yes")) return {};
  const std::string action = fmt::format("permanently cancel the jobs of {} entries in {} of context {}",
                                         queue_session.entries, queue_session.queue, call.context());
  if (::isatty(STDIN_FILENO) == 0) return fail(Code::invalid, "this would " + action + ": give --yes to do it");
  std::fputs(fmt::format("This will {}. Go on? [yes/no] ", action).c_str(), stderr);
  std::string reply;
  std::getline(std::cin, reply);
  if (reply == "yes" || reply == "y") return {};
  return fail(Code::invalid, "nothing was changed");
}

}  // namespace

Result<int> queue_list_command(Invocation& call) {
  MJ_TRY(caller, request_context(call));
  MJ_TRY(session, open_store_for_query(call));
  MJ_TRY(queues, service::list_queues(caller, *session.store));
  MJ_TRY(runners, session.store->runners(call.context()));
  nlohmann::json array = nlohmann::json::array();
  TableRows rows{{"QUEUE", "ENTRIES", "PRIORITISED", "STATE", "FACTS", "RUNNERS"}};
  for (const QueueInfo& info : merge_queues(std::move(queues), runners)) {
    const std::vector<Id> ids = find_serving_runners(runners, info.queue);
    const bool is_stuck = ids.empty() && info.length + info.prioritised > 0;
    array.push_back({{"queue", info.queue},
                     {"entries", info.length},
                     {"prioritised", info.prioritised},
                     {"paused", info.paused},
                     {"facts", info.facts},
                     {"journal_head", info.journal_head},
                     {"horizon_ms", info.horizon_ms},
                     {"runners", ids}});
    if (!info.wrong_type.empty()) array.back()["wrong_type"] = info.wrong_type;
    rows.push_back({to_printable(info.queue), std::to_string(info.length), std::to_string(info.prioritised),
                    format_queue_state(info), std::to_string(info.facts),
                    ids.empty() ? paint(is_stuck ? OutputStyle::bad : OutputStyle::faint, "none")
                                : fmt::format("{}", fmt::join(ids, ","))});
  }
  return print_listing(call, array, rows, TableFit::screen);
}
Result<int> queue_pause_command(Invocation& call) { return pause_queue(call, true); }
Result<int> queue_resume_command(Invocation& call) { return pause_queue(call, false); }

Result<int> queue_purge_command(Invocation& call) {
  MJ_TRY(queue_session, open_queue_session(call));
  std::uint64_t removed_count = 0;
  if (queue_session.entries > 0) {
    MJ_CHECK(confirm_purge(call, queue_session));
    ProgressLine progress(call.dependencies.clock);
    // Removes only the initial number of entries, so that the loop ends while other clients submit jobs.
    while (removed_count < queue_session.entries) {
      const auto batch =
          static_cast<std::uint32_t>(std::min<std::uint64_t>(kMaxPurgeBatch, queue_session.entries - removed_count));
      MJ_TRY(count, queue_session.session.store->purge_queue(call.context(), queue_session.queue, batch));
      if (count == 0) break;
      removed_count += count;
      progress.show("purging " + queue_session.queue, removed_count, queue_session.entries);
    }
  }
  return print_answer(call, {{"queue", queue_session.queue}, {"purged", removed_count}},
                      removed_count == 0 ? queue_session.queue + " is empty"
                                         : fmt::format("{} entries of {} were removed and their jobs cancelled",
                                                       removed_count, queue_session.queue));
}

// mycojobs queue dead

namespace {

constexpr std::size_t kMaxDeadLetters = 200000;  // larger than the list's maximum length

Result<int> list_dead_letters(Invocation& call, const service::RequestContext& caller, Store& store) {
  MJ_TRY(limit, parse_count_flag(call, "limit", 50));
  MJ_TRY(letters, service::dead_letters(caller, store, std::min<std::uint64_t>(limit, kMaxDeadLetters) + 1));
  const bool has_older = letters.size() > limit;
  if (has_older) letters.erase(letters.begin());  // removes the oldest
  nlohmann::json array = nlohmann::json::array();
  TableRows rows{{"ID", "JOB", "QUEUE", "REASON", "WHEN"}};
  for (const DeadLetter& letter : letters) {
    array.push_back({{"id", letter.id},
                     {"job", letter.job_key},
                     {"queue", letter.queue},
                     {"reason", letter.reason},
                     {"at_ms", letter.at_ms}});
    rows.push_back({letter.id, to_printable(letter.job_key.substr(0, 80)), to_printable(letter.queue),
                    paint(OutputStyle::bad, to_printable(letter.reason)), format_time(letter.at_ms)});
  }
  print_listing(call, array, rows);
  if (has_older && !call.json) print_message("there are older ones; --limit shows them");
  return 0;
}

Error add_letter_id(const Error& error, const std::string& id) {
  // A retry cannot resolve this conflict.
  const Code code = error.code == Code::conflict ? Code::invalid : error.code;
  return {code, fmt::format("dead letter {}: {}", id, error.message)};
}

Result<int> complete_dead_letter(Invocation& call, const service::RequestContext& caller, Store& store,
                                 const std::string& id, bool requeue) {
  auto result = service::settle_dead_letter(caller, store, id, requeue);
  if (!result && result.error().code == Code::not_found) {
    return fail(Code::not_found, result.error().message + "; `mycojobs queue dead` lists all dead letters");
  }
  if (!result) return tl::unexpected(add_letter_id(result.error(), id));
  const std::string outcome = requeue ? "requeued" : "dropped";
  return print_answer(call, {{"id", id}, {"done", outcome}}, fmt::format("dead letter {} is {}", id, outcome));
}

// Requeues the dead letters that are listed now, and continues after those that cannot be requeued.
Result<int> requeue_dead_letters(Invocation& call, const service::RequestContext& caller, Store& store) {
  MJ_TRY(letters, service::dead_letters(caller, store, kMaxDeadLetters));
  ProgressLine progress(call.dependencies.clock);
  std::uint64_t requeued_count = 0;
  nlohmann::json rejected = nlohmann::json::array();
  for (const DeadLetter& letter : letters) {
    progress.show("requeuing", requeued_count + rejected.size(), letters.size());
    auto result = service::settle_dead_letter(caller, store, letter.id, true);
    if (result) {
      ++requeued_count;
      continue;
    }
    const Code code = result.error().code;
    if (code == Code::not_found) continue;  // another client was faster
    if (code != Code::conflict && code != Code::invalid)
      return tl::unexpected(add_letter_id(result.error(), letter.id));
    rejected.push_back({{"id", letter.id}, {"job", letter.job_key}, {"error", result.error().message}});
    if (!call.json) print_message(add_letter_id(result.error(), letter.id).message);
  }
  if (call.json) {
    print_json({{"requeued", requeued_count}, {"refused", rejected}});
  } else {
    print(fmt::format("{} requeued, {} left\n", requeued_count, rejected.size()));
  }
  return rejected.empty() ? 0 : 1;
}

}  // namespace

Result<int> queue_dead_command(Invocation& call) {
  const int action_count =
      (call.has("requeue") ? 1 : 0) + (call.has("requeue-all") ? 1 : 0) + (call.has("drop") ? 1 : 0);
  if (action_count > 1) return fail(Code::invalid, "--requeue, --requeue-all and --drop: use only one of them");
  MJ_TRY(caller, request_context(call));
  MJ_TRY(session, open_store_for_query(call));
  if (call.has("requeue")) return complete_dead_letter(call, caller, *session.store, call.get("requeue"), true);
  if (call.has("drop")) return complete_dead_letter(call, caller, *session.store, call.get("drop"), false);
  return call.has("requeue-all") ? requeue_dead_letters(call, caller, *session.store)
                                 : list_dead_letters(call, caller, *session.store);
}

}  // namespace mycojobs
