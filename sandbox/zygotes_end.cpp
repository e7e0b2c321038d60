// How zygotes end, what they said, and what becomes of their runs.
#include <fmt/core.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <utility>

#include "sandbox/remedy.h"
#include "sandbox/zygotes.h"

namespace mycojobs::sandbox {
namespace {

// One that takes long to fail would hold every run that wants it for as long: between two attempts they are told at
// once what the last one came to.
constexpr std::uint64_t kPausePerAttempt = 4;

}  // namespace

// Why it did not come up, as far as it has said so.
std::string Zygotes::words_of(const Zygote& zygote) const {
  if (const auto end = zygote.last_words.find_last_not_of(' '); end != std::string::npos)
    return zygote.last_words.substr(0, end + 1);
  const ScriptHost* row = row_of(zygote.key);
  std::string command = row->program.substr(row->program.rfind('/') + 1);
  for (const auto& argument : row->arguments) command += ' ' + argument;
  return command.substr(0, kMostWords) + ": did not come up, and did not say why";
}

// What a host says on stderr is for the operator's log: as the reason why it did not come up, or when it serves.
void Zygotes::read_err(Zygote& zygote) {
  char text[2048];
  const ssize_t size = ::read(zygote.process.err.get(), text, sizeof text);
  if (size < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (size <= 0) return loop_.unwatch(zygote.err_watch, zygote.process.err.get());
  std::string words(text, static_cast<std::size_t>(size));
  std::replace_if(
      words.begin(), words.end(), [](char c) { return static_cast<unsigned char>(c) < ' '; }, ' ');
  if (comes_up(zygote)) {
    zygote.last_words = (zygote.last_words + words).substr(0, kMostWords);
  } else {
    tell_words(zygote, std::move(words));
  }
}

void Zygotes::tell_words(Zygote& zygote, std::string words) {
  warn_(fmt::format("zygote {} of context {}: {}", zygote.key.first, zygote.key.second, words));
  zygote.last_words = std::move(words);
}

void Zygotes::retire(const std::string& host) {
  for (const auto& [id, zygote] : zygotes_) {
    if (zygote->key.first == host) condemn(*zygote, {});
  }
}

// Kills it. Its runs end when it is buried: then the kernel has emptied every namespace below.
void Zygotes::condemn(Zygote& zygote, SetupError why) {
  if (!zygote.problem) zygote.problem = std::move(why);
  loop_.cancel(zygote.warm_up);
  ::kill(zygote.process.pid, SIGKILL);
  if (const auto found = current_.find(zygote.key); found != current_.end() && found->second == zygote.id) {
    current_.erase(found);
  }
  if (const auto found = successors_.find(zygote.key); found != successors_.end() && found->second == zygote.id) {
    successors_.erase(found);
  }
}

void Zygotes::condemn_silent(const Run& run) {
  Zygote* zygote = find(run.zygote);
  if (zygote == nullptr) return;
  warn_(fmt::format("zygote {}: does not answer: killed", zygote->key.first));
  condemn(*zygote, {"fork", ETIMEDOUT, remedy_for_step("fork", ETIMEDOUT)});
}

// Its folders were looked through. True: nothing is wrong with them, and the zygote itself is on its way.
bool Zygotes::checked(Zygote& zygote) {
  read_err(zygote);
  siginfo_t end{};
  const bool good = !zygote.problem && ::waitid(P_PIDFD, zygote.process.pidfd.get(), &end, WEXITED | WNOWAIT) == 0 &&
                    end.si_code == CLD_EXITED && end.si_status == 0;
  if (!good) {
    const bool said = !zygote.last_words.empty();
    if (said && !zygote.problem) zygote.problem = {"zygote_folder", EINVAL, zygote.last_words};
    return false;
  }
  loop_.unwatch(zygote.err_watch, zygote.process.err.get());
  loop_.unwatch(zygote.end_watch, zygote.process.pidfd.get());
  zygote.state = State::starting;
  const pid_t look = zygote.process.pid;
  zygote.problem = begin(zygote);
  if (zygote.problem) return false;  // its process is still the one that looked, to be buried
  ::waitpid(look, nullptr, 0);
  return true;
}

void Zygotes::bury(Zygote& zygote) {
  if (zygote.state == State::checking && checked(zygote)) return;
  if (zygote.control_watch != 0) read_control(zygote);  // what it said before it died
  condemn(zygote, {"zygote_warm_up", ESRCH, words_of(zygote)});
  int status = 0;
  ::waitpid(zygote.process.pid, &status, 0);
  // Somebody killed it: it fell silent before we gave it up, and not by leaving.
  const bool killed = zygote.problem->error == ESRCH && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
  loop_.unwatch(zygote.control_watch, zygote.process.control.get());
  loop_.unwatch(zygote.err_watch, zygote.process.err.get());
  loop_.unwatch(zygote.end_watch, zygote.process.pidfd.get());
  auto owned = std::move(zygotes_.extract(zygote.id).mapped());
  const bool never_served = comes_up(*owned);
  if (never_served && !killed) {
    const std::uint64_t now = boot_ms();
    failed_[owned->key] = {*owned->problem, now + kPausePerAttempt * (now - owned->started_boot_ms)};
  }
  if (never_served && !owned->told) tried_(owned->key.first, owned->key.second, owned->problem);
  if (const auto old = current_.find(owned->key); never_served && old != current_.end()) find(old->second)->served = 0;
  for (std::uint64_t id : owned->running) {
    if (Run* run = runs_.find(id); run != nullptr) runs_.end(*run);
  }
  for (std::uint64_t id : owned->waiting) {
    Run* run = runs_.find(id);
    if (run == nullptr) continue;
    if (never_served && killed) {  // which says nothing about the job
      decide(*run, RunStatus::lost, "its script host ended while it warmed up");
      runs_.end(*run);
    } else if (never_served) {
      decide_setup_error(*run, owned->problem->step, owned->problem->error, owned->problem->remedy);
      runs_.end(*run);
    } else {
      submit(*run);
    }
  }
}

}  // namespace mycojobs::sandbox
