#include "inspect/verify/object_verify.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <thread>

namespace mycojobs {
namespace {

constexpr std::size_t kMaxProblems = 1000;
constexpr int kObjectChecks = 3;  // number of reads that must all have a problem
constexpr std::chrono::milliseconds kObjectCheckInterval{200};

// Returns the problems that all reads have in common.
Result<std::vector<ObjectsProblem>> find_persistent_object_problems(ObjectStore& objects, Id context) {
  MJ_TRY(first, objects.verify(context, kMaxProblems));
  std::vector<ObjectsProblem> persistent = std::move(first.problems);
  for (int check = 1; check < kObjectChecks && !persistent.empty(); ++check) {
    std::this_thread::sleep_for(kObjectCheckInterval);
    MJ_TRY(current, objects.verify(context, kMaxProblems));
    std::erase_if(persistent, [&](const ObjectsProblem& problem) {
      return std::find(current.problems.begin(), current.problems.end(), problem) == current.problems.end();
    });
  }
  return persistent;
}

std::string get_object_kind(const ObjectsProblem& problem) { return problem.kind.name_space + "/" + problem.kind.kind; }

}  // namespace

Result<std::vector<Finding>> verify_objects(ObjectStore& objects, Id context) {
  MJ_TRY(problems, find_persistent_object_problems(objects, context));
  std::vector<Finding> findings;
  for (const ObjectsProblem& problem : problems) {
    findings.push_back({true, "object-index", get_object_kind(problem), problem.text});
  }
  return findings;
}

Result<std::vector<std::string>> rebuild_objects(ObjectStore& objects, Id context, bool dry_run) {
  MJ_TRY(problems, find_persistent_object_problems(objects, context));
  std::vector<std::string> lines;
  std::set<ObjectKind> kinds;
  for (const ObjectsProblem& problem : problems) {
    lines.push_back("objects " + get_object_kind(problem) + ": " + problem.text);
    kinds.insert(problem.kind);
  }
  if (dry_run) return lines;
  for (const ObjectKind& kind : kinds) {
    // A key without a valid name was created by another client and is left unchanged.
    auto start_result = objects.reindex(context, kind);
    if (!start_result && start_result.error().code != Code::invalid)
      return tl::unexpected<Error>(std::move(start_result).error());
    for (bool has_more = start_result.has_value(); has_more;) {
      MJ_TRY(is_unfinished, objects.index_more(context, kind));
      has_more = is_unfinished;
    }
  }
  return lines;
}

}  // namespace mycojobs
