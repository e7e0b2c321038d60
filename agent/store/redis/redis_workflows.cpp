#include "store/redis/redis_workflows.h"

#include <algorithm>

#include "text/plural.h"

namespace mycojobs {
namespace {

class RedisWorkflows final : public WorkflowStore, private ContextLinks {
 public:
  RedisWorkflows(OpenLink open, StoreInstrumentation observed) : ContextLinks(std::move(open), std::move(observed)) {}

  Result<std::vector<std::string>> list_deployments(Id context) override {
    MJ_TRY(reply, command(context, {"SMEMBERS", "mj:worlds"}));
    auto names = texts(reply);
    std::sort(names.begin(), names.end());
    return names;
  }

  Result<void> put_manifest(Id context, const std::string& deployment, const std::string& hash,
                            const std::string& text) override {
    MJ_TRY(reply, run(context, scripts::world_put_manifest, Arguments{deployment, hash, text}));
    if (reply.text() == "other")
      return fail(Code::conflict, deployment + ": manifest " + hash + " is there with other content");
    return {};
  }

  Result<std::string> manifest(Id context, const std::string& deployment, const std::string& hash) override {
    return field(context, "mj:world-manifests:" + deployment, hash, "manifest");
  }
  Result<std::string> blob(Id context, const std::string& deployment, const std::string& hash) override {
    return field(context, "mj:world-blobs:" + deployment, hash, "blob");
  }

  Result<DeploymentReadResult> read(Id context, const std::string& deployment, std::uint64_t after,
                                    std::uint32_t max) override {
    MJ_TRY(reply, run(context, scripts::world_read, Arguments{deployment}.add(after).add(std::uint64_t{max})));
    DeploymentReadResult read;
    read.height = reply.at(0).number();
    read.snapshot_height = reply.at(1).number();
    read.snapshot = reply.at(2).text();
    read.facts = texts(reply.at(3));
    read.manifest = reply.at(4).text();
    return read;
  }

  Result<std::vector<std::string>> blobs(Id context, const std::string& deployment) override {
    MJ_TRY(reply, command(context, Arguments{"HKEYS", "mj:world-blobs:" + deployment}));
    return texts(reply);
  }
  Result<void> drop_blobs(Id context, const std::string& deployment, std::uint64_t base,
                          const std::vector<std::string>& hashes) override {
    Arguments arguments;
    arguments.add(deployment).add(base).add(std::uint64_t{hashes.size()});
    for (const std::string& hash : hashes) arguments.add(hash);
    MJ_TRY(reply, run(context, scripts::world_collect, arguments));
    if (reply.text() == "conflict") return fail(Code::conflict, deployment + ": it has moved on since");
    return {};
  }

  Result<void> commit(const DeploymentCommit& wanted) override { return commit(wanted, "*"); }
  Result<void> commit(const DeploymentCommit& wanted, const std::string& applies) {
    Arguments arguments;
    arguments.add(std::uint64_t{wanted.context}).add(wanted.deployment).add(wanted.base).add(wanted.due_ms);
    arguments.add(std::uint64_t{wanted.facts.size()});
    for (const std::string& fact : wanted.facts) arguments.add(fact);
    arguments.add_list(wanted.blobs).add(std::uint64_t{wanted.done.size()});
    for (const std::string& id : wanted.done) arguments.add(id);
    arguments.add(wanted.snapshot).add(wanted.manifest).add(std::uint64_t{wanted.alone});
    arguments.add(std::uint64_t{wanted.full.has_value()});
    if (wanted.full) arguments.add(std::uint64_t{wanted.full->size()});
    if (wanted.full)
      for (const std::string& each : *wanted.full) arguments.add(each);
    arguments.add(applies);
    MJ_TRY(reply, run(wanted.context, scripts::world_commit, arguments));
    const bool done = reply.at(0).text() == "done";
    metrics().add(Metric::workflow_commits, {wanted.context, done ? "ok" : "conflict"});
    if (done) return {};
    if (reply.at(0).text() == "applied")
      return fail(Code::conflict, wanted.deployment + ": another manifest was applied in the meantime");
    if (reply.at(0).text() == "busy")
      return fail(Code::conflict, wanted.deployment + ": " + count_with_noun(reply.at(1).number(), "event") +
                                      " wait for a coordinator: try again when they are worked off");
    return fail(Code::conflict, wanted.deployment + ": is at height " + std::string(reply.at(1).text()) + ", not at " +
                                    std::to_string(wanted.base) + ": another client was faster");
  }

  Result<PostResult> post(Id context, const std::string& deployment, const std::string& kind, const Fields& fields,
                          const PostRules& rules) override {
    Fields all = fields;
    all.emplace_back("kind", kind);
    if (!rules.targets.empty()) all.emplace_back("to", names_of(rules.targets));
    Arguments arguments;
    arguments.add(std::uint64_t{context}).add(deployment).add(kMaxDeploymentMail).add(rules.manifest);
    arguments.add(rules.key).add(rules.content).add(kDeploymentKeyMs).add(kMaxDeploymentKeys);
    arguments.add(std::uint64_t{rules.targets.size()});
    for (const PostTarget& target : rules.targets) arguments.add(target.instance);
    MJ_TRY(reply, run(context, scripts::world_post, arguments.add_list(all)));
    const std::string_view done = reply.at(0).text();
    if (done == "used")
      return fail(Code::conflict, "idempotency_key: event " + std::string(reply.at(1).text()) + " of " + deployment +
                                      " was sent with this key and has other content: use another key");
    if (done == "none")
      return fail(Code::not_found, deployment + ": the workflow does not exist in context " + std::to_string(context) +
                                       "; mycojobs workflow list shows all workflows");
    if (done == "other")
      return fail(Code::conflict, deployment + ": another manifest is in force since it was checked");
    if (done == "full")
      return fail(Code::too_large, deployment + ": " + std::to_string(kMaxDeploymentMail) +
                                       " events or 256 MiB of them already wait: check that a coordinator runs");
    if (done == "busy")
      return fail(Code::too_large, rules.targets.at(reply.at(1).number()).shown +
                                       " has the maximum number of waiting events: send again after it has processed "
                                       "some; `mycojobs workflow explain` shows its state");
    return PostResult{std::string(reply.at(1).text()), done == "repeated"};
  }

  Result<std::vector<InboxEntry>> mail(Id context, const std::string& deployment, std::uint32_t max,
                                       std::uint64_t most_bytes, const std::string& after) override {
    MJ_TRY(reply,
           run(context, scripts::world_mail, Arguments{deployment}.add(std::uint64_t{max}).add(most_bytes).add(after)));
    std::vector<InboxEntry> all;
    for (std::size_t i = 0; i < reply.size(); ++i) {
      InboxEntry mail{std::string(reply.at(i).at(0).text()), {}, reply.at(i).at(1).fields()};
      const auto kind =
          std::find_if(mail.fields.begin(), mail.fields.end(), [](const auto& f) { return f.first == "kind"; });
      if (kind != mail.fields.end()) mail.kind = kind->second;
      all.push_back(std::move(mail));
    }
    return all;
  }

  Result<std::pair<std::vector<std::string>, std::uint64_t>> due(Id context, std::uint32_t max) override {
    MJ_TRY(reply, run(context, scripts::world_due, Arguments{}.add(std::uint64_t{max})));
    return std::pair(texts(reply.at(0)), reply.at(1).number());
  }

  Result<std::vector<DeploymentPollResult>> poll(Id context, const std::vector<DeploymentPoll>& wanted) override {
    Arguments arguments;
    arguments.add(std::uint64_t{wanted.size()});
    for (const DeploymentPoll& each : wanted) {
      arguments.add(each.deployment).add(std::uint64_t{each.effect_refs.size()});
      for (const std::string& effect_ref : each.effect_refs) arguments.add(effect_ref);
    }
    MJ_TRY(reply, run(context, scripts::world_glance, arguments));
    std::vector<DeploymentPollResult> all;
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      const Reply& row = reply.at(1).at(i);
      DeploymentPollResult glance{row.at(0).number(), reply.at(0).number(), row.at(1).number(), {}};
      for (std::size_t j = 0; j < row.at(2).size(); ++j)
        glance.ended.push_back(wanted[i].effect_refs.at(row.at(2).at(j).number()));
      all.push_back(std::move(glance));
    }
    return all;
  }

  Result<std::uint64_t> now_ms() override {
    MJ_TRY(redis, link(0));
    MJ_TRY(reply, redis->command({"TIME"}));
    return reply.at(0).number() * 1000 + reply.at(1).number() / 1000;
  }

  Result<DeploymentStoreState> places(Id context, const std::string& deployment) override {
    MJ_TRY(reply, run(context, scripts::world_places, Arguments{deployment}));
    DeploymentStoreState places;
    places.height = reply.at(0).number();
    places.snapshot_height = reply.at(1).number();
    places.snapshot = reply.at(2).text();
    places.manifest = reply.at(3).text();
    places.listed = reply.at(4).number() == 1;
    places.due_ms = reply.at(5).number();
    places.mail = reply.at(6).number();
    places.now_ms = reply.at(7).number();
    places.full = texts(reply.at(8));
    std::sort(places.full.begin(), places.full.end());
    return places;
  }

  Result<bool> repair(Id context, const std::string& deployment, std::uint64_t height,
                      const std::vector<DeploymentFix>& fixes) override {
    static constexpr const char* kWords[] = {"list", "due", "head", "snapshot", "open", "notice", "mark"};
    Arguments arguments;
    arguments.add(std::uint64_t{context}).add(deployment).add(height).add(std::uint64_t{fixes.size()});
    for (const DeploymentFix& fix : fixes)
      arguments.add(kWords[static_cast<std::size_t>(fix.kind)]).add(fix.what).add(fix.of);
    MJ_TRY(reply, run(context, scripts::world_repair, arguments));
    return reply.text() == "done";
  }

 private:
  static std::string names_of(const std::vector<PostTarget>& targets) {
    std::string names;
    for (const PostTarget& target : targets) names += (names.empty() ? "" : ",") + target.instance;
    return names;
  }
  static std::vector<std::string> texts(const Reply& reply) {
    std::vector<std::string> all;
    for (std::size_t i = 0; i < reply.size(); ++i) all.emplace_back(reply.at(i).text());
    return all;
  }
  Result<std::string> field(Id context, const std::string& key, const std::string& hash, const std::string& what) {
    MJ_TRY(reply, command(context, {"HGET", key, hash}));
    if (reply.nil()) return fail(Code::not_found, what + ' ' + hash + " is not there");
    return std::string(reply.text());
  }
};

}  // namespace

Result<void> commit_manifest(WorkflowStore& store, const DeploymentCommit& wanted, const std::string& applies) {
  auto* redis = dynamic_cast<RedisWorkflows*>(&store);
  if (redis == nullptr) return fail(Code::unsupported, "this store applies no manifests under a condition");
  return redis->commit(wanted, applies);
}

std::unique_ptr<WorkflowStore> make_redis_workflows(OpenLink open, StoreInstrumentation observed) {
  return std::make_unique<RedisWorkflows>(std::move(open), std::move(observed));
}

}  // namespace mycojobs
