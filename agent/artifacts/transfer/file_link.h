// Links to files of a process (the holder), with which other processes (the receivers) download the files over HTTPS. A
// receiver requests a link through Redis, with the same permissions as the request for a piece of a file. The holder
// publishes the link on the channel of the receiver (transfer_message.h).
//
//   request for a link --> HeldFileLinks::create()     opens the file
//   GET /files/... -->     HeldFileLinks::consume()    returns the open file; the link is not valid any more
//
// A link contains a random ticket for one open file, which is valid for one request within kLifetimeMs. The link also
// contains the hash of the public key of the server, so that the receiver needs no CA.
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
  std::string server_key_sha256;  // hash of the public key of the server, 64 hex digits
};
// Returns whether the members of a received link have a valid syntax.
bool is_valid_link(const FileLink&);
std::string format_link_url(const FileLink&);

// Time-outs of the steps before the first byte of a download. After a time-out, the file is received through Redis.
struct LinkTimes {
  std::uint64_t reply_ms = 1000;        // for the reply to the request for a link
  std::uint32_t connect_ms = 2000;      // for the connection and the TLS handshake
  std::uint64_t first_piece_ms = 8000;  // from the link to the first piece; less than TransferReceiver::kSilenceMs
};

// Path of all links. The ticket is the query parameter `ticket`.
inline constexpr const char* kFileLinkPath = "/files";

// The open links of a process. Thread-safe.
class HeldFileLinks {
 public:
  static constexpr std::uint64_t kLifetimeMs = 30000;
  // Limits of open files. A receiver fetches only a few files at the same time, so only a client that floods the
  // channel reaches the limits.
  static constexpr std::size_t kMaxLinks = 256, kMaxLinksOfContext = 64;
  static constexpr std::size_t kTicketDigits = 32;

  // REQUIRES: the clock outlives the object.
  explicit HeldFileLinks(const Clock& clock) : clock_(clock) {}
  // Sets the server of the links. Before this call, create() returns no link. address: the address at which other hosts
  // reach the server. read_key_sha256: thread-safe function that returns the hash of the current public key.
  void set_server(std::string address, std::function<Result<std::string>()> read_key_sha256);

  // Creates a link for an open file. Returns no value without a server, or if the number of links is at its limit.
  std::optional<FileLink> create(Id context, Fd file, const FileContent&);
  // Returns the context of the file of a ticket, or no value if the ticket is not valid.
  std::optional<Id> find_context(const std::string& ticket);
  struct HeldFile {
    Id context = 0;
    Fd fd;
    std::uint64_t bytes = 0;
  };
  // Returns the file of a ticket and invalidates the ticket. Returns no value if the ticket is not valid.
  std::optional<HeldFile> consume(const std::string& ticket);
  // Closes the files of expired links. Returns the time in ms until the next link expires, at most kLifetimeMs.
  std::uint64_t close_expired();

 private:
  struct OpenLink {
    HeldFile file;
    std::uint64_t expiry_ms = 0;
  };
  // Removes the expired links and returns their files. The caller closes the files after it has released mutex_, since
  // closing can block. REQUIRES: mutex_ is locked.
  std::vector<HeldFile> remove_expired(std::uint64_t now_ms);

  const Clock& clock_;
  std::mutex mutex_;
  // Guarded by mutex_:
  std::string address_;
  std::function<Result<std::string>()> read_key_sha256_;
  // Key: SHA-256 of the ticket, so that the time of a search reveals nothing about valid tickets.
  std::map<std::string, OpenLink> links_;
};

}  // namespace mycojobs
