#include "cli/commands.h"

namespace mycojobs {

const std::vector<Command>& commands() {
  static const std::vector<Command> kTable = {
      {"agent", "serve the queues of a Redis as a runner, until TERM", "", {}, agent_command, true},
      {"dev", "keep the embedded default running: a private Redis and an agent", "", {}, dev_command, true},
      {"run",
       "run one script as a job: follow its log, print its result and receipt, reflect its exit",
       "FILE",
       {{"env", "NAME=VALUE", "a variable of the job's environment", true},
        {"timeout", "DURATION", "the job's wall-clock limit, as in 30s"},
        {"type", "NAME", "script type (default: by the file's name)"},
        {"name", "TEXT", "a name for the job"},
        {"caller", "ID", "the actor who submits (default 1)"}},
       run_command},
      {"job list",
       "list jobs, newest first",
       "",
       {{"status", "WORD", "only jobs of this status"}, {"limit", "N", "at most so many (default 50)"}},
       job_list_command},
      {"job show", "show everything about one job", "JOB", {}, job_show_command},
      {"job logs", "print a job's log", "JOB", {{"follow", "", "go on until the job ends"}}, job_logs_command},
      {"doctor",
       "try each layer of the sandbox and the Redis settings, and name the remedy for what is missing",
       "",
       {},
       doctor_command},
      {"config print", "print every setting, its value and where it came from", "", {}, config_print_command},
      {"config check", "check a configuration file", "[FILE]", {}, config_check_command},
      {"completion", "print a completion script; bash is the one there is", "SHELL", {}, completion_command},
      {"version", "print the version", "", {}, version_command},
  };
  return kTable;
}

}  // namespace mycojobs
