// mycojobs job submit FILE
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/submission.h"
#include "cli/terminal.h"
#include "domain/codec.h"
#include "inspect/jobs.h"

namespace mycojobs {
namespace {

Result<int> submit_only(const Invocation& call) {
  MJ_TRY(submission, read_submission(call));
  MJ_TRY(opened, open_store(call, false));
  MJ_TRY(submitted, submit(call, opened, std::move(submission), false));
  const std::string key = redis_key(submitted);
  if (call.json) {
    print(dump_json(to_json(JobView{key, submitted, {}}), 2) + "\n");
  } else {
    print(key + "\n");
  }
  if (opened.session.embedded) {
    say(fmt::format("{} waits in {}: `mycojobs dev` or any `mycojobs run` there runs it", key,
                    call.settings.state_dir));
  }
  return 0;
}

}  // namespace

int job_submit_command(Invocation& call) { return call.has("follow") ? run_command(call) : finish(submit_only(call)); }

}  // namespace mycojobs
