// Links to files of a holder, by which other processes download the files over HTTPS. The holder publishes a link on
// the channel of the receiver (transfer_message.h), so the request through Redis is authorised as the request for a
// piece.
//
//   request for a link --> HeldFileLinks::create()     opens the file
//   GET /files/... -->     HeldFileLinks::consume()    returns the open file; the link is not valid any more
//
// A link has a random ticket for one open file. It is valid once, and for kLifetimeMs. It names the public key of the
// server, so that the receiver needs no CA.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "artifacts/artifact_store.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/result.h"
#include "model/records.h"

namespace mycojobs {

struct FileLink {
  std::string address;            // "host:port" of the server
  std::string ticket;             // kTicketDigits hex digits
  std::string server_key_sha256;  // of the public key, 64 hex digits
};
// Returns whether the members of a received link have the required form.
bool is_valid_link(const FileLink&);
std::string format_link_url(const FileLink&);

// Deadlines of the steps before the first byte of a download, in ms. After each of them, the file is received through
// Redis.
struct LinkTimes {
  std::uint64_t reply_ms = 1000;        // for the reply to the request for a link
  std::uint32_t connect_ms = 2000;      // for the connection and its TLS handshake
  std::uint64_t first_piece_ms = 8000;  // from the link to the first piece; less than the silence that ends a transfer
};

// Path of the server for all links; the parameter `ticket` of the query has the ticket.
inline constexpr const char* kFileLinkPath = "/files";

// The open links of a process. Thread-safe.
class HeldFileLinks {
 public:
  static constexpr std::uint64_t kLifetimeMs = 30000;
  // Open files. A receiver fetches a few files at a time, so only a client that floods the channel reaches the limits.
  static constexpr std::size_t kMaxLinks = 256, kMaxLinksOfContext = 64;
  static constexpr std::size_t kTicketDigits = 32;

  // REQUIRES: the clock outlives the object.
  explicit HeldFileLinks(const Clock& clock) : clock_(clock) {}
  // Called by the server when it accepts connections. address: the address at which other hosts reach it.
  // read_key_sha256: returns the hash of its current public key; called by any thread. Without this call, create()
  // returns no link.
  void set_server(std::string address, std::function<Result<std::string>()> read_key_sha256);

  // Creates a link for an open file. Returns no value without a server, or if too many links are open.
  std::optional<FileLink> create(Id context, Fd file, const FileContent&);
  // Returns the context of the file of a ticket, or no value if the ticket is not valid.
  std::optional<Id> find_context(const std::string& ticket);
  struct HeldFile {
    Id context = 0;
    Fd fd;
    std::uint64_t bytes = 0;
  };
  // Returns the file of a ticket, which is not valid any more, or no value if the ticket is not valid.
  std::optional<HeldFile> consume(const std::string& ticket);
  // Closes the files of expired links. Returns the time in ms until the next link expires, at most kLifetimeMs.
  std::uint64_t close_expired();

 private:
  struct OpenLink {
    HeldFile file;
    std::uint64_t expiry_ms = 0;
  };
  // Removes the expired links and returns their files, which are closed without the lock, since closing can block.
  // REQUIRES: the lock is held.
  std::vector<HeldFile> remove_expired(std::uint64_t now_ms);

  const Clock& clock_;
  std::mutex mutex_;
  // Guarded by mutex_:
  std::string address_;
  std::function<Result<std::string>()> read_key_sha256_;
  // By the SHA-256 of the ticket, so that the time of a search does not depend on the digits of a ticket.
  std::map<std::string, OpenLink> links_;
};

}  // namespace mycojobs
