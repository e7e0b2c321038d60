// Notices of ends: the arguments and answers of the scripts.
#include <algorithm>

#include "base/ids.h"
#include "domain/utf8.h"
#include "store/keys.h"
#include "store/redis_store.h"

namespace mycojobs {
namespace {

// The parts of an entry, at the blanks.
std::vector<std::string_view> parts_of(std::string_view text, char at) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(at), text.size());
    parts.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

// Nothing: another client has written it.
std::optional<Notice> read_entry(std::string_view entry) {
  const auto parts = parts_of(entry, ' ');
  std::uint64_t tries = 0;
  Notice notice;
  notice.entry = entry;
  if (parts.size() < 4 || parts.size() > 5) return std::nullopt;
  notice.of = parts[0];
  const bool known = is_job_key(notice.of) || is_flow_key(notice.of);
  if (!known || !parse_u64(parts[1], notice.ended_us) || !parse_u64(parts[3], tries) || tries > UINT16_MAX)
    return std::nullopt;
  notice.finished = parts[2] == word(JobStatus::finished);
  notice.tries = static_cast<std::uint32_t>(tries);
  if (parts.size() == 5) {
    for (const auto each : parts_of(parts[4], ',')) notice.told.emplace_back(each);
  }
  return notice;
}

std::string entry_of(const Notice& notice, const NoticeAfter::Again& again) {
  const auto& told = again.told;
  std::string entry = notice.of + " " + std::to_string(notice.ended_us) + " " +
                      (notice.finished ? "finished " : "error ") +
                      std::to_string(notice.tries + (again.counts ? 1 : 0));
  for (std::size_t i = 0; i < told.size(); ++i) entry += (i == 0 ? " " : ",") + told[i];
  return entry;
}

}  // namespace

Result<DueNotices> RedisStore::notices_due(Id context, std::uint32_t max, std::uint32_t hold_ms) {
  Arguments arguments;
  MJ_TRY(reply, run(context, scripts::notices_due, arguments.add(std::uint64_t{max}).add(std::uint64_t{hold_ms})));
  DueNotices due;
  due.next_ms = reply.at(1).number();
  const Reply entries = reply.at(0);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const std::string_view entry = entries.at(i).text();
    if (auto notice = read_entry(entry)) {
      due.notices.push_back(std::move(*notice));
    } else {
      Notice strange;
      strange.entry = entry;
      MJ_CHECK(settle_notice(context, strange,
                             {std::nullopt, "mj:notices: " + shown(entry) + " is no notice; it was dropped"}));
    }
  }
  return due;
}

Result<void> RedisStore::settle_notice(Id context, const Notice& notice, const NoticeAfter& after) {
  Arguments arguments;
  arguments.add(notice.entry).add(after.again ? entry_of(notice, *after.again) : std::string());
  arguments.add(after.again ? after.again->after_ms : 0).add(after.given_up).add(notice.of);
  MJ_CHECK(run(context, scripts::settle_notice, arguments));
  return {};
}

}  // namespace mycojobs
