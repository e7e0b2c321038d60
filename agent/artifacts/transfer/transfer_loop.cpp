#include "artifacts/transfer/transfer_loop.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "artifacts/artifact_folder.h"
#include "artifacts/job_artifacts.h"
#include "artifacts/transfer/log_request.h"
#include "base/errno_text.h"
#include "base/log.h"
#include "base/random.h"

namespace mycojobs {
namespace {

// Minimum time between two reads of the names of the store, so that requests for unknown files do not flood the store.
constexpr std::uint64_t kMinStoreNamesMs = 1000;
constexpr std::uint64_t kMissingThreadsPauseMs = 1000;

// Reads a piece of a file from the first folder that contains the file with the requested size. For a request of a
// link, creates the link and returns the encoded message. links: null if this process has no HTTPS listener.
// is_expected: the store names this host as the holder of the file. Errors: not_found (no folder contains the file), io
// (the file cannot be read, the folder of the context does not exist, or an expected file is missing). The error
// not_found would end the job, so a file or folder that may be on an unmounted disk is reported as io.
Result<std::string> read_piece_of_job(const std::string& context_folder, const std::vector<std::string>& folders,
                                      const PieceRequest& request, bool is_expected, Id context, HeldFileLinks* links) {
  for (const std::string& folder : folders) {
    MJ_TRY(fd, open_job_file(folder, request.file));
    if (!fd) continue;
    if (request.is_link) {
      return encode_link(request.transfer_id,
                         links == nullptr ? std::nullopt : links->create(context, std::move(fd), request.file));
    }
    auto bytes = read_file_piece(fd.get(), request.offset,
                                 static_cast<std::size_t>(get_piece_size(request.file.bytes, request.offset)));
    if (!bytes) return fail(std::move(bytes).error(), folder + '/' + request.file.sha256);
    return bytes;
  }
  struct stat info {};
  if (::stat(context_folder.c_str(), &info) != 0)
    return fail(Code::io, context_folder + ": " + errno_text(errno) + " (is the disk mounted?)");
  if (is_expected)
    return fail(Code::io, folders.back() + '/' + request.file.sha256 + ": is missing (is the disk mounted?)");
  return fail(Code::not_found, request.job_key + " has no such file on this host");
}

// Reads the lines of a spooled log, and encodes them for a reply. A job without a spooled log has no lines.
Result<std::string> read_log_lines(const std::vector<std::string>& folders, const LogRange& range) {
  MJ_TRY(lines, read_spooled_lines(folders, range));
  return encode_spooled_lines(lines);
}

}  // namespace

// Subscribes to the channels of one context, and posts the received messages to the loop.
class TransferLoop::Subscriber final : public HintListener {
 public:
  Subscriber(TransferLoop& loop, Id context, std::string request_channel, std::string reply_channel)
      : loop_(loop),
        context_(context),
        request_channel_(std::move(request_channel)),
        reply_channel_(std::move(reply_channel)) {}
  Result<void> subscribe(StoreFactory& stores) {
    std::vector<std::string> channels{reply_channel_};
    if (!request_channel_.empty()) channels.push_back(request_channel_);
    MJ_TRY(subscription, stores.subscribe_transfers(context_, channels, *this));
    subscription_ = std::move(subscription);
    return {};
  }
  const std::string& reply_channel() const { return reply_channel_; }
  bool is_subscribed() const { return subscription_ && subscription_->is_complete(); }
  void end() { subscription_.reset(); }  // the functions of HintListener are not called afterwards

 private:
  void on_message(std::string_view channel, std::string_view text) override {
    const std::size_t bytes = sizeof(Event) + text.size();  // includes the memory of short messages
    if (loop_.pending_bytes_ + bytes > kMaxPendingBytes) return;
    loop_.pending_bytes_ += bytes;
    loop_.post(ReceivedMessage{context_, channel == request_channel_, std::string(text)});
  }
  void on_key_changed(std::string_view) override {}
  void on_subscription_changed(bool) override { loop_.wake(); }

  TransferLoop& loop_;
  const Id context_;
  const std::string request_channel_, reply_channel_;
  std::unique_ptr<HintSubscription> subscription_;
};

TransferLoop::TransferLoop(Store& store, Settings settings, const Clock& clock, std::shared_ptr<Metrics> metrics)
    : store_(store),
      settings_(std::move(settings)),
      clock_(clock),
      metrics_(std::move(metrics)),
      process_id_(random_hex(16)),
      store_names_(store, clock),
      sender_(settings_.rate,
              {.read = [this](Id context, const PieceRequest& request) { read_piece(context, request, false); },
               .publish = [this](const TransferSender::Piece& piece) { publish_piece(piece); }}),
      receiver_(make_receiver_callbacks(), settings_.max_file_pieces, settings_.link_times),
      downloads_({.on_piece =
                      [this](LinkDownloads::DownloadNumber number, std::uint64_t offset, std::string bytes) {
                        post(DownloadedPiece{number, offset, std::move(bytes)});
                      },
                  .on_end =
                      [this](LinkDownloads::DownloadNumber number, Result<void> result) {
                        post(DownloadEnd{number, std::move(result)});
                      }},
                 settings_.link_networks, settings_.link_times.connect_ms) {
  for (const Id context : settings_.contexts) {
    databases_[context] = store_.database_number(context);
    for (const char* direction : {"sent", "received", "sent_https", "received_https"})
      metrics_->add(Metric::transfer_bytes, {context, direction}, 0);
    for (const FetchStatus status : {FetchStatus::received, FetchStatus::away, FetchStatus::busy, FetchStatus::lost,
                                     FetchStatus::damaged, FetchStatus::failed, FetchStatus::storage_away})
      metrics_->add(Metric::transfers, {context, to_word(status)}, 0);
  }
}

// Ends the threads that use the other members: those of the subscriptions, of the downloads and of the strands.
TransferLoop::~TransferLoop() {
  for (const auto& entry : subscribers_) entry.second->end();
  downloads_.stop();
  strands_.stop();
}

Result<void> TransferLoop::subscribe(StoreFactory& stores) {
  for (const auto& [context, database] : databases_) {
    const bool can_send = settings_.holder.is_known() && !settings_.state_dir.empty();
    auto subscriber =
        std::make_unique<Subscriber>(*this, context, can_send ? transfer_channel(database, settings_.holder) : "",
                                     transfer_channel(database, process_id_));
    MJ_CHECK(subscriber->subscribe(stores));
    subscribers_[context] = std::move(subscriber);
  }
  return {};
}

TransferReceiver::Callbacks TransferLoop::make_receiver_callbacks() {
  TransferReceiver::Callbacks callbacks{
      .request = [this](const RemoteArtifact& artifact, const std::string& transfer_id,
                        std::uint64_t offset) -> Result<std::uint64_t> {
        const std::uint32_t database = databases_.at(artifact.context);
        const PieceRequest request{transfer_id, subscribers_.at(artifact.context)->reply_channel(), artifact.job_key,
                                   artifact.content, offset};
        return store_.publish_transfer(artifact.context, transfer_channel(database, artifact.holder),
                                       encode_request(request));
      },
      .run_on_disk =
          [this](Id context, FetchNumber number, std::function<Result<void>()> work) {
            post_to_disk(context, "receive ", [this, number, work = std::move(work)] {
              post(DiskResult{number, work()});
            });
          },
      .is_subscribed =
          [this](Id context) {
            const auto subscriber = subscribers_.find(context);
            return subscriber != subscribers_.end() && subscriber->second->is_subscribed();
          },
      .count_bytes =
          [this](Id context, std::uint64_t bytes) {
            metrics_->add(Metric::transfer_bytes, {context, "received"}, static_cast<double>(bytes));
          },
      .count_end =
          [this](Id context, FetchStatus status) {
            metrics_->add(Metric::transfers, {context, to_word(status)});
          }};
  if (!settings_.link_networks || !settings_.link_networks->is_empty()) add_link_callbacks(callbacks);
  return callbacks;
}

// Adds the callbacks for downloads over HTTPS. A request for a link is not repeated if the message is lost: the file is
// then received in pieces.
void TransferLoop::add_link_callbacks(TransferReceiver::Callbacks& callbacks) {
  callbacks.request_link = [this](const RemoteArtifact& artifact, const std::string& transfer_id) {
    PieceRequest request{transfer_id, subscribers_.at(artifact.context)->reply_channel(), artifact.job_key,
                         artifact.content};
    request.is_link = true;
    (void)store_.publish_transfer(artifact.context, transfer_channel(databases_.at(artifact.context), artifact.holder),
                                  encode_request(request));
  };
  callbacks.start_download = [this](TransferReceiver::DownloadNumber number, const FileLink& link,
                                    std::uint64_t file_bytes,
                                    std::uint64_t offset) { downloads_.start(number, link, file_bytes, offset); };
  callbacks.resume_download = [this](TransferReceiver::DownloadNumber number) { downloads_.resume(number); };
  callbacks.cancel_download = [this](TransferReceiver::DownloadNumber number) { downloads_.cancel(number); };
  callbacks.on_link_failed = [](const RemoteArtifact& artifact, const Error& error) {
    log(LogLevel::warn, "worker",
        "context {}: files of {} are not received over HTTPS, but through Redis: {} (tried again in {} s)",
        artifact.context, describe(artifact.holder), error.message, TransferReceiver::kLinkPauseMs / 1000);
  };
  callbacks.count_downloaded_bytes = [this](Id context, std::uint64_t bytes) {
    metrics_->add(Metric::transfer_bytes, {context, "received_https"}, static_cast<double>(bytes));
  };
}

TransferLoop::FetchNumber TransferLoop::fetch(const RemoteArtifact& artifact, std::shared_ptr<FileTarget> target,
                                              OnEnd on_end) {
  const FetchNumber number = next_number_++;
  post(Fetch{number, artifact, std::move(target), std::move(on_end)});
  return number;
}

void TransferLoop::cancel(FetchNumber number) { post(CancelFetch{number}); }

void TransferLoop::post(Event event) {
  events_.post(std::move(event));
  wake();
}

std::uint64_t TransferLoop::run_once() {
  for (Event& event : events_.consume_all()) std::visit([this](auto& typed_event) { on(typed_event); }, event);
  const std::uint64_t now_ms = clock_.boot_ms();
  has_missing_threads_ = has_missing_threads_ && !strands_.start_missing_threads();
  std::uint64_t next_ms = std::min(receiver_.run(now_ms), sender_.run(now_ms));
  if (settings_.links) next_ms = std::min(next_ms, settings_.links->close_expired());
  if (has_missing_threads_) next_ms = std::min(next_ms, kMissingThreadsPauseMs);
  return next_ms;
}

void TransferLoop::on(ReceivedMessage& message) {
  pending_bytes_ -= sizeof(Event) + message.text.size();
  if (!message.is_request) return receiver_.on_reply(message.text, clock_.boot_ms());
  const std::uint32_t database = databases_.at(message.context);
  auto request = parse_request(message.text, database);
  if (!request) request = parse_log_request(message.text, database);
  if (!request) request = parse_link_request(message.text, database);
  if (request) sender_.on_request(message.context, std::move(*request), clock_.boot_ms());
}

void TransferLoop::on(Fetch& fetch) {
  if (!databases_.contains(fetch.artifact.context))
    return fetch.on_end({FetchStatus::failed, "the context is not served by this process"});
  receiver_.fetch(fetch.number, std::move(fetch.artifact), std::move(fetch.target), std::move(fetch.on_end),
                  clock_.boot_ms());
}

void TransferLoop::on(CancelFetch& fetch) { receiver_.cancel(fetch.number); }

void TransferLoop::on(DiskResult& disk) {
  receiver_.on_disk_result(disk.number, std::move(disk.result), clock_.boot_ms());
}

void TransferLoop::on(DownloadedPiece& piece) {
  receiver_.on_download_piece(piece.number, piece.offset, std::move(piece.bytes), clock_.boot_ms());
}

void TransferLoop::on(DownloadEnd& download_end) {
  receiver_.on_download_end(download_end.number, download_end.result, clock_.boot_ms());
}

void TransferLoop::on(PieceRead& piece) {
  if (!piece.bytes && piece.bytes.error().code == Code::not_found && !piece.is_repeated) {
    // The store has other names after it was emptied or restored.
    if (store_names_.remove_if_older(piece.context, kMinStoreNamesMs))
      return read_piece(piece.context, piece.request, true);
  }
  if (!piece.bytes && piece.bytes.error().code == Code::io)
    log(LogLevel::error, "worker", "{}: an artifact cannot be sent: {}", piece.request.job_key,
        piece.bytes.error().message);
  sender_.on_read(piece.context, piece.request, std::move(piece.bytes));
}

void TransferLoop::read_piece(Id context, const PieceRequest& request, bool is_repeated) {
  const auto* store_names = store_names_.find(context);
  if (store_names == nullptr) {
    return post(PieceRead{context, request, fail(Code::unavailable, "the store does not answer"), is_repeated});
  }
  auto folders = request.log_range ? list_log_folders(settings_.state_dir, context, request.job_key, *store_names)
                                   : artifact_folders(settings_.state_dir, context, request.job_key, *store_names);
  bool is_expected = false;
  if (settings_.find_folder && !request.log_range) {
    auto folder = settings_.find_folder(context, request.job_key, request.file);
    if (!folder) return post(PieceRead{context, request, tl::unexpected<Error>(folder.error()), is_repeated});
    is_expected = !folder->empty();
    if (is_expected) folders.push_back(std::move(*folder));
  }
  post_to_disk(context, "send ",
               [this, context, request, is_repeated, is_expected,
                context_folder = ArtifactFolder(settings_.state_dir, context).path(), folders = std::move(folders),
                links = settings_.links] {
                 auto bytes = request.log_range ? read_log_lines(folders, *request.log_range)
                                                : read_piece_of_job(context_folder, folders, request, is_expected,
                                                                    context, links.get());
                 post(PieceRead{context, request, std::move(bytes), is_repeated});
               });
}

void TransferLoop::publish_piece(const TransferSender::Piece& piece) {
  const auto receivers = store_.publish_transfer(piece.context, piece.channel, piece.message);
  if (!receivers) {
    return log(LogLevel::debug, "worker", "context {}: a piece of an artifact was not sent: {}", piece.context,
               receivers.error().message);
  }
  metrics_->add(Metric::transfer_bytes, {piece.context, "sent"}, static_cast<double>(piece.bytes));
}

void TransferLoop::post_to_disk(Id context, const char* direction, StrandPool::Work work) {
  const std::string mount = mounts_.find_mount_point(ArtifactFolder(settings_.state_dir, context).path());
  if (!strands_.post({direction + std::to_string(context), mount}, std::move(work))) has_missing_threads_ = true;
}

}  // namespace mycojobs
