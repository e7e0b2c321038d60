#include "executors/plugin/plugin_client.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/log.h"
#include "domain/policy.h"
#include "domain/profiles.h"
#include "executors/plugin/plugin_file.h"
#include "executors/plugin/texts.h"

namespace mycojobs::plugin {
namespace {

// A name is spelled as a script type is.
constexpr const char* kSpelling = " is no name: 1 to 32 of a-z, 0-9, '_' and '-', a letter first";

Result<void> check_description(const Description& about) {
  if (!is_script_type(about.name)) return fail(Code::invalid, "name: " + shown(about.name) + kSpelling);
  const bool printable =
      std::all_of(about.version.begin(), about.version.end(), [](char c) { return c >= ' ' && c <= '~'; });
  if (about.version.empty() || about.version.size() > 64 || !printable) {
    return fail(Code::invalid, "version: it has 1 to 64 printable ASCII characters, as in 1.2.0");
  }
  for (auto type = about.script_types.begin(); type != about.script_types.end(); ++type) {
    if (!is_script_type(*type)) return fail(Code::invalid, "script_types: " + shown(*type) + kSpelling);
    if (std::find(about.script_types.begin(), type, *type) != type) {
      return fail(Code::invalid, "script_types: " + shown(*type) + " is there twice");
    }
  }
  return {};
}

Result<Policy> profile_of(const Description& about) {
  const PolicyRead read = read_policy(about.profile, "profile");
  if (!read.ok()) return fail(Code::invalid, join(read.problems));
  return applied(mycojobs::profile("command"), read.request);
}

}  // namespace

Result<std::unique_ptr<PluginClient>> PluginClient::load(PluginOptions options, const Clock& clock) {
  std::unique_ptr<PluginClient> made(new PluginClient(std::move(options), clock));
  PluginClient& client = *made;
  MJ_TRY(opened, open_plugin_file(client.options_.file));
  client.opened_ = std::move(opened);
  MJ_TRY(host,
         HostProcess::start(client.options_.host, client.opened_.get(), client.options_.file, client.options_.load_ms));
  MJ_CHECK(check_description(host->description()));
  MJ_TRY(profile, profile_of(host->description()));
  client.description_ = host->description();
  client.profile_ = std::move(profile);
  client.host_ = std::move(host);
  return made;
}

tl::unexpected<Error> PluginClient::fault(const std::string& how) {
  host_.reset();
  rest_.failed(clock_.boot_ms());
  last_fault_ = how;
  log(LogLevel::warn, "plugin", "{}: {}; faults in a row: {}", description_.name, how, rest_.faults());
  return fail(Code::unavailable, fmt::format("plugin {}: {}", description_.name, how));
}

Result<void> PluginClient::ensure_host() {
  if (host_) return {};
  if (const std::uint64_t left = rest_.left_ms(clock_.boot_ms()); left > 0 && options_.rests) {
    return fail(Code::unsupported,
                fmt::format("plugin {}: it rests for {} s more after {} faults in a row, the last: {}",
                            description_.name, (left + 999) / 1000, rest_.faults(), last_fault_));
  }
  auto host = HostProcess::start(options_.host, opened_.get(), options_.file, options_.load_ms);
  if (!host) return fault(host.error().message);
  if ((*host)->description() != description_) return fault("its file was changed in place: start the agent again");
  host_ = std::move(*host);
  return {};
}

Result<std::string> PluginClient::ask(WireKind kind, std::string_view text, std::uint32_t limit_ms) {
  MJ_CHECK(ensure_host());
  auto reply = host_->call(kind, text, limit_ms);
  if (!reply && reply.error().code == Code::too_large) return tl::unexpected(std::move(reply).error());
  if (!reply) return fault(reply.error().message);
  const char* function = kind == WireKind::probe ? "probe" : kind == WireKind::prepare ? "prepare" : "interpret";
  switch (reply->kind) {
    case WireKind::answer:
      return std::move(reply->text);
    case WireKind::nothing:
      if (kind == WireKind::interpret) return "{}";
      return fault(fmt::format("it returned NULL from {}", function));
    case WireKind::threw:
      return fault(fmt::format("it let a C++ exception out of {}", function));
    default:
      return fault(fmt::format("it returned more than {} bytes from {}", kMaxReplyBytes, function));
  }
}

// The end of a call: the reply made sense, or it is one more fault.
template <class T>
Result<T> PluginClient::understood(Result<T> read, std::string_view function) {
  if (!read)
    return fault(fmt::format("what it returned from {} is wrong: {}", function, printable_line(read.error().message)));
  rest_.worked();
  return read;
}

Result<std::string> PluginClient::probe() {
  const std::lock_guard lock(mutex_);
  MJ_TRY(reply, ask(WireKind::probe, {}, options_.probe_ms));
  MJ_TRY(probed, understood(read_probe(reply), "probe"));
  if (probed.refusal) return fail(Code::invalid, probed.refusal->error);
  return std::move(probed.runs);
}

Result<Prepared> PluginClient::prepare(std::string_view job_json) {
  const std::lock_guard lock(mutex_);
  MJ_TRY(reply, ask(WireKind::prepare, job_json, options_.prepare_ms));
  MJ_TRY(prepared, understood(read_prepare(reply), "prepare"));
  if (const auto& refusal = prepared.refusal; refusal) {
    return fail(Code::invalid, refusal->field.empty() ? refusal->error : refusal->field + ": " + refusal->error);
  }
  return std::move(prepared);
}

Result<Interpreted> PluginClient::interpret(std::string_view outcome_json) {
  if (!description_.interprets) return Interpreted();
  const std::lock_guard lock(mutex_);
  MJ_TRY(reply, ask(WireKind::interpret, outcome_json, options_.interpret_ms));
  return understood(read_interpret(reply), "interpret");
}

}  // namespace mycojobs::plugin
