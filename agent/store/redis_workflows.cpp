#include "store/redis_workflows.h"

#include <algorithm>

#include "base/counted.h"

namespace mycojobs {
namespace {

class RedisWorkflows final : public WorkflowStore, private ContextLinks {
 public:
  RedisWorkflows(OpenLink open, Observed observed) : ContextLinks(std::move(open), std::move(observed)) {}

  Result<std::vector<std::string>> worlds(Id context) override {
    MJ_TRY(reply, command(context, {"SMEMBERS", "mj:worlds"}));
    auto names = texts(reply);
    std::sort(names.begin(), names.end());
    return names;
  }

  Result<void> put_manifest(Id context, const std::string& world, const std::string& hash,
                            const std::string& text) override {
    MJ_TRY(reply, run(context, scripts::world_put_manifest, Arguments{world, hash, text}));
    if (reply.text() == "other")
      return fail(Code::conflict, world + ": manifest " + hash + " is there with other content");
    return {};
  }

  Result<std::string> manifest(Id context, const std::string& world, const std::string& hash) override {
    return field(context, "mj:world-manifests:" + world, hash, "manifest");
  }
  Result<std::string> blob(Id context, const std::string& world, const std::string& hash) override {
    return field(context, "mj:world-blobs:" + world, hash, "blob");
  }

  Result<WorldRead> read(Id context, const std::string& world, std::uint64_t after, std::uint32_t most) override {
    MJ_TRY(reply, run(context, scripts::world_read, Arguments{world}.add(after).add(std::uint64_t{most})));
    WorldRead read;
    read.height = reply.at(0).number();
    read.snapshot_height = reply.at(1).number();
    read.snapshot = reply.at(2).text();
    read.facts = texts(reply.at(3));
    read.manifest = reply.at(4).text();
    return read;
  }

  Result<std::vector<std::string>> blobs(Id context, const std::string& world) override {
    MJ_TRY(reply, command(context, Arguments{"HKEYS", "mj:world-blobs:" + world}));
    return texts(reply);
  }
  Result<void> drop_blobs(Id context, const std::string& world, std::uint64_t base,
                          const std::vector<std::string>& hashes) override {
    Arguments arguments;
    arguments.add(world).add(base).add(std::uint64_t{hashes.size()});
    for (const std::string& hash : hashes) arguments.add(hash);
    MJ_TRY(reply, run(context, scripts::world_collect, arguments));
    if (reply.text() == "conflict") return fail(Code::conflict, world + ": it has moved on since");
    return {};
  }

  Result<void> commit(const WorldCommit& wanted) override {
    Fields blobs(wanted.blobs.begin(), wanted.blobs.end());
    Arguments arguments;
    arguments.add(std::uint64_t{wanted.context}).add(wanted.world).add(wanted.base).add(wanted.due_ms);
    arguments.add(std::uint64_t{wanted.facts.size()});
    for (const std::string& fact : wanted.facts) arguments.add(fact);
    arguments.add_list(blobs).add(std::uint64_t{wanted.done.size()});
    for (const std::string& id : wanted.done) arguments.add(id);
    MJ_TRY(reply, run(wanted.context, scripts::world_commit,
                      arguments.add(wanted.snapshot).add(wanted.manifest).add(std::uint64_t{wanted.alone})));
    const bool done = reply.at(0).text() == "done";
    metrics().add(Metric::workflow_commits, {wanted.context, done ? "ok" : "conflict"});
    if (done) return {};
    if (reply.at(0).text() == "busy")
      return fail(Code::conflict, wanted.world + ": " + counted(reply.at(1).number(), "event") +
                                      " wait for a coordinator: try again when they are worked off");
    return fail(Code::conflict, wanted.world + ": is at height " + std::string(reply.at(1).text()) + ", not at " +
                                    std::to_string(wanted.base) + ": somebody else was faster");
  }

  Result<void> post(Id context, const std::string& world, const std::string& kind, const Fields& fields,
                    const std::string& manifest) override {
    Fields all = fields;
    all.emplace_back("kind", kind);
    Arguments arguments;
    arguments.add(std::uint64_t{context}).add(world).add(kMaxWorldMail).add(manifest).add_list(all);
    MJ_TRY(reply, run(context, scripts::world_post, arguments));
    if (reply.text() == "none")
      return fail(Code::not_found, world + ": there is no such workflow in context " + std::to_string(context) +
                                       "; mycojobs workflow list names those there are");
    if (reply.text() == "other")
      return fail(Code::conflict, world + ": another manifest is in force since it was checked");
    if (reply.text() == "full")
      return fail(Code::too_large,
                  world + ": " + std::to_string(kMaxWorldMail) + " events wait already: is a coordinator there?");
    return {};
  }

  Result<std::vector<WorldMail>> mail(Id context, const std::string& world, std::uint32_t most) override {
    const std::string key = "mj:world-in:" + world;
    MJ_TRY(reply, command(context, Arguments{"XRANGE", key, "-", "+", "COUNT"}.add(std::uint64_t{most})));
    std::vector<WorldMail> all;
    for (std::size_t i = 0; i < reply.size(); ++i) {
      WorldMail mail{std::string(reply.at(i).at(0).text()), {}, reply.at(i).at(1).fields()};
      const auto kind =
          std::find_if(mail.fields.begin(), mail.fields.end(), [](const auto& f) { return f.first == "kind"; });
      if (kind != mail.fields.end()) mail.kind = kind->second;
      all.push_back(std::move(mail));
    }
    return all;
  }

  Result<std::pair<std::vector<std::string>, std::uint64_t>> due(Id context, std::uint32_t most) override {
    MJ_TRY(reply, run(context, scripts::world_due, Arguments{}.add(std::uint64_t{most})));
    return std::pair(texts(reply.at(0)), reply.at(1).number());
  }

  Result<std::uint64_t> now_ms() override {
    MJ_TRY(redis, link(0));
    MJ_TRY(reply, redis->command({"TIME"}));
    return reply.at(0).number() * 1000 + reply.at(1).number() / 1000;
  }

 private:
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

std::unique_ptr<WorkflowStore> make_redis_workflows(OpenLink open, Observed observed) {
  return std::make_unique<RedisWorkflows>(std::move(open), std::move(observed));
}

}  // namespace mycojobs
