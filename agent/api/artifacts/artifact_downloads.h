// Sends artifacts of jobs to HTTP clients: from the disk of this host, or from the runner that has them.
//
//   GET /artifacts?context=1&job=12:7&name=report.txt                               with a token
//   GET /artifacts?context=1&job=12:7&name=report.txt&sha256=...&ticket=...         with a ticket of artifact.get
//
// A download occupies the thread of its connection and one block of memory. It holds no connection to the store while
// it waits or sends. The answer can be neither displayed nor executed in the origin of this server by a browser.
// Thread-safe.
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

class ArtifactDownloads {
 public:
  // The services must outlive this object.
  ArtifactDownloads(Services&, StoreFactory&);

  // Returns whether the request has a ticket in place of a token.
  static bool has_ticket(const HttpRequest&);
  // Returns the caller for which the ticket of the request was created. Error denied.
  Result<RpcCaller> check_ticket(const HttpRequest&) const;
  // Checks the caller's rights and returns the file as a stream, or an error.
  HttpReply make_reply(const HttpRequest&, const RpcCaller&);

 private:
  // One file that a client has requested.
  struct Download;
  Result<Download> find_file(const HttpRequest&, const RpcCaller&) const;
  // Opens the file on this host, or starts to fetch it and waits for its first bytes. Errors: those of
  // IncomingArtifact::read().
  Result<void> open_file(const HttpRequest&, Download&, Id actor);
  Result<void> wait_for_transfer(const HttpRequest&, Download&, Id actor);
  void send(const Download&, EventSink&) const;

  Services& services_;
  std::unique_ptr<ArtifactFetcher> fetcher_;  // null without a state_dir
};

// Returns the path and query of a file, to which a ticket can be appended.
std::string format_artifact_path(const TicketObject&);

}  // namespace mycojobs::api
