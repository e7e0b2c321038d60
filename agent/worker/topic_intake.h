// Messages for this runner: each becomes job records on the runner's own queue, once, so that the jobs run here.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mycojobs/store_roles.h"
#include "store/job_fields.h"

namespace mycojobs {

// What it does to a store.
using TopicStore = RolesOf<RecordStore, MessageStore>;

class TopicIntake {
 public:
  explicit TopicIntake(const Runner& runner) : topic_(runner.topic), queue_(runner_queue(runner.id)) {}

  // hints: message keys that were published on the topic; a channel knows no contexts, so each is looked for in all.
  // What waits on the durable list is taken too. false: look again, the store went away.
  bool take(const TopicStore&, const std::vector<Id>& contexts, const std::vector<std::string>& hints);

 private:
  bool take_one(const TopicStore&, Id context, const std::string& message_key, bool& found);
  bool refuse(MessageStore&, Id context, const std::string& message_key, const std::string& why);

  std::string topic_, queue_;
};

}  // namespace mycojobs
