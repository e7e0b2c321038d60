// The complete table of rights: action by role by entry point, and the error texts.
#include "security/rights.h"

#include <gtest/gtest.h>

namespace mycojobs {
namespace {

enum Who : Id { admin = 10, submitter = 20, executor = 30, reader = 40, stranger = 50 };
constexpr Id kEverybody[] = {admin, submitter, executor, reader, stranger};

Context record() {
  Context context;
  context.id = 7;
  context.admins = {admin};
  context.submitters = {submitter};
  context.executors = {executor};
  context.readers = {reader};
  return context;
}

constexpr EntryPoint kWays[] = {EntryPoint::rpc, EntryPoint::script, EntryPoint::command, EntryPoint::message,
                                EntryPoint::claim};

struct Row {
  Action action;
  const char* what;
  Resource thing;        // maker 1: replaced by the actor
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
  for (const EntryPoint way : kWays) {
    for (const Row& row : kRows) {
      constexpr std::string_view kLetters = "aser-";
      for (std::size_t i = 0; i < kLetters.size(); ++i) {
        const Id actor = kEverybody[i];
        Resource thing = row.thing;
        if (thing.creator == 1) thing.creator = actor;
        const bool allowed = !find_refusal(actor, row.action, {7, record(), way}, thing);
        EXPECT_EQ(allowed, row.may.find(kLetters[i]) != std::string_view::npos)
            << to_string(row.action) << ' ' << row.what << " as " << kLetters[i] << " by way " << static_cast<int>(way);
      }
    }
  }
}

TEST(Rights, ContextWithoutARecordIsClosed) {
  for (const Row& row : kRows) {
    for (const Id actor : kEverybody) {
      for (const EntryPoint way : kWays) {
        Resource thing = row.thing;
        if (thing.creator == 1) thing.creator = actor;
        const bool outside = way == EntryPoint::rpc || way == EntryPoint::script;
        const bool not_named = row.action == Action::answer && thing.names_actors && !thing.names_caller;
        const auto no = find_refusal(actor, row.action, {7, std::nullopt, way}, thing);
        EXPECT_EQ(no.has_value(), outside || not_named) << to_string(row.action) << ' ' << row.what;
      }
    }
  }
}

TEST(Rights, AnyAgentServesAContextWithoutNamedExecutors) {
  Context open = record();
  open.executors.clear();
  EXPECT_FALSE(find_refusal(stranger, Action::work, {7, open, EntryPoint::claim}));
  EXPECT_TRUE(find_refusal(stranger, Action::create, {7, open, EntryPoint::claim}));
}

TEST(Rights, CreatorMaySteerOnlyWhileItMayCreate) {
  Context left = record();
  left.submitters.clear();
  EXPECT_TRUE(find_refusal(submitter, Action::steer, {7, left, EntryPoint::rpc}, {.creator = submitter}));
  EXPECT_FALSE(find_refusal(submitter, Action::read, {7, left, EntryPoint::rpc}, {.creator = submitter}));
}

TEST(Rights, RefusalNamesActorActionContextAndList) {
  const auto text = [](Action action, const Resource& thing, bool recorded = true) {
    const AclContext place{7, recorded ? std::optional(record()) : std::nullopt, EntryPoint::rpc};
    const auto refusal = find_refusal(stranger, action, place, thing);
    return refusal ? refusal_error(*refusal).message : "";
  };
  EXPECT_EQ(text(Action::create, {.name = "jobs"}),
            "actor 50 may not create jobs in context 7, which allows it to admins, submitters; an operator may say: "
            "mycojobs context grant 7 --submitter 50");
  EXPECT_EQ(text(Action::read, {.name = "flow 3", .creator = 99}),
            "actor 50 may not read flow 3 in context 7, which allows it to admins, submitters (of what they made), "
            "executors (jobs that they run), readers; an operator may say: mycojobs context grant 7 --reader 50");
  EXPECT_EQ(text(Action::steer, {.name = "flow 3"}), text(Action::steer, {.name = "flow 3", .creator = 99}))
      << "what is not there is refused as what is another's";
  EXPECT_NE(text(Action::create, {.name = "jobs"}, false).find("has no record"), std::string::npos);
  EXPECT_EQ(refusal_error({}).code, Code::denied);
}

}  // namespace
}  // namespace mycojobs
