#include "cli/artifact_download.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <future>
#include <utility>

#include "base/errno_text.h"
#include "base/fd.h"
#include "base/random.h"
#include "cli/artifact_output.h"
#include "store/transfer_store.h"

namespace mycojobs {

// A received file. Its name is removed directly after the file was created, so that the kernel deletes the file when
// this process ends, even after a crash.
class ArtifactDownload::Target final : public FileTarget {
 public:
  explicit Target(std::string folder) : folder_(std::move(folder)) {}
  Result<std::string> create_path() override { return folder_ + "/.mycojobs-" + random_hex(8); }
  Result<void> on_created(const std::string& path) override {
    fd_.reset(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
    const int open_errno = errno;
    (void)::unlink(path.c_str());
    if (!fd_) return fail(Code::io, path + ": " + errno_text(open_errno));
    return {};
  }
  Result<void> store(const CompleteFile&) override { return {}; }
  std::string path() const { return get_open_file_path(fd_.get()); }

 private:
  std::string folder_;
  Fd fd_;
};

Result<std::unique_ptr<ArtifactDownload>> ArtifactDownload::open(StoreFactory& stores, Id context, const Clock& clock,
                                                                 std::string folder,
                                                                 std::shared_ptr<const ArtifactBucket> bucket,
                                                                 std::shared_ptr<const Networks> link_networks) {
  std::unique_ptr<ArtifactDownload> download(new ArtifactDownload(std::move(folder)));
  MJ_TRY(store, stores.open_reader());
  download->store_ = std::move(store);
  // Checks the permission with an empty message, which no process receives: ids of processes are random. Without the
  // check, a command of a user that may not use these channels would wait until the transfer times out.
  const std::string channel = transfer_channel(download->store_->database_number(context), std::string(32, '0'));
  if (const auto sent = download->store_->publish_transfer(context, channel, ""); !sent) {
    if (sent.error().code != Code::denied) return tl::unexpected<Error>(sent.error());
    return fail(Code::denied,
                "this Redis user may not request artifacts of other hosts, as users of the role `reader`: use one of "
                "the role `operator` (`context acl`): " +
                    sent.error().message);
  }
  TransferLoop::Settings settings;
  settings.contexts = {context};
  settings.state_dir = download->folder_;
  settings.link_networks = std::move(link_networks);
  download->loop_ = std::make_unique<TransferLoop>(*download->store_, std::move(settings), clock);
  MJ_CHECK(download->loop_->subscribe(stores));
  download->source_.emplace(std::move(bucket), *download->loop_);
  download->thread_.emplace(*download->loop_, "transfers");
  MJ_CHECK(download->thread_->started());
  return download;
}

Result<std::string> ArtifactDownload::fetch(const RemoteArtifact& artifact) {
  target_ = std::make_shared<Target>(folder_);
  const auto promise = std::make_shared<std::promise<FetchEnd>>();
  auto future = promise->get_future();
  source_->fetch(artifact, target_, [promise](FetchEnd fetch_end) { promise->set_value(std::move(fetch_end)); });
  const FetchEnd fetch_end = future.get();
  switch (fetch_end.status) {
    case FetchStatus::received:
      return target_->path();
    case FetchStatus::away:
    case FetchStatus::busy:
    case FetchStatus::storage_away:
      return fail(Code::unavailable, fetch_end.reason);
    case FetchStatus::lost:
      return fail(Code::not_found, fetch_end.reason);
    case FetchStatus::damaged:
    case FetchStatus::failed:
      return fail(Code::io, fetch_end.reason);
  }
  return target_->path();
}

}  // namespace mycojobs
