// The fields of a node, and how each is read.
#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "base/ids.h"
#include "domain/codec.h"
#include "domain/flow_plan_read.h"
#include "domain/utf8.h"

namespace mycojobs::plans {
namespace {

constexpr std::size_t kMaxLogBytes = 64U << 10;
constexpr std::size_t kMaxChildKeyBytes = 255;
constexpr std::size_t kMaxPrerequisites = 100;
constexpr std::size_t kMaxApprovers = 1000;

constexpr std::uint32_t kAll = 63;
constexpr std::uint32_t kJob = bit(NodeKind::job);

template <class T>
void read_into(const Spot& spot, std::int64_t least, std::int64_t most, T& out) {
  std::int64_t number = 0;
  if (read_whole(spot, least, most, number)) out = static_cast<T>(number);
}

void read_names(const Spot& spot, std::vector<Named>& out) {
  each_of(spot, [&out](const Spot& item) {
    std::string name;
    if (read_text(item, name)) out.push_back({std::move(name), item.path});
  });
}

void read_texts(const Spot& spot, std::vector<std::string>& out) {
  each_of(spot, [&out](const Spot& item) {
    std::string text;
    if (read_text(item, text)) out.push_back(std::move(text));
  });
}

void read_on_error(const Spot& spot, Draft& draft, int) {
  std::string word;
  if (!read_text(spot, word)) return;
  draft.says_on_error = true;
  draft.route.reset();
  draft.node.on_error = word == "continue" ? OnError::go_on : OnError::stop;
  if (word != "stop" && word != "continue") {
    draft.node.on_error = OnError::route;
    draft.route = Named{std::move(word), spot.path};
  }
}

void read_compensate(const Spot& spot, Draft& draft, int) {
  std::string name;
  if (read_text(spot, name)) draft.compensation = Named{std::move(name), spot.path};
}

// approval:NAME, signal:NAME and flow:ID are the flow's; the others stay with the job, whose agent knows what its
// operator allows.
void read_prerequisite(const Spot& spot, Draft& draft) {
  std::string text;
  if (!read_text(spot, text)) return;
  auto& gates = draft.node.gates;
  auto& others = draft.node.job.prerequisites;
  if (gates.size() + others.size() >= kMaxPrerequisites) {
    return spot.refuse("a node has at most " + std::to_string(kMaxPrerequisites) + " prerequisites");
  }
  const std::string rest = text.substr(text.find(':') + 1);
  if (text.starts_with("approval:") || text.starts_with("signal:")) {
    if (!is_node_name(rest)) {
      return spot.refuse(shown(text, 90) +
                         ": after the ':' stands a name: 1 to 64 of letters, digits, '_' and '-', a "
                         "letter or '_' first");
    }
  } else if (text.starts_with("flow:")) {
    std::uint64_t id = 0;
    if (!parse_u64(rest, id) || id == 0 || id > UINT32_MAX) {
      return spot.refuse(shown(text) + ": after the ':' stands the id of a flow, as in flow:12");
    }
  } else {
    static constexpr std::array<std::string_view, 7> kOthers{
        "wait:", "at:", "redis:", "file:", "tcp:", "http://", "https://"};
    const bool known = std::any_of(kOthers.begin(), kOthers.end(), [&](auto each) { return text.starts_with(each); });
    if (!known) {
      return spot.refuse(shown(text) +
                         " is no prerequisite: they begin with approval:, signal:, flow:, wait:, at:, "
                         "redis:, file:, tcp:, http:// or https://");
    }
    if (draft.node.kind != NodeKind::job) {
      return spot.refuse(shown(text) + " is looked after by the agents of jobs: put a job with it before this node");
    }
    others.push_back(std::move(text));
    return;
  }
  if (std::find(gates.begin(), gates.end(), text) != gates.end())
    return spot.refuse(shown(text) + " stands here twice");
  gates.push_back(std::move(text));
}

void read_timeout(const Spot& spot, Draft& draft, int) {
  std::uint64_t ms = 0;
  if (!read_duration(spot, ms)) return;
  if (draft.node.kind != NodeKind::job) {
    if (draft.node.timeout_ms != 0) return spot.refuse("is given twice: at the node and in what it has");
    draft.node.timeout_ms = ms;
  } else {
    draft.node.job.timeout = static_cast<std::uint32_t>((ms + 999) / 1000);
  }
}

void read_approvers(const Spot& spot, Draft& draft) {
  if (spot.value.is_array() && spot.value.empty()) {
    return spot.refuse("is empty: name an actor, or leave it out, so that everybody may who may write");
  }
  if (spot.value.size() > kMaxApprovers) {
    return spot.refuse("has more than " + std::to_string(kMaxApprovers) +
                       " actors: leave it out, and let admins decide");
  }
  each_of(spot, [&draft](const Spot& item) {
    Id id = 0;
    read_into(item, 1, UINT32_MAX, id);
    auto& known = draft.node.approvers;
    if (id != 0 && std::find(known.begin(), known.end(), id) == known.end()) known.push_back(id);
  });
}

// approval, pause: a text, true, or a map.
void read_manual(const Spot& spot, Draft& draft, int) {
  const bool approval = draft.node.kind == NodeKind::approval;
  if (spot.value.is_string()) {
    read_text(spot, draft.node.text);
    return;
  }
  if (spot.value == true) return;
  if (!spot.value.is_object()) {
    spot.wrong(approval ? "true, a text, or a map of approvers, timeout and comment"
                        : "true, a text, or a map of timeout and comment");
    return;
  }
  for (const auto& item : spot.value.items()) {
    const Spot field = spot.at(item.value(), item.key());
    if (item.key() == "comment") {
      read_text(field, draft.node.text);
    } else if (item.key() == "timeout") {
      read_timeout(field, draft, 0);
    } else if (item.key() == "approvers" && approval) {
      read_approvers(field, draft);
    } else {
      field.refuse(approval ? "unknown field of an approval: there are approvers, timeout and comment"
                            : "unknown field of a pause: there are timeout and comment");
    }
  }
}

void read_log(const Spot& spot, Draft& draft, int) {
  if (!read_text(spot, draft.node.text) || draft.node.text.size() <= kMaxLogBytes) return;
  spot.refuse("is longer than " + std::to_string(kMaxLogBytes) + " bytes");
}

void read_child(const Spot& spot, Draft& draft, int depth) {
  if (depth + 1 > kMaxChildDepth) {
    return spot.refuse("flows within flows are deeper than " + std::to_string(kMaxChildDepth) + " levels");
  }
  const FlowPlan child = read_flow(spot, depth + 1);
  if (!child.missing.empty()) {
    spot.refuse("its input " + child.missing.front() + " has no value: give it a default, or given: {" +
                child.missing.front() + ": ...}");
  }
  draft.node.child = dump_json(spot.value);
}

void read_supervisor(const Spot& spot, Draft& draft, int) {
  std::string& url = draft.node.supervisor_url;
  if (!read_text(spot, url)) return;
  std::uint64_t id = 0;
  const bool runner = url.starts_with("runner:") && parse_u64(std::string_view(url).substr(7), id) && id > 0;
  const bool plain = std::all_of(url.begin(), url.end(), [](char c) { return c > ' ' && c < 0x7f; });
  const bool web = (url.starts_with("http://") && url.size() > 7) || (url.starts_with("https://") && url.size() > 8);
  if (!runner && !(web && plain && url.size() <= 2048)) {
    spot.refuse(shown(url) + " is no supervisor: give http://HOST:PORT, https://HOST or runner:ID");
  }
}

void read_inputs(const Spot& spot, Draft& draft, int) {
  read_texts(spot, draft.node.job.inputs);
  each_of(spot, [&draft](const Spot& item) {
    if (const auto* text = item.value.get_ptr<const std::string*>()) {
      draft.inputs.push_back({text->substr(0, text->find('/')), item.path});
    }
  });
}

void read_policy_field(const Spot& spot, Draft& draft, int) {
  if (!spot.value.is_object()) {
    spot.wrong("a map as in docs/manual.md#policies");
    return;
  }
  if (!spot.value.empty()) draft.node.job.policy = dump_json(spot.value);
}

void read_key(const Spot& spot, Draft& draft, int) {
  if (!read_text(spot, draft.node.child_key) || draft.node.child_key.size() <= kMaxChildKeyBytes) return;
  spot.refuse("is longer than " + std::to_string(kMaxChildKeyBytes) + " bytes");
}

#define MJ_TEXT(member) [](const Spot& spot, Draft& draft, int) { read_text(spot, draft.node.member); }
#define MJ_WHOLE(member, least, most) \
  [](const Spot& spot, Draft& draft, int) { read_into(spot, least, most, draft.node.member); }
#define MJ_DURATION(member) [](const Spot& spot, Draft& draft, int) { read_duration(spot, draft.node.member); }

constexpr NodeField kFields[] = {
    {"script", kJob, MJ_TEXT(job.script), "text", "a job: what it runs"},
    {"file", kJob,
     [](const Spot& spot, Draft&, int) {
       spot.refuse("is only read by the command line, which puts the file's content in as script");
     },
     "path", "instead of script, in a file for the command line: the script's file, beside the flow's"},
    {"log", bit(NodeKind::log), read_log, "text", "writes this line to the run's log"},
    {"wait", bit(NodeKind::wait), MJ_DURATION(wait_ms), "duration", "completes so long after it was reached"},
    {"pause", bit(NodeKind::pause), read_manual, "text, true, map of comment, timeout",
     "waits until somebody resumes it"},
    {"approval", bit(NodeKind::approval), read_manual, "text, true, map of approvers, timeout, comment",
     "waits until somebody approves it, or rejects it: then it fails"},
    {"flow", bit(NodeKind::flow), read_child, "a flow",
     "starts this flow; completes with its end, and with its result"},
    {"each", kJob, read_each, "list, map, inputs.NAME, NODE.KEY",
     "a node of this job for each element: NAME[0], NAME[1] ..."},
    {"max", kJob, read_max, "number", "most elements of each, 1 to 5000; of a result by default 100"},
    {"name", kAll, [](const Spot&, Draft&, int) {}, "text", "only in a list of jobs: the node's name"},
    {"needs", kAll, [](const Spot& spot, Draft& draft, int) { read_names(spot, draft.needs); }, "name, list of names",
     "nodes that must have ended before it begins"},
    {"when", kAll,
     [](const Spot& spot, Draft& draft, int) { each_of(spot, [&](const Spot& item) { read_condition(item, draft); }); },
     "condition, list of conditions", "all must hold, else the node is skipped"},
    {"on_error", kAll, read_on_error, "stop, continue, name", "what its failure does; a name: that node takes over"},
    {"compensate", kAll, read_compensate, "name",
     "a node that runs if the flow fails or is cancelled after this one has completed"},
    {"irreversible", kAll, [](const Spot& spot, Draft& draft, int) { read_switch(spot, draft.node.irreversible); },
     "true, false", "once it has completed, the flow is replayed only if that is allowed by name"},
    {"prerequisites", kAll,
     [](const Spot& spot, Draft& draft, int) {
       each_of(spot, [&](const Spot& item) { read_prerequisite(item, draft); });
     },
     "text, list of texts",
     "what must hold before it begins: approval:NAME, signal:NAME, flow:ID; of a job also "
     "wait:, at:, redis:, file:, tcp:, http:// and https://"},
    {"gate_timeout", kAll - bit(NodeKind::approval) - bit(NodeKind::pause), MJ_DURATION(timeout_ms), "duration",
     "longest wait for approval:, signal: and flow:; then the node fails; default: any"},
    {"timeout", kJob | bit(NodeKind::approval) | bit(NodeKind::pause), read_timeout, "duration",
     "of a job's attempt; of an approval or pause: longest wait, gates included, then it fails"},
    {"type", kJob, MJ_TEXT(job.script_type), "word", "script type, such as python; of a file: by its ending"},
    {"retries", kJob, MJ_WHOLE(job.retries, 0, UINT8_MAX), "number", "attempts after a failed one, 0 to 255"},
    {"env", kJob, [](const Spot& spot, Draft& draft, int) { read_map(spot, draft.node.job.env_vars); }, "map",
     "its environment, over the flow's"},
    {"policy", kJob, read_policy_field, "map", "what it asks of its sandbox"},
    {"inputs", kJob, read_inputs, "text, list of texts",
     "artifacts that it wants: NODE (all) or NODE/ARTIFACT, of nodes that it needs"},
    {"priority", kJob, MJ_WHOLE(job.priority, -100, 100), "number", "-100 to 100; higher is taken first"},
    {"queue_timeout", kJob, MJ_DURATION(job.queue_timeout_ms), "duration", "longest wait in its queue"},
    {"concurrency_key", kJob, MJ_TEXT(job.concurrency_key), "text",
     "of the context's jobs with this key only some run at one time"},
    {"concurrency_limit", kJob, MJ_WHOLE(job.concurrency_limit, 1, UINT32_MAX), "number", "so many of them; default 1"},
    {"supervisor_url", kJob, read_supervisor, "url",
     "where it runs, if not with any agent of the context: "
     "http://HOST:PORT, https://HOST, runner:ID"},
    {"notify", kJob, [](const Spot& spot, Draft& draft, int) { read_notify_field(spot, draft.node.job.notify); },
     "url, map, list of both", "who hears of its end, whatever the flow does: webhook, job or topic"},
    {"key", bit(NodeKind::flow), read_key, "text",
     "the child is started once for each key of its parent; default: the node's name"},
};

}  // namespace

std::span<const NodeField> node_fields() { return kFields; }

std::string_view meant_by(std::string_view field) {
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 17> kOthers{{
      {"depends", "needs"},
      {"depends_on", "needs"},
      {"dependends", "needs"},
      {"dependencies", "needs"},
      {"after", "needs"},
      {"if", "when"},
      {"foreach", "each"},
      {"for_each", "each"},
      {"matrix", "each"},
      {"payload", "script"},
      {"run", "script"},
      {"executor", "type"},
      {"script_type", "type"},
      {"env_vars", "env"},
      {"environment", "env"},
      {"sleep", "wait"},
      {"compensation", "compensate"},
  }};
  const auto* found =
      std::find_if(kOthers.begin(), kOthers.end(), [&](const auto& each) { return each.first == field; });
  return found == kOthers.end() ? std::string_view() : found->second;
}

}  // namespace mycojobs::plans
