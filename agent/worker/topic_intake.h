// Messages for this runner: each becomes job records on the runner's own queue, once, so that the jobs run here.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "mycojobs/store_roles.h"
#include "store/job_fields.h"

namespace mycojobs {

// What it does to a store.
using TopicStore = RolesOf<RecordStore, MessageStore>;

class TopicIntake {
 public:
  // topic: that of the runner in a context.
  TopicIntake(Id runner, std::function<std::string(Id context)> topic)
      : topic_(std::move(topic)), queue_(runner_queue(runner)) {}

  // hints: message keys that were published on the topic; a channel knows no contexts, so each is looked for in all.
  // What waits on the durable list is taken too. false: look again, the store went away.
  bool take(const TopicStore&, const std::vector<Id>& contexts, const std::vector<std::string>& hints);

 private:
  bool take_one(const TopicStore&, Id context, const std::string& message_key, bool& found);
  bool refuse(MessageStore&, Id context, const std::string& message_key, const std::string& why);

  std::function<std::string(Id)> topic_;
  std::string queue_;
};

}  // namespace mycojobs
