// The complete table of rights: action by role by entry point, and the error texts.
#include "security/rights.h"

#include <gtest/gtest.h>

namespace mycojobs {
namespace {

enum Who : Id { admin = 10, submitter = 20, executor = 30, reader = 40, stranger = 50 };
constexpr Id kActors[] = {admin, submitter, executor, reader, stranger};

Context make_context() {
  Context context;
  context.id = 7;
  context.admins = {admin};
  context.submitters = {submitter};
  context.executors = {executor};
  context.readers = {reader};
  return context;
}

constexpr EntryPoint kEntryPoints[] = {EntryPoint::rpc, EntryPoint::script, EntryPoint::command, EntryPoint::message,
                                       EntryPoint::claim};

struct Row {
  Action action;
  const char* description;
  Resource resource;     // maker 1: replaced by the actor
  std::string_view may;  // some of a s e r -: admin, submitter, executor, reader, stranger
};
const Row kRows[] = {
    {Action::create, "anything", {}, "as"},
    {Action::read, "another's", {.creator = 99}, "ar"},
    {Action::read, "nobody's, or what is not there", {}, "ar"},
    {Action::read, "its own", {.creator = 1}, "aser-"},
    {Action::read, "a job that it runs", {.creator = 99, .runs_here = true}, "aer"},
    {Action::steer, "another's", {.creator = 99}, "a"},
    {Action::steer, "its own", {.creator = 1}, "as"},
    {Action::steer, "a job that it runs", {.creator = 99, .runs_here = true}, "a"},
    {Action::answer, "a gate that names it", {.creator = 99, .names_actors = true, .names_caller = true}, "aser-"},
    {Action::answer, "a gate that names others", {.creator = 1, .names_actors = true}, "a"},
    {Action::answer, "a gate of its own that names nobody", {.creator = 1}, "as"},
    {Action::answer, "a gate of another's that names nobody", {.creator = 99}, "a"},
    {Action::work, "jobs", {}, "ae"},
    {Action::administer, "its own", {.creator = 1}, "a"},
    {Action::administer, "a job that it runs", {.runs_here = true}, "a"},
};

TEST(Rights, HoldForEveryActionRoleAndEntryPoint) {
  for (const EntryPoint entry_point : kEntryPoints) {
    for (const Row& row : kRows) {
      constexpr std::string_view kLetters = "aser-";
      for (std::size_t i = 0; i < kLetters.size(); ++i) {
        const Id actor = kActors[i];
        Resource resource = row.resource;
        if (resource.creator == 1) resource.creator = actor;
        const bool allowed = !find_refusal(actor, row.action, {7, make_context(), entry_point}, resource);
        EXPECT_EQ(allowed, row.may.find(kLetters[i]) != std::string_view::npos)
            << to_string(row.action) << ' ' << row.description << " as " << kLetters[i] << " by way "
            << static_cast<int>(entry_point);
      }
    }
  }
}

TEST(Rights, ContextWithoutARecordIsClosed) {
  for (const Row& row : kRows) {
    for (const Id actor : kActors) {
      for (const EntryPoint entry_point : kEntryPoints) {
        Resource resource = row.resource;
        if (resource.creator == 1) resource.creator = actor;
        const bool outside = entry_point == EntryPoint::rpc || entry_point == EntryPoint::script;
        const bool not_named = row.action == Action::answer && resource.names_actors && !resource.names_caller;
        const auto no = find_refusal(actor, row.action, {7, std::nullopt, entry_point}, resource);
        EXPECT_EQ(no.has_value(), outside || not_named) << to_string(row.action) << ' ' << row.description;
      }
    }
  }
}

TEST(Rights, AnyAgentServesAContextWithoutNamedExecutors) {
  Context open = make_context();
  open.executors.clear();
  EXPECT_FALSE(find_refusal(stranger, Action::work, {7, open, EntryPoint::claim}));
  EXPECT_TRUE(find_refusal(stranger, Action::create, {7, open, EntryPoint::claim}));
}

TEST(Rights, CreatorMaySteerOnlyWhileItMayCreate) {
  Context left = make_context();
  left.submitters.clear();
  EXPECT_TRUE(find_refusal(submitter, Action::steer, {7, left, EntryPoint::rpc}, {.creator = submitter}));
  EXPECT_FALSE(find_refusal(submitter, Action::read, {7, left, EntryPoint::rpc}, {.creator = submitter}));
}

TEST(Rights, RefusalNamesActorActionContextAndList) {
  const auto text = [](Action action, const Resource& resource, bool recorded = true) {
    const AclContext place{7, recorded ? std::optional(make_context()) : std::nullopt, EntryPoint::rpc};
    const auto refusal = find_refusal(stranger, action, place, resource);
    return refusal ? make_refusal_error(*refusal).message : "";
  };
  EXPECT_EQ(text(Action::create, {.name = "jobs"}),
            "actor 50 may not create jobs in context 7, which allows it to admins, submitters; an operator may say: "
            "mycojobs context grant 7 --submitter 50");
  EXPECT_EQ(text(Action::read, {.name = "flow 3", .creator = 99}),
            "actor 50 may not read flow 3 in context 7, which allows it to admins, submitters (of what they made), "
            "executors (jobs that they run), readers; an operator may say: mycojobs context grant 7 --reader 50");
  EXPECT_EQ(text(Action::steer, {.name = "flow 3"}), text(Action::steer, {.name = "flow 3", .creator = 99}))
      << "a missing resource and another caller's resource are refused in the same way";
  EXPECT_NE(text(Action::create, {.name = "jobs"}, false).find("has no record"), std::string::npos);
  EXPECT_EQ(make_refusal_error({}).code, Code::denied);
}

}  // namespace
}  // namespace mycojobs
