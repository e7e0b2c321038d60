// mycojobs run FILE
#include "cli/commands.h"
#include "cli/follow.h"
#include "cli/serve.h"
#include "cli/served.h"
#include "cli/submission.h"
#include "cli/terminal.h"

namespace mycojobs {
namespace {

Result<int> run(const Invocation& call) {
  MJ_TRY(submission, read_submission(call));
  MJ_TRY(opened, open_store(call, true));
  MJ_CHECK(check_served(call, *opened.store, {submission.job.script_type}));
  MJ_TRY(submitted, submit(call, opened, std::move(submission), true));
  MJ_TRY(ended, follow_to_the_end(call, opened, redis_key(submitted), true));
  // Others may have sent jobs to our private server meanwhile; what is queued stays there for the next.
  if (opened.session.agent) let_finish(*opened.session.agent);
  return exit_code(ended);
}

}  // namespace

int run_command(Invocation& call) { return finish(run(call)); }

}  // namespace mycojobs
