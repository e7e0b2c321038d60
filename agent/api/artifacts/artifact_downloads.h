// Sends artifacts of jobs to HTTP clients. A file that is not on the disk of this host is fetched from the runner that
// has it. A request contains the token of its caller or a ticket, which the request artifact.get creates:
//
//   GET /artifacts?context=1&job=12:7&name=report.txt
//   GET /artifacts?context=1&job=12:7&name=report.txt&sha256=...&ticket=...
//
// A download occupies the thread of its connection and one block of memory. It holds no connection to the store while
// it waits or sends. The headers of the answer prevent a browser from displaying or executing the file in the origin of
// this server.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "api/artifacts/artifact_tickets.h"
#include "api/http/download_headers.h"
#include "api/http/http_message.h"
#include "api/services.h"
#include "artifacts/transfer/artifact_fetcher.h"
#include "base/fd.h"
#include "service/artifact_service.h"

namespace mycojobs::api {

inline constexpr std::string_view kArtifactPath = "/artifacts";

// Thread-safe.
class ArtifactDownloads {
 public:
  // REQUIRES: both services and the store factory outlive this object.
  ArtifactDownloads(Services&, StoreFactory&);

  // Returns true if the request is a download with a ticket and without a token.
  static bool has_ticket(const HttpRequest&);
  // Returns the ticket of the request; see ArtifactTickets::verify(). Error denied: its signature is wrong, it has
  // expired, or its caller is anonymous and no longer permitted.
  Result<Ticket> verify_ticket(const HttpRequest&) const;
  // Checks the caller's rights. Returns the requested range of the file as a stream, or the reply to an error.
  HttpReply make_reply(const HttpRequest&, const RpcCaller&);

 private:
  // The file that a client has requested, and how it is read.
  struct Download;
  // Returns the file that the query selects. Errors: invalid (the query), denied (the caller must not read the job),
  // not_found (the job, the artifact, or the content with this hash), those of the store.
  Result<Download> find_file(const HttpRequest&, const RpcCaller&) const;
  // Opens the file on this host, or starts to fetch it and waits until the range can be read. Errors: those of
  // IncomingArtifact::read(), and unavailable if the server stops or has closed the connection.
  Result<void> open_file(const HttpRequest&, Download&, Id actor);
  // Fetches the file from its runner and waits until the first byte of the range can be read.
  Result<void> wait_for_transfer(const HttpRequest&, Download&, Id actor);
  // Sends the range. After an error the stream ends early, which the client detects by the missing bytes.
  void send(const Download&, EventSink&) const;

  Services& services_;
  std::unique_ptr<ArtifactFetcher> fetcher_;  // null if the server has no state_dir
};

// Returns the path and query of the download of a file, without the parameter `ticket`.
std::string format_artifact_path(const TicketObject&);

}  // namespace mycojobs::api
