// Processes the messages for this runner: each message becomes job records on the runner's own queue, once.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "store/job_fields.h"
#include "store/store.h"

namespace mycojobs {

class TopicIntake {
 public:
  // find_topic: returns the topic of the runner in a context.
  TopicIntake(Id runner, std::function<std::string(Id context)> find_topic)
      : find_topic_(std::move(find_topic)), queue_(runner_queue(runner)) {}

  // Processes the messages in `hints` and on the durable list. hints: message keys that were published on the topic; a
  // channel carries no context, so each key is searched in all contexts. Returns false if the store did not answer and
  // the call must be repeated.
  bool process(Store&, const std::vector<Id>& contexts, const std::vector<std::string>& hints);

 private:
  // Sets is_found if the context has a record of the message. Returns false if the store did not answer.
  bool process_message(Store&, Id context, const std::string& message_key, bool& is_found);
  bool reject_message(MessageStore&, Id context, const std::string& message_key, const std::string& reason);

  std::function<std::string(Id)> find_topic_;
  std::string queue_;
};

}  // namespace mycojobs
