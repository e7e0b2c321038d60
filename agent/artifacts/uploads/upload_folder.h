// The folders of uploaded files on the host of a coordinator, in <state_dir>/contexts/<context>/ :
//
//   uploads/<store>/<upload id>/part        a file that is being received; the receiver holds its lock
//   uploads/<store>/<upload id>/<sha256>    the complete file with a verified hash
//
// <store>: artifact_store_name() (artifacts/job_artifacts.h).
#pragma once

#include <string>
#include <vector>

#include "artifacts/artifact_folder.h"

namespace mycojobs {

inline std::string uploads_folder(const ArtifactFolder& folder) { return folder.path() + "/uploads"; }
inline std::string uploads_folder(const ArtifactFolder& folder, const std::string& store) {
  return uploads_folder(folder) + '/' + store;
}
// REQUIRES: is_upload_id(id).
inline std::string upload_folder(const ArtifactFolder& folder, const std::string& store, const std::string& id) {
  return uploads_folder(folder, store) + '/' + id;
}

}  // namespace mycojobs
