#include "cli/artifact_download.h"

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <utility>

#include "base/errno_text.h"

namespace mycojobs {
namespace {

// A file in a folder of the process.
class DownloadTarget final : public FileTarget {
 public:
  explicit DownloadTarget(std::string path) : path_(std::move(path)) {}
  Result<std::string> create_path() override { return path_; }
  Result<void> store(const CompleteFile&) override { return {}; }

 private:
  std::string path_;
};

Result<std::string> make_temporary_folder() {
  std::error_code error;
  std::filesystem::path parent = std::filesystem::temp_directory_path(error);
  if (error) return fail(Code::io, "the folder for temporary files (TMPDIR): " + error.message());
  std::string path = (parent / "mycojobs-XXXXXX").string();
  if (::mkdtemp(path.data()) == nullptr) return fail(Code::io, path + ": " + errno_text(errno));
  return path;
}

}  // namespace

Result<std::unique_ptr<ArtifactDownload>> ArtifactDownload::open(StoreFactory& stores, Id context, const Clock& clock) {
  MJ_TRY(folder, make_temporary_folder());
  std::unique_ptr<ArtifactDownload> download(new ArtifactDownload(folder));
  MJ_TRY(store, stores.open_reader());
  download->store_ = std::move(store);
  TransferLoop::Settings settings;
  settings.contexts = {context};
  settings.state_dir = folder;
  download->loop_ = std::make_unique<TransferLoop>(*download->store_, std::move(settings), clock);
  MJ_CHECK(download->loop_->subscribe(stores));
  download->thread_.emplace(*download->loop_, "transfers");
  MJ_CHECK(download->thread_->started());
  return download;
}

ArtifactDownload::~ArtifactDownload() {
  thread_.reset();
  loop_.reset();
  std::error_code ignored_error;
  std::filesystem::remove_all(folder_, ignored_error);
}

Result<std::string> ArtifactDownload::fetch(const RemoteArtifact& artifact) {
  const std::string path = folder_ + "/artifact";
  std::error_code ignored_error;
  std::filesystem::remove(path, ignored_error);
  const auto promise = std::make_shared<std::promise<FetchEnd>>();
  auto future = promise->get_future();
  loop_->fetch(artifact, std::make_shared<DownloadTarget>(path),
               [promise](FetchEnd fetch_end) { promise->set_value(std::move(fetch_end)); });
  const FetchEnd fetch_end = future.get();
  switch (fetch_end.status) {
    case FetchStatus::received:
      return path;
    case FetchStatus::away:
    case FetchStatus::busy:
      return fail(Code::unavailable, fetch_end.reason);
    case FetchStatus::lost:
      return fail(Code::not_found, fetch_end.reason);
    case FetchStatus::damaged:
    case FetchStatus::failed:
      return fail(Code::io, fetch_end.reason);
  }
  return path;
}

}  // namespace mycojobs
