// One plugin. Each context has a host of its own, so that what one tenant's script does to the plugin is no other's
// concern; a few are kept, the ones that were used last. A host that dies, hangs or speaks nonsense is killed, and the
// next call starts another; after three faults in a row the plugin rests in that context (rest.h), and calls fail at
// once.
//
// Errors of its calls, by what the caller can do next:
//   unavailable   the plugin's fault: it says nothing about the job, which may be run again at once; or it rests: then
//   not
//                 before its pause is over (resting())
//   invalid       the plugin says that this job can never run, or on probe(), that this host cannot run its scripts
//   too_large     the job is more than a plugin can be told
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "base/fd.h"
#include "executors/plugin/host_process.h"
#include "executors/plugin/replies.h"
#include "executors/plugin/rest.h"
#include "mycojobs/clock.h"
#include "mycojobs/policy.h"
#include "mycojobs/records.h"
#include "mycojobs/result.h"

namespace mycojobs::plugin {

struct PluginOptions {
  std::string host;  // path of mycojobs-pluginhost
  std::string file;  // path of the plugin
  std::uint32_t load_ms = 5000, probe_ms = 5000, prepare_ms = 2000, interpret_ms = 1000;
  bool rests = true;  // after faults; false: each call is tried
};

// Safe to share between threads: calls of one context queue up.
class PluginClient {
 public:
  // Checks the file, loads it, checks the description. The file stays open: what is loaded again later is the same one,
  // also if another has been put in its place. Error: invalid or not_found, it is refused, with the remedy;
  // unavailable, it crashed, hung or ended its host; io.
  static Result<std::unique_ptr<PluginClient>> load(PluginOptions, const Clock&);

  const Description& description() const { return description_; }
  const Policy& profile() const { return profile_; }
  const std::string& file() const { return options_.file; }

  Result<std::string> probe();  // what runs the scripts, in one line
  Result<Prepared> prepare(Id context, std::string_view job_json);
  // Without interpret: nothing, at once.
  Result<Interpreted> interpret(Id context, std::string_view outcome_json);
  // Why it is not to be asked now; empty: it may be.
  std::string resting(Id context);

 private:
  struct Lane {  // of one context; 0: of none
    std::mutex mutex;
    std::unique_ptr<HostProcess> host;
    Rest rest;
    std::string last_fault;
    std::atomic<std::uint64_t> used_boot_ms = 0;
  };
  PluginClient(PluginOptions options, const Clock& clock) : options_(std::move(options)), clock_(clock) {}
  Lane& lane(Id context);
  std::string why_resting(const Lane&) const;
  Result<void> ensure_host(Lane&);
  void end_idle_hosts(const Lane& but);
  Result<std::string> ask(Lane&, WireKind, std::string_view text, std::uint32_t limit_ms);
  tl::unexpected<Error> fault(Lane&, const std::string& how, std::uint64_t began_boot_ms);
  template <class T>
  Result<T> understood(Lane&, Result<T>, std::string_view function);

  PluginOptions options_;
  const Clock& clock_;
  Fd opened_;
  Description description_;
  Policy profile_;

  std::mutex mutex_;  // of the map; a lane stays where it is
  std::map<Id, Lane> lanes_;
};

}  // namespace mycojobs::plugin
