#include "artifacts/inbound_quota.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>
#include <optional>
#include <string_view>
#include <system_error>

#include "artifacts/artifact_folder.h"
#include "base/parse.h"

namespace mycojobs {
namespace {

namespace fs = std::filesystem;

constexpr int kLetInWaitMs = 2000;
constexpr std::chrono::hours kForgotten{1};

// Calls `do_it` for each entry of the folder. A path that does not exist, or is not a folder, counts as empty. Any
// other failure is returned as an error, since unreadable files must not count as no files.
Result<void> each_in(const fs::path& folder, const std::function<Result<void>(const fs::path&)>& do_it) {
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error))
    MJ_CHECK(do_it(entry->path()));
  const bool is_nothing = error == std::errc::no_such_file_or_directory || error == std::errc::not_a_directory;
  if (!error || is_nothing) return {};
  return fail(Code::unavailable, folder.string() + ": " + error.message());
}

// Returns the size in a name of the form "<sha256>.<bytes>" with an optional suffix; 0 for other names.
std::uint64_t bytes_of_name(const std::string& name) {
  const std::size_t first = name.find('.') + 1;  // 0: there is no dot
  std::uint64_t bytes = 0;
  const bool has_size =
      first > 0 && parse_u64(std::string_view(name).substr(first, name.find('.', first) - first), bytes);
  return has_size ? bytes : 0;
}

bool is_forgotten(const fs::path& folder) {
  const auto since = fs::file_time_type::clock::now() - kForgotten;
  std::error_code unknown;
  if (fs::last_write_time(folder, unknown) >= since || unknown) return false;
  for (fs::directory_iterator entry(folder, unknown), end; !unknown && entry != end; entry.increment(unknown)) {
    std::error_code gone;
    if (const auto written = fs::last_write_time(entry->path(), gone); !gone && written >= since) return false;
  }
  return !unknown;
}

std::uint64_t bundle_bytes(std::uint64_t of_files) { return std::max(of_files, kMinAccountedBundleBytes); }

}  // namespace

std::string InboundQuota::folder_name(const InboundBundleId& bundle) { return bundle.name + '.' + bundle.sender; }
std::string InboundQuota::file_name(const FileContent& file) { return file.sha256 + '.' + std::to_string(file.bytes); }

Result<InboundQuota::Usage> InboundQuota::count(Id context, const InboundBundleId& bundle) const {
  Usage out;
  const fs::path own = fs::path(ArtifactFolder(state_dir_, context).path()) / "incoming" / folder_name(bundle);
  const auto look = [&](const fs::path& folder) -> Result<void> {
    std::uint64_t bytes = 0;
    MJ_CHECK(each_in(folder, [&](const fs::path& file) -> Result<void> {
      bytes += accounted_bytes(bytes_of_name(file.filename().string()));
      return {};
    }));
    if (folder == own) out.of_bundle = bytes;
    out.all += bundle_bytes(bytes);
    if (folder.extension() == '.' + bundle.sender) out.of_sender += bundle_bytes(bytes);
    return {};
  };
  MJ_CHECK(each_in(state_dir_ + "/contexts", [&](const fs::path& each) { return each_in(each / "incoming", look); }));
  return out;
}

Result<Fd> InboundQuota::reserve_space(Id context, const InboundBundleId& bundle,
                                       const std::vector<FileContent>& files) const {
  std::uint64_t bytes = 0;
  for (const FileContent& file : files) bytes += accounted_bytes(file.bytes);
  const std::string limit = std::string(kIncomingLimit) + ", which is " + std::to_string(most_) + " there";
  if (bundle_bytes(bytes) > sender_limit())
    return fail(Code::too_large, "files of " + std::to_string(bytes) +
                                     " bytes are more than a sender may have on "
                                     "their way at one time, a quarter of " +
                                     limit);
  auto lock = lock_file(state_dir_ + "/incoming.lock", true, kLetInWaitMs);
  if (!lock) return fail(Code::unavailable, "the lock of received files is in use: try again later");
  MJ_TRY(lying, count(context, bundle));
  const std::uint64_t before = lying.of_bundle > 0 ? bundle_bytes(lying.of_bundle) : 0;
  const std::uint64_t more = bundle_bytes(lying.of_bundle + bytes) - before;
  if (lying.of_sender + more > sender_limit())
    return fail(Code::unavailable, "files of the sender " + bundle.sender + " that are in transfer take " +
                                       std::to_string(lying.of_sender) +
                                       " bytes, and no sender has more than a "
                                       "quarter of " +
                                       limit + ": try again later");
  if (lying.all + more > most_)
    return fail(Code::unavailable, "files that are in transfer take " + std::to_string(lying.all) +
                                       " bytes, and the limit is " + limit + ": try again later");
  return std::move(*lock);
}

void InboundQuota::delete_expired() const {
  const auto look = [](const fs::path& folder) -> Result<void> {
    std::error_code deferred_to_next_check;
    if (is_forgotten(folder)) fs::remove_all(folder, deferred_to_next_check);
    return {};
  };
  (void)each_in(state_dir_ + "/contexts", [&](const fs::path& each) -> Result<void> {
    (void)each_in(each / "incoming", look);
    return {};
  });
}

}  // namespace mycojobs
