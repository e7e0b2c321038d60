// Uploads of files that are too large to be stored with a job (model/upload.h), for `run` and `job submit`: into the
// state folder of this host, if the command uses its Redis, or else to a coordinator.
#pragma once

#include <string>

#include "base/result.h"
#include "cli/invocation.h"
#include "model/upload.h"
#include "store/store.h"

namespace mycojobs {

// Returns --url or COORDINATOR_URL. An empty text: the command has no address of a coordinator.
std::string find_upload_url(const Invocation&);
// Uploads a file for jobs of the caller. Errors: not_found, invalid and io (the file), too_large (the command has
// neither a state folder with the Redis of the jobs nor the address of a coordinator; the message has the remedy), and
// those of the coordinator or the store. The errors begin with the path.
Result<UploadReference> upload_file(const Invocation&, Store&, const std::string& path, Id caller);

}  // namespace mycojobs
