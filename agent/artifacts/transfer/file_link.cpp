#include "artifacts/transfer/file_link.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/parse.h"
#include "base/random.h"
#include "base/sha256.h"
#include "net/host.h"

namespace mycojobs {

bool is_valid_link(const FileLink& link) {
  return parse_host_port(link.address).has_value() && is_hex(link.ticket, HeldFileLinks::kTicketDigits) &&
         is_hex(link.server_key_sha256, kSha256Digits);
}

std::string format_link_url(const FileLink& link) {
  return "https://" + link.address + kFileLinkPath + "?ticket=" + link.ticket;
}

void HeldFileLinks::set_server(std::string address, std::function<Result<std::string>()> read_key_sha256) {
  const std::lock_guard lock(mutex_);
  address_ = std::move(address);
  read_key_sha256_ = std::move(read_key_sha256);
}

std::vector<HeldFileLinks::HeldFile> HeldFileLinks::remove_expired(std::uint64_t now_ms) {
  std::vector<HeldFile> files;
  for (auto link = links_.begin(); link != links_.end();) {
    if (link->second.expiry_ms > now_ms) {
      ++link;
      continue;
    }
    files.push_back(std::move(link->second.file));
    link = links_.erase(link);
  }
  return files;
}

std::uint64_t HeldFileLinks::close_expired() {
  const std::uint64_t now_ms = clock_.boot_ms();
  std::vector<HeldFile> expired;
  const std::lock_guard lock(mutex_);  // declared after `expired`, so that the files are closed without the lock
  expired = remove_expired(now_ms);
  std::uint64_t next_ms = now_ms + kLifetimeMs;
  for (const auto& entry : links_) next_ms = std::min(next_ms, entry.second.expiry_ms);
  return next_ms - now_ms;
}

std::optional<FileLink> HeldFileLinks::create(Id context, Fd file, const FileContent& content) {
  std::function<Result<std::string>()> read_key_sha256;
  {
    const std::lock_guard lock(mutex_);
    read_key_sha256 = read_key_sha256_;
  }
  if (!read_key_sha256) return std::nullopt;
  auto key_sha256 = read_key_sha256();  // reads a file
  if (!key_sha256) {
    log(LogLevel::warn, "worker", "artifacts are not sent over HTTPS: {}", key_sha256.error().message);
    return std::nullopt;
  }
  std::vector<HeldFile> expired;
  const std::lock_guard lock(mutex_);  // declared after `expired`, so that the files are closed without the lock
  expired = remove_expired(clock_.boot_ms());
  const auto count = std::count_if(links_.begin(), links_.end(),
                                   [context](const auto& entry) { return entry.second.file.context == context; });
  if (links_.size() >= kMaxLinks || static_cast<std::size_t>(count) >= kMaxLinksOfContext) return std::nullopt;
  FileLink link{address_, random_hex(kTicketDigits / 2), std::move(*key_sha256)};
  links_[sha256_hex(link.ticket)] = {{context, std::move(file), content.bytes}, clock_.boot_ms() + kLifetimeMs};
  return link;
}

std::optional<Id> HeldFileLinks::find_context(const std::string& ticket) {
  const std::lock_guard lock(mutex_);
  const auto link = links_.find(sha256_hex(ticket));
  if (link == links_.end() || link->second.expiry_ms <= clock_.boot_ms()) return std::nullopt;
  return link->second.file.context;
}

std::optional<HeldFileLinks::HeldFile> HeldFileLinks::consume(const std::string& ticket) {
  decltype(links_)::node_type link;
  {
    const std::lock_guard lock(mutex_);
    link = links_.extract(sha256_hex(ticket));
  }
  if (link.empty() || link.mapped().expiry_ms <= clock_.boot_ms()) return std::nullopt;
  return std::move(link.mapped().file);
}

}  // namespace mycojobs
