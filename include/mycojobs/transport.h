// Port: how messages reach other runners and contexts. `local` serves contexts that share a store
// (agent/transport/local.h); others carry them over networks. A message stays with the transport until it is settled:
// receiving it twice is possible, losing it is not.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "mycojobs/records.h"
#include "mycojobs/result.h"

namespace mycojobs {

struct Delivery {
  Id context = 0;
  std::string message_key;
};

class Transport {
 public:
  virtual ~Transport() = default;
  virtual std::string_view name() const = 0;
  // Messages that wait on the topic, in every context served, oldest first within each.
  virtual Result<std::vector<Delivery>> receive(const std::string& topic) = 0;
  // Stores the message in its context and hands it to the topic.
  virtual Result<void> send(const Message&, const std::string& topic) = 0;
};

}  // namespace mycojobs
