// The holder's side of transfers (transfer_message.h): reads requested pieces on a strand of the disk and publishes
// them at a limited rate. Links are created there, too. It has no state of a transfer, only requests that wait.
// Requests beyond a limit are dropped, since their receivers repeat them. Uses no clock: all times are arguments, in
// ms. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <set>
#include <string>

#include "artifacts/transfer/transfer_message.h"
#include "base/result.h"
#include "base/token_bucket.h"
#include "model/records.h"

namespace mycojobs {

class TransferSender {
 public:
  static constexpr std::size_t kMaxRequests = 1024;
  static constexpr std::size_t kMaxPiecesInMemory = 8;      // pieces that are being read or wait to be published
  static constexpr std::uint64_t kMaxRequestAgeMs = 10000;  // receivers have cancelled or repeated older requests

  struct Piece {
    Id context = 0;
    std::string channel, message;
    std::uint64_t bytes = 0;  // number of bytes of the file in the message
    std::string request_id;
  };
  struct Callbacks {
    // Reads a piece on the strand of the context's disk, and passes the result to on_read(). For a link, the result is
    // the complete message.
    std::function<void(Id context, const PieceRequest&)> read;
    std::function<void(const Piece&)> publish;
  };
  // rate: bytes published in a second; 0 means unlimited.
  TransferSender(std::uint64_t rate, Callbacks callbacks);

  void on_request(Id context, PieceRequest, std::uint64_t now_ms);
  // Receives the result of the callback `read`. Error not_found: the file does not exist. After another error nothing
  // is published.
  void on_read(Id context, const PieceRequest&, Result<std::string> bytes);
  // Publishes pieces and starts to read further ones. Returns the time in ms until the next call is due.
  std::uint64_t run(std::uint64_t now_ms);

 private:
  struct WaitingRequest {
    Id context = 0;
    PieceRequest request;
    std::uint64_t received_ms = 0;
  };
  static std::string get_request_id(const PieceRequest& request) {
    return request.transfer_id + ' ' + (request.is_link ? "link" : std::to_string(request.offset));
  }

  TokenBucket bucket_;  // bytes that may be published now
  Callbacks callbacks_;
  std::deque<WaitingRequest> requests_;
  // Ids of all requests whose pieces are not published yet: waiting requests, pieces being read, and read pieces.
  std::set<std::string> request_ids_;
  std::size_t reading_ = 0;
  std::deque<Piece> pieces_;
};

}  // namespace mycojobs
