#include "store/workflow_store.h"

#include <algorithm>

#include "model/codec.h"
#include "store/keys.h"
#include "store/redis/redis_link.h"
#include "text/plural.h"

namespace mycojobs {
namespace {

std::string join_instances(const std::vector<PostTarget>& targets) {
  std::string names;
  for (const PostTarget& target : targets) names += (names.empty() ? "" : ",") + target.instance;
  return names;
}

std::vector<std::string> to_texts(const Reply& reply) {
  std::vector<std::string> result;
  for (std::size_t i = 0; i < reply.size(); ++i) result.emplace_back(reply.at(i).text());
  return result;
}

}  // namespace

WorkflowStore::WorkflowStore(std::unique_ptr<ContextLinks> links) : links_(std::move(links)) {}
WorkflowStore::~WorkflowStore() = default;

// Reads a field of a hash key. `kind` names the content in the error not_found.
Result<std::string> WorkflowStore::read_hash_field(Id context, const std::string& key, const std::string& hash,
                                                   const std::string& kind) {
  MJ_TRY(reply, links_->command(context, {"HGET", key, hash}));
  if (reply.is_nil()) return fail(Code::not_found, kind + ' ' + hash + " does not exist");
  return std::string(reply.text());
}

Result<std::vector<std::string>> WorkflowStore::list_deployments(Id context) {
  MJ_TRY(reply, links_->command(context, {"SMEMBERS", kDeploymentsKey}));
  auto names = to_texts(reply);
  std::sort(names.begin(), names.end());
  return names;
}

Result<void> WorkflowStore::put_manifest(Id context, const std::string& deployment, const std::string& hash,
                                         const std::string& text) {
  MJ_TRY(reply, links_->run(context, scripts::world_put_manifest, Arguments{deployment, hash, text}));
  if (reply.text() == "other")
    return fail(Code::conflict, deployment + ": manifest " + hash + " is there with other content");
  return {};
}

Result<std::string> WorkflowStore::manifest(Id context, const std::string& deployment, const std::string& hash) {
  return read_hash_field(context, kDeploymentManifestsKey + deployment, hash, "manifest");
}

Result<std::string> WorkflowStore::blob(Id context, const std::string& deployment, const std::string& hash) {
  return read_hash_field(context, kDeploymentBlobsKey + deployment, hash, "blob");
}

Result<std::vector<std::string>> WorkflowStore::read_blobs(Id context, const std::string& deployment,
                                                           const std::vector<std::string>& hashes) {
  if (hashes.empty()) return std::vector<std::string>();
  const std::string key = kDeploymentBlobsKey + deployment;
  Arguments arguments{"HMGET", key};
  for (const std::string& hash : hashes) arguments.add(hash);
  MJ_TRY(reply, links_->command(context, arguments));
  std::vector<std::string> result;
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    if (reply.at(i).is_nil()) return fail(Code::not_found, "blob " + hashes[i] + " does not exist");
    result.emplace_back(reply.at(i).text());
  }
  return result;
}

Result<DeploymentReadResult> WorkflowStore::read(Id context, const std::string& deployment, std::uint64_t after,
                                                 std::uint32_t max) {
  MJ_TRY(reply, links_->run(context, scripts::world_read, Arguments{deployment}.add(after).add(std::uint64_t{max})));
  DeploymentReadResult result;
  result.height = reply.at(0).number();
  result.snapshot_height = reply.at(1).number();
  result.snapshot = reply.at(2).text();
  result.facts = to_texts(reply.at(3));
  result.manifest = reply.at(4).text();
  return result;
}

Result<std::vector<std::string>> WorkflowStore::read_facts(Id context, const std::string& deployment,
                                                           const std::vector<std::uint64_t>& heights) {
  Arguments arguments;
  arguments.add(deployment).add(std::uint64_t{heights.size()});
  for (const std::uint64_t height : heights) arguments.add(height);
  MJ_TRY(reply, links_->run(context, scripts::world_facts, arguments));
  return to_texts(reply);
}

Result<InstanceFacts> WorkflowStore::read_instance_facts(Id context, const std::string& deployment,
                                                         const std::string& instance, std::uint64_t after) {
  constexpr std::uint64_t kMaxFacts = 1000;
  MJ_TRY(reply,
         links_->run(context, scripts::world_cell, Arguments{deployment}.add(instance).add(after).add(kMaxFacts)));
  InstanceFacts result;
  result.height = reply.at(0).number();
  result.snapshot_height = reply.at(1).number();
  result.snapshot = reply.at(2).text();
  result.read_height = reply.at(3).number();
  const Reply& facts = reply.at(4);
  for (std::size_t i = 0; i + 1 < facts.size(); i += 2)
    result.facts.emplace_back(facts.at(i).number(), facts.at(i + 1).text());
  return result;
}

Result<std::vector<std::string>> WorkflowStore::blobs(Id context, const std::string& deployment) {
  MJ_TRY(reply, links_->command(context, Arguments{"HKEYS", kDeploymentBlobsKey + deployment}));
  return to_texts(reply);
}

Result<void> WorkflowStore::drop_blobs(Id context, const std::string& deployment, std::uint64_t base_height,
                                       const std::vector<std::string>& hashes) {
  Arguments arguments;
  arguments.add(deployment).add(base_height).add(std::uint64_t{hashes.size()});
  for (const std::string& hash : hashes) arguments.add(hash);
  MJ_TRY(reply, links_->run(context, scripts::world_collect, arguments));
  if (reply.text() == "conflict") return fail(Code::conflict, deployment + ": it has changed since");
  return {};
}

Result<void> WorkflowStore::commit(const DeploymentCommit& request) { return commit_manifest(request, "*"); }
Result<void> WorkflowStore::commit_manifest(const DeploymentCommit& request, const std::string& expected_applies) {
  Arguments arguments;
  arguments.add(std::uint64_t{request.context}).add(request.deployment).add(request.base_height).add(request.due_ms);
  arguments.add(std::uint64_t{request.facts.size()});
  for (const std::string& fact : request.facts) arguments.add(fact);
  arguments.add_list(request.blobs).add(std::uint64_t{request.processed_entries.size()});
  for (const std::string& id : request.processed_entries) arguments.add(id);
  arguments.add(request.snapshot).add(request.manifest).add(std::uint64_t{request.requires_empty_inbox});
  arguments.add(std::uint64_t{request.full_instances.has_value()});
  if (request.full_instances) arguments.add(std::uint64_t{request.full_instances->size()});
  if (request.full_instances)
    for (const std::string& instance : *request.full_instances) arguments.add(instance);
  arguments.add(expected_applies).add_list(request.changes);
  MJ_TRY(reply, links_->run(request.context, scripts::world_commit, arguments));
  const bool is_committed = reply.at(0).text() == "done";
  links_->metrics().add(Metric::workflow_commits, {request.context, is_committed ? "ok" : "conflict"});
  if (is_committed) return {};
  if (reply.at(0).text() == "applied")
    return fail(Code::conflict, request.deployment + ": another manifest was applied in the meantime");
  if (reply.at(0).text() == "busy")
    return fail(Code::conflict, request.deployment + ": " + count_with_noun(reply.at(1).number(), "event") +
                                    " wait for a coordinator: try again when they are processed");
  return fail(Code::conflict, request.deployment + ": is at height " + std::string(reply.at(1).text()) + ", not at " +
                                  std::to_string(request.base_height) + ": another client was faster");
}

Result<PostResult> WorkflowStore::post(Id context, const std::string& deployment, const std::string& kind,
                                       const Fields& fields, const PostRules& rules) {
  Fields fields_with_kind = fields;
  fields_with_kind.emplace_back("kind", kind);
  if (!rules.targets.empty()) fields_with_kind.emplace_back("to", join_instances(rules.targets));
  Arguments arguments;
  arguments.add(std::uint64_t{context}).add(deployment).add(kMaxInboxEntries).add(rules.manifest);
  arguments.add(rules.key).add(rules.content_hash).add(kDeploymentKeyRetentionMs).add(kMaxDeploymentKeys);
  arguments.add(std::uint64_t{rules.targets.size()});
  for (const PostTarget& target : rules.targets) arguments.add(target.instance);
  MJ_TRY(reply, links_->run(context, scripts::world_post, arguments.add_list(fields_with_kind)));
  const std::string_view status = reply.at(0).text();
  if (status == "used")
    return fail(Code::conflict, "idempotency_key: event " + std::string(reply.at(1).text()) + " of " + deployment +
                                    " was sent with this key and has other content: use another key");
  if (status == "none")
    return fail(Code::not_found, deployment + ": the workflow does not exist in context " + std::to_string(context) +
                                     "; mycojobs workflow list shows all workflows");
  if (status == "other")
    return fail(Code::conflict, deployment + ": another manifest is in force since it was checked");
  if (status == "full")
    return fail(Code::too_large, deployment + ": " + std::to_string(kMaxInboxEntries) +
                                     " events or 256 MiB of them already wait: check that a coordinator runs");
  if (status == "busy")
    return fail(Code::too_large, rules.targets.at(reply.at(1).number()).display_name +
                                     " has the maximum number of waiting events: send again after it has processed "
                                     "some; `mycojobs workflow explain` shows its state");
  return PostResult{std::string(reply.at(1).text()), status == "repeated"};
}

Result<std::vector<InboxEntry>> WorkflowStore::read_inbox(Id context, const std::string& deployment, std::uint32_t max,
                                                          std::uint64_t max_bytes, const std::string& after) {
  MJ_TRY(reply, links_->run(context, scripts::world_mail,
                            Arguments{deployment}.add(std::uint64_t{max}).add(max_bytes).add(after)));
  std::vector<InboxEntry> entries;
  for (std::size_t i = 0; i < reply.size(); ++i) {
    InboxEntry entry{std::string(reply.at(i).at(0).text()), {}, reply.at(i).at(1).fields()};
    entry.kind = field_of(entry.fields, "kind");
    entries.push_back(std::move(entry));
  }
  return entries;
}

Result<std::pair<std::vector<std::string>, std::uint64_t>> WorkflowStore::due_deployments(Id context,
                                                                                          std::uint32_t max) {
  MJ_TRY(reply, links_->run(context, scripts::world_due, Arguments{}.add(std::uint64_t{max})));
  return std::pair(to_texts(reply.at(0)), reply.at(1).number());
}

Result<std::vector<DeploymentPollResult>> WorkflowStore::poll(Id context, const std::vector<DeploymentPoll>& polls) {
  Arguments arguments;
  arguments.add(std::uint64_t{polls.size()});
  for (const DeploymentPoll& poll : polls) {
    arguments.add(poll.deployment).add(std::uint64_t{poll.effect_refs.size()});
    for (const std::string& effect_ref : poll.effect_refs) arguments.add(effect_ref);
  }
  MJ_TRY(reply, links_->run(context, scripts::world_glance, arguments));
  std::vector<DeploymentPollResult> results;
  for (std::size_t i = 0; i < polls.size(); ++i) {
    const Reply& row = reply.at(1).at(i);
    DeploymentPollResult result{row.at(0).number(), reply.at(0).number(), row.at(1).number(), {}};
    for (std::size_t j = 0; j < row.at(2).size(); ++j)
      result.ended_effects.push_back(polls[i].effect_refs.at(row.at(2).at(j).number()));
    results.push_back(std::move(result));
  }
  return results;
}

Result<std::uint64_t> WorkflowStore::now_ms() {
  MJ_TRY(redis, links_->link(0));
  MJ_TRY(reply, redis->command({"TIME"}));
  return reply.at(0).number() * 1000 + reply.at(1).number() / 1000;
}

Result<DeploymentStoreState> WorkflowStore::read_state(Id context, const std::string& deployment) {
  MJ_TRY(reply, links_->run(context, scripts::world_places, Arguments{deployment}));
  DeploymentStoreState state;
  state.height = reply.at(0).number();
  state.snapshot_height = reply.at(1).number();
  state.snapshot = reply.at(2).text();
  state.manifest = reply.at(3).text();
  state.is_listed = reply.at(4).number() == 1;
  state.due_ms = reply.at(5).number();
  state.inbox_entries = reply.at(6).number();
  state.now_ms = reply.at(7).number();
  state.full_instances = to_texts(reply.at(8));
  std::sort(state.full_instances.begin(), state.full_instances.end());
  return state;
}

Result<bool> WorkflowStore::repair(Id context, const std::string& deployment, std::uint64_t height,
                                   const std::vector<DeploymentFix>& fixes) {
  static constexpr const char* kKindNames[] = {"list", "due", "head", "snapshot", "open", "notice", "mark"};
  Arguments arguments;
  arguments.add(std::uint64_t{context}).add(deployment).add(height).add(std::uint64_t{fixes.size()});
  for (const DeploymentFix& fix : fixes)
    arguments.add(kKindNames[static_cast<std::size_t>(fix.kind)]).add(fix.value).add(fix.effect_ref);
  MJ_TRY(reply, links_->run(context, scripts::world_repair, arguments));
  return reply.text() == "done";
}

}  // namespace mycojobs
