// Messages between contexts that the same stores hold: a topic's durable list in each context's database.
#pragma once

#include <utility>
#include <vector>

#include "mycojobs/store.h"
#include "mycojobs/transport.h"

namespace mycojobs {

class LocalTransport final : public Transport {
 public:
  // The store must outlive this; same thread. receive() looks in these contexts, in this order.
  LocalTransport(MessageStore& store, std::vector<Id> contexts) : store_(store), contexts_(std::move(contexts)) {}

  std::string_view name() const override { return "local"; }
  Result<std::vector<Delivery>> receive(const std::string& topic) override;
  // Into the message's target_context, or else its context_id.
  Result<void> send(const Message&, const std::string& topic) override;

 private:
  MessageStore& store_;
  std::vector<Id> contexts_;
};

}  // namespace mycojobs
