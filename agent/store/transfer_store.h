// Messages between agents and coordinators that transfer artifacts (artifacts/transfer/transfer_message.h). Nothing is
// stored: a message without a receiver is lost. Errors and thread-safety: store/store.h.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "model/file_holder.h"
#include "model/records.h"

namespace mycojobs {

class StoreConnection;

// Returns the channel on which a holder receives requests for files of the context in this database.
std::string transfer_channel(std::uint32_t database, const FileHolder&);
// Returns the channel on which a process receives artifacts. process_id: 32 random hex digits.
std::string transfer_channel(std::uint32_t database, const std::string& process_id);
// Returns whether the text is a channel of the second kind.
bool is_receiver_channel(std::uint32_t database, std::string_view channel);

class TransferStore {
 public:
  explicit TransferStore(StoreConnection& connection) : connection_(connection) {}

  // Publishes a message on a channel. Returns the number of connections that received it.
  Result<std::uint64_t> publish_transfer(Id context, const std::string& channel, std::string_view message);

 private:
  StoreConnection& connection_;
};

}  // namespace mycojobs
