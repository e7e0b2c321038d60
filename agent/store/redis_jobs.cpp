// Jobs by what happened last.
#include <algorithm>
#include <array>

#include "base/ids.h"
#include "store/redis_store.h"

namespace mycojobs {
namespace {

constexpr std::uint32_t kMostLooks = 1000;  // in one step of the server

// Where jobs of plain clients wait, also while no agent has ever seen the context.
constexpr std::array<std::string_view, 6> kQueues = {"queue:python", "queue:osis",   "queue:sal",
                                                     "queue:v",      "queue:native", "queue:rust"};

std::vector<ListedJob> listed(const Reply& rows) {
  std::vector<ListedJob> out;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Reply row = rows.at(i);
    out.push_back(
        {std::string(row.at(0).text()), row.at(1).number(), std::string(row.at(2).text()), row.at(3).fields()});
  }
  return out;
}

}  // namespace

Result<JobsPage> RedisStore::jobs(Id context, const JobsWanted& wanted) {
  std::string score;
  std::uint64_t skip = 0;
  if (!wanted.after.empty()) {
    const std::size_t blank = wanted.after.find(' ');
    std::uint64_t number = 0;
    score = wanted.after.substr(0, blank);
    if (blank == std::string::npos || !parse_u64(score, number) || !parse_u64(wanted.after.substr(blank + 1), skip))
      return fail(Code::invalid, "after: is not what a page of jobs has said");
  }
  Arguments arguments;
  arguments.add(std::uint64_t{std::clamp(wanted.max_looks, 1U, kMostLooks)}).add(score).add(skip);
  arguments.add(std::min<std::uint64_t>(wanted.since_ms, UINT32_MAX * 1000ULL) * 1000);
  arguments.add(wanted.status ? word(*wanted.status) : std::string_view()).add(wanted.state).add(wanted.name);
  arguments.add(wanted.script_type).add(wanted.caller ? std::to_string(*wanted.caller) : std::string());
  arguments.add(std::uint64_t{kQueues.size()});
  for (const std::string_view queue : kQueues) arguments.add(queue);
  MJ_TRY(reply, run(context, scripts::job_list, arguments));
  JobsPage page;
  page.looked_at = reply.at(0).number();
  if (!reply.at(1).text().empty())
    page.after = std::string(reply.at(1).text()) + ' ' + std::to_string(reply.at(2).number());
  page.jobs = listed(reply.at(3));
  page.unseen = listed(reply.at(4));
  return page;
}

}  // namespace mycojobs
