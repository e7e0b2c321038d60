// The name of a folder of a coordinator as a holder of files (model/file_holder.h), in the file
// <state_dir>/contexts/<context>/holder. The name belongs to the folder, not to a process: it is the same after a
// restart, and coordinators that share the folder share the name. Only a folder that has received or uploaded files has
// the file, so that a coordinator is no holder of contexts without files.
#pragma once

#include <string>

#include "artifacts/artifact_folder.h"
#include "base/result.h"

namespace mycojobs {

// Returns the name of the folder. The first caller creates it. The folder is created if it does not exist. Error
// unavailable: the file cannot be written.
Result<std::string> find_or_create_holder_name(const ArtifactFolder&);
// Returns an empty text if the folder has no valid name.
std::string find_holder_name(const ArtifactFolder&);

}  // namespace mycojobs
