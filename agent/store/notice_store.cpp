#include "store/notice_store.h"

#include <string_view>

#include "base/parse.h"
#include "store/keys.h"
#include "store/redis/store_connection.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

// Splits a text at a separator.
std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(separator), text.size());
    parts.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

// Parses an entry of mj:notices. Returns nullopt if it is malformed, that is, another client has written it.
std::optional<Notice> parse_notice(std::string_view entry) {
  const auto parts = split(entry, ' ');
  std::uint64_t attempts = 0;
  Notice notice;
  notice.entry = entry;
  if (parts.size() < 4 || parts.size() > 5) return std::nullopt;
  notice.record_key = parts[0];
  const bool is_valid_key = is_job_key(notice.record_key) || is_flow_key(notice.record_key);
  if (!is_valid_key || !parse_u64(parts[1], notice.ended_us) || !parse_u64(parts[3], attempts) || attempts > UINT16_MAX)
    return std::nullopt;
  notice.finished = parts[2] == to_string(JobStatus::finished);
  notice.attempts = static_cast<std::uint32_t>(attempts);
  if (parts.size() == 5) {
    for (const auto digest : split(parts[4], ',')) notice.reached_targets.emplace_back(digest);
  }
  return notice;
}

std::string format_notice(const Notice& notice, const NoticeResult::Retry& retry) {
  const auto& reached = retry.reached_targets;
  std::string entry = notice.record_key + " " + std::to_string(notice.ended_us) + " " +
                      (notice.finished ? "finished " : "error ") +
                      std::to_string(notice.attempts + (retry.counts_as_attempt ? 1 : 0));
  for (std::size_t i = 0; i < reached.size(); ++i) entry += (i == 0 ? " " : ",") + reached[i];
  return entry;
}

}  // namespace

Result<DueNotices> NoticeStore::due_notices(Id context, std::uint32_t max, std::uint32_t redelivery_delay_ms) {
  Arguments arguments;
  MJ_TRY(reply, connection_.run(context, scripts::notices_due,
                                arguments.add(std::uint64_t{max}).add(std::uint64_t{redelivery_delay_ms})));
  DueNotices due;
  due.next_ms = reply.at(1).number();
  const Reply entries = reply.at(0);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const std::string_view entry = entries.at(i).text();
    if (auto notice = parse_notice(entry)) {
      due.notices.push_back(std::move(*notice));
    } else {
      Notice invalid_notice;
      invalid_notice.entry = entry;
      MJ_CHECK(complete_notice(
          context, invalid_notice,
          {std::nullopt, std::string(kNoticesKey) + ": " + excerpt(entry) + " is not a notice; it was dropped"}));
    }
  }
  return due;
}

Result<void> NoticeStore::complete_notice(Id context, const Notice& notice, const NoticeResult& result) {
  Arguments arguments;
  arguments.add(notice.entry).add(result.retry ? format_notice(notice, *result.retry) : std::string());
  arguments.add(result.retry ? result.retry->delay_ms : 0).add(result.permanent_error).add(notice.record_key);
  MJ_CHECK(connection_.run(context, scripts::settle_notice, arguments));
  return {};
}

}  // namespace mycojobs
