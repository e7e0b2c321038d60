/* A plugin adds an executor to an agent. It is a shared object in the plugin folder that exports one symbol:
 *
 *   const struct mycojobs_plugin mycojobs_plugin = {MYCOJOBS_PLUGIN_ABI, sizeof(struct mycojobs_plugin), "awk", ...};
 *
 * This header is valid C99 and C++. Guide: docs/executors/plugins.md. Complete example: examples/plugin.
 *
 * Process. mycojobs-pluginhost loads the plugin, in one process per plugin. The process has no environment, secrets or
 * network, and cannot write files or start processes or threads. Each function is called on one thread, one call at a
 * time, with a deadline: 5 s for loading and probe, 2 s for prepare, 1 s for interpret. A call that crashes, exits,
 * throws or exceeds the deadline ends that process, but not the agent; the process is started again for the next call.
 * A plugin must therefore not rely on state between calls. The process does not run scripts: the plugin names the
 * program that runs them in the job's sandbox.
 *
 * Texts. All texts are UTF-8 and end with NUL. An argument belongs to the caller and is valid until the function
 * returns. A returned text belongs to the plugin; it is passed to release() once, before the next call, even if it was
 * not allocated, in which case release() ignores it. A reply has at most MYCOJOBS_PLUGIN_MAX_REPLY bytes. Sizes, depth
 * and types are checked. A name that is not listed below is an error.
 */
#ifndef MYCOJOBS_PLUGIN_H
#define MYCOJOBS_PLUGIN_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Incremented if the structure or the meaning of a text changes. An agent rejects plugins with an unsupported version;
 * `mycojobs plugin check FILE` reports it. */
#define MYCOJOBS_PLUGIN_ABI 1u
#define MYCOJOBS_PLUGIN_MAX_REPLY (4u << 20)

/* NOLINTNEXTLINE(readability-identifier-naming): C naming */
struct mycojobs_plugin {
  uint32_t abi;         /* MYCOJOBS_PLUGIN_ABI */
  uint32_t struct_size; /* sizeof(struct mycojobs_plugin) */

  const char* name;                /* of the executor: 1 to 32 of a-z, 0-9, '_' and '-', starting with a letter */
  const char* version;             /* of the plugin, for display: "1.2.0"; 1 to 64 printable characters */
  const char* const* script_types; /* 1 to 16, ended by NULL, spelled like name. The executor serves queue:<each> */

  /* Policy of a job without a request, as in the manual: {"memory": "64 MiB", "net": "none"}. Fields that are not named
   * are those of the profile of programs. Values above the operator's ceiling are lowered. NULL: no additions. */
  const char* profile;

  /* Checks whether scripts can run on this host. Reply: {"runs": "mawk 1.3.4"} or
   * {"error": "no /usr/bin/mawk: apt install mawk"} */
  char* (*probe)(void);

  /* Returns the command that runs a job. Called before each attempt.
   *
   *   job      {"id": 7, "caller_id": 12, "context_id": 1, "name": "sum", "attempt": 1, "script_type": "awk",
   *             "script": "...", "environment": {"NAME": "value"}, "args": ["a"], "timeout": 60 or null,
   *             "deadline_unix_ms": 1790000000000, "inputs": {"other job": {"key": "value"}, "node with each":
   *             [{"key": "value"}, ...]}, "flow": {} or the input from its flow, as in $MYCOJOBS_FLOW}
   *   reply    {"command": ["/usr/bin/mawk", "-f", "{script}"],         absolute path and arguments of the program;
   *                                                                     {script} is replaced by the path of the script
   *                                                                     in the job's folder, /job; args of the job
   *                                                                     follow the command
   *             "script_file": "script.awk",                            name of the script file; default "script"
   *             "environment": {"NAME": "value"},                       added; variables of the job have precedence
   *             "files": {"lib/prelude.awk": {"text": "..."},           written below /job before the program starts;
   *                       "table.bin": {"base64": "...", "mode": "0600"}}, default mode 0644
   *             "notes": ["a line for the job's log"]}
   *         or {"error": "...", "field": "script"}                      this job can never run; field: the invalid
   *                                                                     field of the job
   * Only command is mandatory. */
  char* (*prepare)(const char* job);

  /* Converts the end of the program to the end of the job. NULL selects the default: exit code 0 is a success, any
   * other end is an error with the last lines of stderr. Called only if the program ended without a limit or a
   * cancellation.
   *
   *   outcome  {"job": {id, caller_id, context_id, name, attempt and script_type as in prepare}, "status": "ok", "exit"
   *             or "signal", "exit_code": 0, "signal": 0, "stderr": "its last 64 KiB", "result": {"key": "value"}, with
   *             text values, "usage": {"wall_us": 1, "user_us": 1, "system_us": 1, "memory_peak_bytes": 1,
   *             "pids_peak": 1, "stdout_bytes": 1, "stderr_bytes": 1}}
   *   reply    {"result": {"key": "value"}}                             the job has finished with this result; invalid
   *                                                                     after a signal
   *         or {"error": {"type": "SyntaxError", "message": "...", "line": 3, "retry": false}}
   *                                                                     the job has failed; only message is mandatory.
   *                                                                     retry: false disables further attempts, a
   *                                                                     number is the delay of the next attempt in
   *                                                                     seconds
   *         or {} or NULL                                               the default */
  char* (*interpret)(const char* outcome);

  /* Releases a text that one of the functions above has returned. */
  void (*release)(char* text);
};

#if defined(__GNUC__)
#define MYCOJOBS_PLUGIN_EXPORT __attribute__((visibility("default")))
#else
#define MYCOJOBS_PLUGIN_EXPORT
#endif

#define MYCOJOBS_PLUGIN_SYMBOL "mycojobs_plugin"
/* The only exported symbol, defined by the plugin. */
extern MYCOJOBS_PLUGIN_EXPORT const struct mycojobs_plugin mycojobs_plugin;

#ifdef __cplusplus
}
#endif

#endif
