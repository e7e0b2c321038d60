#include "artifacts/recorded_artifacts.h"

#include <array>
#include <string_view>
#include <utility>

#include "model/artifact.h"
#include "model/codec.h"

namespace mycojobs {

Result<std::optional<RecordedArtifacts>> read_recorded_artifacts(RecordStore& store, Id context,
                                                                 const std::string& job_key) {
  static constexpr std::array<std::string_view, 2> kFields = {"status", "artifacts"};
  auto fields = store.load_fields(context, job_key, kFields);
  if (!fields && fields.error().code == Code::not_found) return RecordedArtifacts{true, {}};
  // Another client has replaced the record by another type.
  if (!fields && fields.error().code == Code::invalid) return std::nullopt;
  if (!fields) return tl::unexpected<Error>(std::move(fields).error());
  const Job job = decode<Job>(*fields).record;
  const std::string_view status = field_of(*fields, "status");
  if (status != kJobStatusFinished && status != kJobStatusError) return std::nullopt;
  RecordedArtifacts recorded;
  for (const ListedArtifact& artifact : read_artifact_list(job.artifacts)) recorded.hashes.insert(artifact.sha256);
  return recorded;
}

}  // namespace mycojobs
