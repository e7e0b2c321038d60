// Looks after the jobs that wait for prerequisites: settles those whose conditions are all met at one time, those that
// never will be, and those that have waited too long. What is looked at may be slow: whoever owns this has a thread for
// it (worker/prerequisite_checker.h, PrerequisiteThread in coordinator/coordinator.cpp). One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "domain/prerequisites.h"
#include "mycojobs/clock.h"
#include "mycojobs/store_roles.h"
#include "prerequisites/file_looks.h"
#include "prerequisites/seen_lately.h"

namespace mycojobs {

struct Curl;

// Looks at the network, many places at a time and none of them for long: does host:port accept a connection, does a URL
// answer below 400. Owned and called by one thread, which waits in wait(). No proxy, no redirection, no credential, and
// nothing of an answer but its number is read.
class Probes {
 public:
  static Result<std::unique_ptr<Probes>> open(const Clock&);
  ~Probes();
  Probes(const Probes&) = delete;
  Probes& operator=(const Probes&) = delete;

  // What was seen within the last few seconds; nothing: it is being looked at, or will be when it is asked for again.
  std::optional<bool> ask(const Condition&);
  // Returns when something has been seen, one of wake_fds is readable, or the time is over. True: ask again.
  bool wait(std::span<const int> wake_fds, std::uint32_t timeout_ms);

 private:
  struct Look;
  Probes(const Clock&, const Curl&, void* multi);
  bool take_finished();

  const Curl& curl_;
  void* multi_;  // libcurl's
  std::map<std::string, std::unique_ptr<Look>> under_way_;
  SeenLately seen_;
};

struct LookSettings {
  Looker looker = Looker::agent;
  std::vector<std::string> allowed;  // prerequisites.allow
  std::uint64_t timeout_ms = 0;      // 0: for ever
};

// What it does to a store.
using PrerequisiteStores = RolesOf<PrerequisiteStore, RecordStore, JournalStore>;

class PrerequisiteLook {
 public:
  PrerequisiteLook(PrerequisiteStores, const Clock&, LookSettings);

  // Jobs of the context whose turn it is. Returns when it is worth asking again, ms.
  Result<std::uint32_t> look(Id context);
  // Until something has been seen, wake_fd is readable, or the time is over; then the jobs that waited for what was
  // seen are judged. failed: the store did not take it; they are given out again.
  void wait(int wake_fd, std::uint32_t timeout_ms, const std::function<void(Id, const Error&)>& failed);

 private:
  enum class Seen { yes, no, later };  // later: it is being looked at

  Result<void> judge(Id context, AwaitedPrerequisites job);
  Result<std::vector<Condition>> read_conditions(const std::vector<std::string>& texts) const;
  // never: why it cannot come true any more.
  Result<Seen> see(Id context, const AwaitedPrerequisites&, const Condition&, std::string& never);
  Result<bool> may_read(Id context, Id caller, Id maker);
  Result<Seen> see_key(Id context, Id caller, const std::string& key);
  Result<Seen> see_flow(Id context, Id caller, const Condition&, std::string& never);
  Result<std::uint64_t> now_ms(Id context, const std::string& job_key);
  Seen see_network(const Condition&);
  static Seen seen_or_later(std::optional<bool>);
  bool wait_for_looks(int wake_fd, std::uint32_t timeout_ms);  // true: something has been seen

  PrerequisiteStores store_;
  const Clock& clock_;
  LookSettings settings_;
  FileLooks files_;
  std::unique_ptr<Probes> probes_;                                   // made when the first job needs it
  std::map<Id, std::uint32_t> again_ms_;                             // between two looks at one job
  std::map<std::pair<Id, std::string>, AwaitedPrerequisites> open_;  // jobs whose conditions are being looked at
};

}  // namespace mycojobs
