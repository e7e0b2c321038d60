// mycojobs runner list
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/session.h"
#include "cli/terminal.h"
#include "domain/codec.h"
#include "inspect/explain.h"
#include "inspect/runners.h"

namespace mycojobs {
namespace {

std::string state_of(const RunnerInfo& info, std::uint64_t silent_ms) {
  switch (presence(info)) {
    case Presence::live:
      return paint(Tone::good, "live");
    case Presence::silent:
      return paint(Tone::bad, "silent for " + span_text(silent_ms));
    case Presence::left:
      return paint(Tone::faint, "left");
  }
  return "";
}

Result<int> list_runners(Invocation& call) {
  MJ_TRY(opened, open_to_answer(call));
  MJ_TRY(infos, opened.store->runners(context_of(call)));
  MJ_TRY(now, store_now_ms(*opened.store, context_of(call)));
  nlohmann::json array = nlohmann::json::array();
  std::vector<std::vector<std::string>> rows{
      {"RUNNER", "HOST", "PID", "SLOTS", "BUSY", "EXECUTORS", "LAST SEEN", "STATE"}};
  for (const RunnerInfo& info : infos) {
    const Runner& runner = info.runner;
    const std::uint64_t silent_ms = now - std::min(runner.seen_ms, now);
    array.push_back({{"id", runner.id},
                     {"host", info.hold.host},
                     {"pid", info.hold.pid},
                     {"slots", runner.slots},
                     {"claims", info.claims},
                     {"executors", runner.executors},
                     {"local", runner.local},
                     {"topic", runner.topic},
                     {"version", runner.version},
                     {"seen_ms", runner.seen_ms},
                     {"held_ms", info.held_ms},
                     {"state", word(presence(info))}});
    rows.push_back({std::to_string(runner.id), info.hold.host.empty() ? "-" : printable(info.hold.host),
                    info.hold.pid > 0 ? std::to_string(info.hold.pid) : "-", std::to_string(runner.slots),
                    std::to_string(info.claims), printable(fmt::format("{}", fmt::join(runner.executors, ","))),
                    runner.seen_ms == 0 ? "never" : span_text(silent_ms) + " ago", state_of(info, silent_ms)});
  }
  if (call.json) {
    print(dump_json(array, 2) + "\n");
  } else {
    print_table(rows);
  }
  return 0;
}

}  // namespace

int runner_list_command(Invocation& call) { return finish(list_runners(call)); }

}  // namespace mycojobs
