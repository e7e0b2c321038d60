#include "inspect/verify/object_verify.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <thread>

namespace mycojobs {
namespace {

constexpr std::size_t kMaxProblems = 1000;
constexpr int kObjectChecks = 3;
constexpr std::chrono::milliseconds kObjectPause{200};

// Returns the problems that all reads have in common.
Result<std::vector<ObjectsProblem>> lasting_problems(ObjectStore& objects, Id context) {
  MJ_TRY(first, objects.verify(context, kMaxProblems));
  std::vector<ObjectsProblem> lasting = std::move(first.problems);
  for (int look = 1; look < kObjectChecks && !lasting.empty(); ++look) {
    std::this_thread::sleep_for(kObjectPause);
    MJ_TRY(again, objects.verify(context, kMaxProblems));
    std::erase_if(lasting, [&](const ObjectsProblem& each) {
      return std::find(again.problems.begin(), again.problems.end(), each) == again.problems.end();
    });
  }
  return lasting;
}

std::string subject_of(const ObjectsProblem& problem) { return problem.of.space + "/" + problem.of.kind; }

}  // namespace

Result<std::vector<Finding>> verify_objects(ObjectStore& objects, Id context) {
  MJ_TRY(problems, lasting_problems(objects, context));
  std::vector<Finding> findings;
  for (const ObjectsProblem& each : problems) {
    findings.push_back({true, "object-index", subject_of(each), each.text});
  }
  return findings;
}

Result<std::vector<std::string>> rebuild_objects(ObjectStore& objects, Id context, bool dry_run) {
  MJ_TRY(problems, lasting_problems(objects, context));
  std::vector<std::string> lines;
  std::set<ObjectKind> kinds;
  for (const ObjectsProblem& each : problems) {
    lines.push_back("objects " + subject_of(each) + ": " + each.text);
    kinds.insert(each.of);
  }
  if (dry_run) return lines;
  for (const ObjectKind& of : kinds) {
    // A key without a valid name was created by another client and is left unchanged.
    auto start_result = objects.reindex(context, of);
    if (!start_result && start_result.error().code != Code::invalid)
      return tl::unexpected<Error>(std::move(start_result).error());
    for (bool more = start_result.has_value(); more;) {
      MJ_TRY(left, objects.index_more(context, of));
      more = left;
    }
  }
  return lines;
}

}  // namespace mycojobs
