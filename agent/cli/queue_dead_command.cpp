// mycojobs queue dead
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/ids.h"
#include "cli/commands.h"
#include "cli/opened.h"
#include "cli/progress_line.h"
#include "cli/terminal.h"
#include "domain/codec.h"
#include "inspect/runners.h"

namespace mycojobs {
namespace {

constexpr std::size_t kAll = 200000;  // more than are kept

Result<int> list(Invocation& call, Store& store) {
  std::uint64_t limit = 0;
  if (!parse_u64(call.get("limit", "50"), limit)) return fail(Code::invalid, "--limit: a whole number");
  MJ_TRY(letters, store.dead_letters(context_of(call), std::min<std::uint64_t>(limit, kAll) + 1));
  const bool more = letters.size() > limit;
  if (more) letters.erase(letters.begin());  // the oldest
  nlohmann::json array = nlohmann::json::array();
  std::vector<std::vector<std::string>> rows{{"ID", "JOB", "QUEUE", "REASON", "WHEN"}};
  for (const DeadLetter& letter : letters) {
    array.push_back({{"id", letter.id},
                     {"job", letter.job_key},
                     {"queue", letter.queue},
                     {"reason", letter.reason},
                     {"at_ms", letter.at_ms}});
    rows.push_back({letter.id, printable(letter.job_key.substr(0, 80)), printable(letter.queue),
                    paint(Tone::bad, printable(letter.reason)), moment_text(letter.at_ms)});
  }
  if (call.json) {
    print(dump_json(array, 2) + "\n");
  } else {
    print_table(rows);
    if (more) say("there are older ones; --limit shows them");
  }
  return 0;
}

Error explained(const Error& error, const std::string& id) {
  // Nothing that time would mend.
  const Code code = error.code == Code::conflict ? Code::invalid : error.code;
  return {code, fmt::format("dead letter {}: {}", id, error.message)};
}

Result<int> settle(Invocation& call, Store& store, const std::string& id, bool requeue) {
  auto settled = store.settle_dead_letter(context_of(call), id, requeue);
  if (!settled && settled.error().code == Code::not_found) {
    return fail(Code::not_found, settled.error().message + "; `mycojobs queue dead` lists those that there are");
  }
  if (!settled) return tl::unexpected(explained(settled.error(), id));
  const std::string done = requeue ? "requeued" : "dropped";
  print(call.json ? dump_json({{"id", id}, {"done", done}}) + "\n" : fmt::format("dead letter {} is {}\n", id, done));
  return 0;
}

// Those that are on the list now; one that cannot be requeued keeps no other from it.
Result<int> requeue_all(Invocation& call, Store& store) {
  MJ_TRY(letters, store.dead_letters(context_of(call), kAll));
  ProgressLine progress(call.parts.clock);
  std::uint64_t done = 0;
  nlohmann::json refused = nlohmann::json::array();
  for (const DeadLetter& letter : letters) {
    progress.show("requeuing", done + refused.size(), letters.size());
    auto settled = store.settle_dead_letter(context_of(call), letter.id, true);
    if (settled) {
      ++done;
      continue;
    }
    const Code code = settled.error().code;
    if (code == Code::not_found) continue;  // somebody else was faster
    if (code != Code::conflict && code != Code::invalid) return tl::unexpected(explained(settled.error(), letter.id));
    refused.push_back({{"id", letter.id}, {"job", letter.job_key}, {"error", settled.error().message}});
    if (!call.json) say(explained(settled.error(), letter.id).message);
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
  if (chosen > 1) return fail(Code::invalid, "--requeue, --requeue-all and --drop: give one of them");
  MJ_TRY(opened, open_to_answer(call));
  if (call.has("requeue")) return settle(call, *opened.store, call.get("requeue"), true);
  if (call.has("drop")) return settle(call, *opened.store, call.get("drop"), false);
  return call.has("requeue-all") ? requeue_all(call, *opened.store) : list(call, *opened.store);
}

}  // namespace

int queue_dead_command(Invocation& call) { return finish(dead(call)); }

}  // namespace mycojobs
