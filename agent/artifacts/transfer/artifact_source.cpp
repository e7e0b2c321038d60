#include "artifacts/transfer/artifact_source.h"

namespace mycojobs {

const char* to_word(FetchStatus status) {
  switch (status) {
    case FetchStatus::received:
      return "received";
    case FetchStatus::away:
      return "away";
    case FetchStatus::busy:
      return "busy";
    case FetchStatus::lost:
      return "lost";
    case FetchStatus::damaged:
      return "damaged";
    case FetchStatus::failed:
      return "failed";
    case FetchStatus::storage_away:
      return "storage_away";
  }
  return "";
}

}  // namespace mycojobs
