// Receives uploaded files from HTTP clients (service/upload_service.h). The method artifact.put returns a link with a
// ticket; a request with the token of its caller needs no ticket:
//
//   PUT /artifacts?context=1&upload=<reference>&ticket=...       the body is the file
//
// The body is written to the disk as it arrives. A ticket is valid for the begin of one upload by its caller.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "api/artifacts/artifact_tickets.h"
#include "api/http/http_message.h"
#include "api/services.h"
#include "service/upload_service.h"

namespace mycojobs::api {

// Thread-safe.
class ArtifactUploads {
 public:
  explicit ArtifactUploads(Services& services) : services_(services) {}  // REQUIRES: services outlive the object

  // Returns true if the request is an upload with a ticket and without a token.
  static bool has_ticket(const HttpRequest&);
  // As ArtifactDownloads::verify_ticket().
  Result<Ticket> verify_ticket(const HttpRequest&) const;
  // Checks the caller's rights, and opens the file that receives the body.
  BodyStream open(const HttpRequest&, const RpcCaller&) const;

 private:
  class Receiver;
  Result<BodyStream> open_upload(const HttpRequest&, const RpcCaller&) const;
  Services& services_;
};

// Returns the name of the folder of a context as a holder of files. Error unsupported: the server has no state_dir.
Result<std::string> find_upload_holder(const ApiSettings&, Id context);
// Returns the object of the ticket of an upload.
TicketObject make_upload_ticket_object(Id context, const UploadReference&);
// Returns the path and query of an upload, without the parameter `ticket`.
std::string format_upload_path(Id context, const UploadReference&);

}  // namespace mycojobs::api
