#include "artifacts/transfer/held_file_sender.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>

#include "artifacts/artifact_folder.h"
#include "artifacts/transfer/holder_name.h"
#include "artifacts/transfer/transfer_loop.h"
#include "artifacts/uploads/upload_finder.h"
#include "base/log.h"
#include "base/parse.h"

namespace mycojobs {
namespace {

constexpr std::uint64_t kScanIntervalMs = 1000, kRetryIntervalMs = 10000;

}  // namespace

class HeldFileSender::ContextSender {
 public:
  ContextSender(std::unique_ptr<Store> store, std::string name) : name_(std::move(name)), store_(std::move(store)) {}
  Result<void> start(StoreFactory& stores, const Clock& clock, const Settings& settings, Id context,
                     std::shared_ptr<Metrics> metrics) {
    finder_.emplace(*store_, clock, ArtifactFolder(settings.state_dir, context), name_);
    TransferLoop::Settings loop_settings;
    loop_settings.contexts = {context};
    loop_settings.holder.coordinator = name_;
    loop_settings.state_dir = settings.state_dir;
    loop_settings.rate = settings.rate;
    loop_settings.links = settings.links;
    loop_settings.find_folder = [this](Id requested_context, const std::string& job_key, const FileContent& file) {
      return finder_->find(requested_context, job_key, file);
    };
    loop_ = std::make_unique<TransferLoop>(*store_, std::move(loop_settings), clock, std::move(metrics));
    MJ_CHECK(loop_->subscribe(stores));
    thread_.emplace(*loop_, "held files");
    return thread_->started();
  }
  const std::string& name() const { return name_; }
  std::uint64_t next_registration_ms = 0;

 private:
  const std::string name_;
  std::unique_ptr<Store> store_;
  std::optional<UploadFinder> finder_;
  std::unique_ptr<TransferLoop> loop_;
  std::optional<LoopThread<TransferLoop>> thread_;  // destroyed first, since the thread uses the members above
};

HeldFileSender::HeldFileSender(StoreFactory& stores, const Clock& clock, Settings settings,
                               std::shared_ptr<Metrics> metrics)
    : stores_(stores), clock_(clock), settings_(std::move(settings)), metrics_(std::move(metrics)) {}

HeldFileSender::~HeldFileSender() = default;

std::vector<Id> HeldFileSender::find_contexts() const {
  std::vector<Id> contexts;
  if (settings_.state_dir.empty()) return contexts;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(settings_.state_dir + "/contexts", error), end; !error && entry != end;
       entry.increment(error)) {
    std::uint64_t context = 0;
    if (!parse_u64(entry->path().filename().string(), context) || context == 0 || context > UINT32_MAX) continue;
    contexts.push_back(static_cast<Id>(context));
  }
  std::erase_if(contexts, [this](Id context) { return !settings_.is_served(context); });
  return contexts;
}

Result<void> HeldFileSender::open_registration_store() {
  if (registration_store_) return {};
  MJ_TRY(store, stores_.open_reader());
  registration_store_ = std::move(store);
  return {};
}

void HeldFileSender::remove_obsolete_senders(const std::vector<Id>& contexts, std::uint64_t now_ms) {
  std::erase_if(senders_, [&](const auto& entry) {
    const auto& [context, sender] = entry;
    if (std::find(contexts.begin(), contexts.end(), context) == contexts.end()) return true;
    return now_ms >= sender->next_registration_ms &&
           find_holder_name(ArtifactFolder(settings_.state_dir, context)) != sender->name();
  });
}

Result<void> HeldFileSender::serve(Id context, std::uint64_t now_ms) {
  auto sender = senders_.find(context);
  if (sender == senders_.end()) {
    std::string name = find_holder_name(ArtifactFolder(settings_.state_dir, context));
    if (name.empty()) return {};
    if (senders_.size() >= kMaxContexts)
      return fail(Code::too_large, "the files of " + std::to_string(kMaxContexts) + " contexts are sent already");
    MJ_CHECK(open_registration_store());
    MJ_TRY(store, stores_.open_reader());
    auto new_sender = std::make_unique<ContextSender>(std::move(store), std::move(name));
    MJ_CHECK(new_sender->start(stores_, clock_, settings_, context, metrics_));
    sender = senders_.emplace(context, std::move(new_sender)).first;
  }
  ContextSender& served = *sender->second;
  if (now_ms < served.next_registration_ms) return {};
  served.next_registration_ms = now_ms + kRegistrationIntervalMs;
  return registration_store_->hold_files(context, served.name(), kRegistrationMs);
}

std::uint64_t HeldFileSender::run_once() {
  const std::vector<Id> contexts = find_contexts();
  remove_obsolete_senders(contexts, clock_.boot_ms());
  for (const Id context : contexts) {
    const std::uint64_t now_ms = clock_.boot_ms();
    if (const auto retry = retry_ms_.find(context); retry != retry_ms_.end() && now_ms < retry->second) continue;
    auto served = serve(context, now_ms);
    if (!served) {
      if (!retry_ms_.contains(context))
        log(LogLevel::error, "coordinator", "context {}: files of messages and uploads are not sent to agents: {}",
            context, served.error().message);
      retry_ms_[context] = clock_.boot_ms() + kRetryIntervalMs;
    } else if (retry_ms_.erase(context) > 0) {
      log(LogLevel::info, "coordinator", "context {}: files of messages and uploads are sent again", context);
    }
    if (stopped()) break;
  }
  return kScanIntervalMs;
}

void HeldFileSender::ended() {
  for (const auto& [context, sender] : senders_) {
    if (!retry_ms_.contains(context)) (void)registration_store_->hold_files(context, sender->name(), 0);
  }
}

}  // namespace mycojobs
