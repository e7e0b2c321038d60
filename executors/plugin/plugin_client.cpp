#include "executors/plugin/plugin_client.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "base/errno_text.h"
#include "base/log.h"
#include "domain/policy.h"
#include "domain/profiles.h"
#include "domain/utf8.h"

namespace mycojobs::plugin {
namespace {

constexpr mode_t kOthersWrite = S_IWGRP | S_IWOTH;

Result<void> check_owner(const std::string& what, const struct stat& about) {
  if (about.st_uid != 0 && about.st_uid != ::geteuid()) {
    return fail(Code::invalid,
                fmt::format("{}user {} owns it: chown it to root or to user {}", what, about.st_uid, ::geteuid()));
  }
  // In a sticky folder (/tmp) nobody replaces another one's file.
  const bool sticky = S_ISDIR(about.st_mode) && (about.st_mode & S_ISVTX) != 0;
  if ((about.st_mode & kOthersWrite) != 0 && !sticky) {
    return fail(Code::invalid,
                fmt::format("{}mode {:04o} lets others write it: chmod go-w", what, about.st_mode & 07777));
  }
  return {};
}

Result<void> check_folder(const std::string& path) {
  const auto slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  struct stat about {};
  if (::stat(folder.c_str(), &about) != 0) return fail(Code::io, folder + ": " + errno_text(errno));
  return check_owner("its folder " + folder + ": ", about);
}

// Opens it for reading: a regular file that root or our user owns and nobody else may write, in such a folder: it is
// code that decides what runs in jobs, so nobody but the operator may have a hand in it. Where we are root it must be
// readable for others, because it is loaded as user 65534. Error: invalid, with the remedy; not_found; io.
Result<Fd> open_plugin_file(const std::string& path) {
  constexpr const char* kNotRegular = "it is not a regular file: put the plugin itself there";
  // Neither through a link, nor waiting for whoever writes into a pipe.
  Fd file(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  if (!file && (errno == ELOOP || errno == ENXIO)) return fail(Code::invalid, kNotRegular);
  if (!file) return fail(errno == ENOENT ? Code::not_found : Code::io, errno_text(errno));
  struct stat about {};
  if (::fstat(file.get(), &about) != 0) return fail(Code::io, errno_text(errno));
  if (!S_ISREG(about.st_mode)) return fail(Code::invalid, kNotRegular);
  MJ_CHECK(check_owner("", about));
  MJ_CHECK(check_folder(path));
  if (::geteuid() == 0 && (about.st_mode & S_IROTH) == 0) {
    return fail(Code::invalid, fmt::format("mode {:04o}: it is loaded as user 65534, who may not read it: chmod o+r",
                                           about.st_mode & 07777));
  }
  return file;
}

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
  client.lane(0).host = std::move(host);
  return made;
}

PluginClient::Lane& PluginClient::lane(Id context) {
  const std::lock_guard lock(mutex_);
  return lanes_[context];
}

tl::unexpected<Error> PluginClient::fault(Lane& lane, const std::string& how, std::uint64_t began_boot_ms) {
  lane.host.reset();
  const std::uint64_t now = clock_.boot_ms();
  lane.rest.failed(now, now - std::min(began_boot_ms, now));
  lane.last_fault = how;
  log(LogLevel::warn, "plugin", "{}: {}; faults in a row: {}", description_.name, how, lane.rest.faults());
  return fail(Code::unavailable, fmt::format("plugin {}: {}", description_.name, how));
}

std::string PluginClient::why_resting(const Lane& lane) const {
  const std::uint64_t left = lane.host || !options_.rests ? 0 : lane.rest.left_ms(clock_.boot_ms());
  if (left == 0) return {};
  return fmt::format("plugin {}: it rests for {} s more after {} faults in a row, the last: {}", description_.name,
                     (left + 999) / 1000, lane.rest.faults(), lane.last_fault);
}

std::string PluginClient::resting(Id context) {
  Lane& lane = this->lane(context);
  const std::lock_guard lock(lane.mutex);
  return why_resting(lane);
}

Result<void> PluginClient::ensure_host(Lane& lane) {
  lane.used_boot_ms = clock_.boot_ms();
  if (lane.host) return {};
  if (std::string why = why_resting(lane); !why.empty()) return fail(Code::unavailable, std::move(why));
  end_idle_hosts(lane);
  const std::uint64_t began = clock_.boot_ms();
  auto host = HostProcess::start(options_.host, opened_.get(), options_.file, options_.load_ms);
  if (!host) return fault(lane, host.error().message, began);
  if ((*host)->description() != description_)
    return fault(lane, "its file was changed in place: start the agent again", began);
  lane.host = std::move(*host);
  return {};
}

// Those that were used longest ago, and are not in use now, so that there is room for one more.
void PluginClient::end_idle_hosts(const Lane& but) {
  constexpr std::size_t kMostHosts = 8;
  const std::lock_guard lock(mutex_);
  std::vector<Lane*> idle;
  for (auto& [context, each] : lanes_) {
    if (&each != &but) idle.push_back(&each);
  }
  std::sort(idle.begin(), idle.end(), [](const Lane* a, const Lane* b) { return a->used_boot_ms > b->used_boot_ms; });
  std::size_t hosts = 1;
  for (Lane* each : idle) {
    const std::unique_lock its(each->mutex, std::try_to_lock);
    if (!its || !each->host || ++hosts <= kMostHosts) continue;
    each->host.reset();
  }
}

Result<std::string> PluginClient::ask(Lane& lane, WireKind kind, std::string_view text, std::uint32_t limit_ms) {
  MJ_CHECK(ensure_host(lane));
  const std::uint64_t began = clock_.boot_ms();
  auto reply = lane.host->call(kind, text, limit_ms);
  if (!reply && reply.error().code == Code::too_large) return tl::unexpected(std::move(reply).error());
  if (!reply) return fault(lane, reply.error().message, began);
  const char* function = kind == WireKind::probe ? "probe" : kind == WireKind::prepare ? "prepare" : "interpret";
  switch (reply->kind) {
    case WireKind::answer:
      return std::move(reply->text);
    case WireKind::nothing:
      if (kind == WireKind::interpret) return "{}";
      return fault(lane, fmt::format("it returned NULL from {}", function), began);
    case WireKind::threw:
      return fault(lane, fmt::format("it let a C++ exception out of {}", function), began);
    default:
      return fault(lane, fmt::format("it returned more than {} bytes from {}", kMaxReplyBytes, function), began);
  }
}

// The end of a call: the reply made sense, or it is one more fault.
template <class T>
Result<T> PluginClient::understood(Lane& lane, Result<T> read, std::string_view function) {
  if (!read) {
    return fault(lane,
                 fmt::format("what it returned from {} is wrong: {}", function, printable_line(read.error().message)),
                 clock_.boot_ms());
  }
  lane.rest.worked();
  return read;
}

Result<std::string> PluginClient::probe() {
  Lane& lane = this->lane(0);
  const std::lock_guard lock(lane.mutex);
  MJ_TRY(reply, ask(lane, WireKind::probe, {}, options_.probe_ms));
  MJ_TRY(probed, understood(lane, read_probe(reply), "probe"));
  if (probed.refusal) return fail(Code::invalid, probed.refusal->error);
  return std::move(probed.runs);
}

Result<Prepared> PluginClient::prepare(Id context, std::string_view job_json) {
  Lane& lane = this->lane(context);
  const std::lock_guard lock(lane.mutex);
  MJ_TRY(reply, ask(lane, WireKind::prepare, job_json, options_.prepare_ms));
  MJ_TRY(prepared, understood(lane, read_prepare(reply), "prepare"));
  if (const auto& refusal = prepared.refusal; refusal) {
    return fail(Code::invalid, refusal->field.empty() ? refusal->error : refusal->field + ": " + refusal->error);
  }
  return std::move(prepared);
}

Result<Interpreted> PluginClient::interpret(Id context, std::string_view outcome_json) {
  if (!description_.interprets) return Interpreted();
  Lane& lane = this->lane(context);
  const std::lock_guard lock(lane.mutex);
  MJ_TRY(reply, ask(lane, WireKind::interpret, outcome_json, options_.interpret_ms));
  return understood(lane, read_interpret(reply), "interpret");
}

}  // namespace mycojobs::plugin
