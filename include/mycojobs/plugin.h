/* A plugin adds an executor to an agent: a shared object in the plugin folder that exports one symbol,
 *
 *   const struct mycojobs_plugin mycojobs_plugin = {MYCOJOBS_PLUGIN_ABI, sizeof(struct mycojobs_plugin), "awk", ...};
 *
 * C99, and C++ as well. docs/executors/plugins.md is the guide, examples/plugin a whole one.
 *
 * Where it runs. mycojobs-pluginhost loads it: one process for each plugin, without environment, secrets, network or
 * the right to write a file, start a process or a thread. Each function is called by one thread, one call at a time,
 * under a deadline: 5 s for loading and probe, 2 s for prepare, 1 s for interpret. A call that crashes, exits, throws
 * or takes longer ends that process and never the agent; it is started again for the next call. So a plugin keeps
 * nothing between calls that it needs. The scripts do not run there: the plugin says which program runs them, and that
 * program runs in the job's sandbox.
 *
 * Texts. All of them are UTF-8 and end with NUL. What is passed to a function belongs to the caller and is gone when
 * the function returns. What a function returns belongs to the plugin, which gets it back by release(), once and before
 * the next call; a text that was never allocated is returned as it is, and release() leaves it alone. At most
 * MYCOJOBS_PLUGIN_MAX_REPLY bytes. Sizes, depth and types are checked, and a name that is not listed below is an error.
 */
#ifndef MYCOJOBS_PLUGIN_H
#define MYCOJOBS_PLUGIN_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Raised when the structure or the meaning of a text changes. An agent says which versions it takes, and refuses others
 * by name: `mycojobs plugin check FILE` tells. */
#define MYCOJOBS_PLUGIN_ABI 1u
#define MYCOJOBS_PLUGIN_MAX_REPLY (4u << 20)

/* NOLINTNEXTLINE(readability-identifier-naming): a name of C */
struct mycojobs_plugin {
  uint32_t abi;         /* MYCOJOBS_PLUGIN_ABI */
  uint32_t struct_size; /* sizeof(struct mycojobs_plugin) */

  const char* name;                /* of the executor: 1 to 32 of a-z, 0-9, '_' and '-', a letter first */
  const char* version;             /* its own, for people: "1.2.0"; 1 to 64 printable characters */
  const char* const* script_types; /* NULL behind the last; 1 to 16, spelled as names are. It serves queue:<each> */

  /* What a job has that asks for nothing: a policy as in the manual, {"memory": "64 MiB", "net": "none"}. What it does
   * not name is as in the profile of programs. The operator's ceiling lowers what is above it. NULL: it asks for
   * nothing more. */
  const char* profile;

  /* Can the scripts run on this host?  -> {"runs": "mawk 1.3.4"} or {"error": "no /usr/bin/mawk: apt install mawk"} */
  char* (*probe)(void);

  /* How is this job to be run? Called before each attempt.
   *
   *   job      {"id": 7, "caller_id": 12, "context_id": 1, "name": "sum", "attempt": 1, "script_type": "awk",
   *             "script": "...", "environment": {"NAME": "value"}, "timeout": 60 or null,
   *             "deadline_unix_ms": 1790000000000, "inputs": {"other job": {"key": "value"}, "node with each":
   *             [{"key": "value"}, ...]}, "flow": {} or what its flow hands over, as in $MYCOJOBS_FLOW}
   *   reply    {"command": ["/usr/bin/mawk", "-f", "{script}"],         the program by its absolute path, and its
   *                                                                     arguments; {script} stands for the path of the
   *                                                                     script, which lies in the job's folder, /job
   *             "script_file": "script.awk",                            its name there; "script" if it is not named
   *             "environment": {"NAME": "value"},                       added to the job's own, which wins
   *             "files": {"lib/prelude.awk": {"text": "..."},           put below /job before the program starts;
   *                       "table.bin": {"base64": "...", "mode": "0600"}}, mode 0644 if it is not named
   *             "notes": ["a line for the job's log"]}
   *         or {"error": "...", "field": "script"}                      this job can never run; field: which of the
   *                                                                     job's is at fault
   * Only command must be there. */
  char* (*prepare)(const char* job);

  /* What does the program's end mean? NULL if the default is right: code 0 is a success, every other an error that
   * shows the last lines of stderr. Called when the program ended by itself; limits and cancellations are not asked.
   *
   *   outcome  {"job": {id, caller_id, context_id, name, attempt and script_type as in prepare}, "status": "ok", "exit"
   *             or "signal", "exit_code": 0, "signal": 0, "stderr": "its last 64 KiB", "result": {"key": "value"}, each
   *             value as text, "usage": {"wall_us": 1, "user_us": 1, "system_us": 1, "memory_peak_bytes": 1,
   *             "pids_peak": 1, "stdout_bytes": 1, "stderr_bytes": 1}}
   *   reply    {"result": {"key": "value"}}                             the job has finished with this result; not
   *                                                                     after a signal
   *         or {"error": {"type": "SyntaxError", "message": "...", "line": 3, "retry": false}}
   *                                                                     it failed; only message must be there. retry:
   *                                                                     false, never again; a number, the next attempt
   *                                                                     after so many seconds
   *         or {} or NULL                                               the default */
  char* (*interpret)(const char* outcome);

  /* Takes back a text that one of the functions above returned. */
  void (*release)(char* text);
};

#if defined(__GNUC__)
#define MYCOJOBS_PLUGIN_EXPORT __attribute__((visibility("default")))
#else
#define MYCOJOBS_PLUGIN_EXPORT
#endif

#define MYCOJOBS_PLUGIN_SYMBOL "mycojobs_plugin"
/* The one symbol: the plugin defines it. */
extern MYCOJOBS_PLUGIN_EXPORT const struct mycojobs_plugin mycojobs_plugin;

#ifdef __cplusplus
}
#endif

#endif
