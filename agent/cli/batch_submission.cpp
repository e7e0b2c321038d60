#include "cli/batch_submission.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <future>
#include <nlohmann/json.hpp>
#include <set>
#include <unordered_map>
#include <vector>

#include "base/errno_text.h"
#include "base/random.h"
#include "base/thread.h"
#include "cli/commands/command_table.h"
#include "cli/job_submission.h"
#include "cli/run_service.h"
#include "cli/store_session.h"
#include "cli/terminal.h"
#include "model/codec.h"
#include "service/job_service.h"
#include "text/json.h"
#include "text/plural.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

constexpr std::size_t kBatchChunk = 256, kBatchChunkBytes = 4U << 20;  // maximum of lines and bytes of one store call
constexpr std::size_t kMaxInvalidLines = 10;                           // limit of reported lines
constexpr std::size_t kMaxBatchKey = 230;                              // leaves space for the line number

bool is_blank(std::string_view text) { return text.find_first_not_of(" \t\r") == std::string_view::npos; }

std::string line_name(std::uint64_t number) { return "line " + std::to_string(number); }

// Copies the remaining input to an unnamed temporary file.
Result<std::FILE*> copied(const std::string& name, std::FILE* from) {
  std::FILE* to = std::tmpfile();
  if (to == nullptr) return fail(Code::io, name + ": cannot be kept for a second reading: " + errno_text(errno));
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> owner(to, std::fclose);
  std::string room(65536, '\0');
  while (std::feof(from) == 0) {  // after end-of-file a terminal must not be read again
    const std::size_t count = std::fread(room.data(), 1, room.size(), from);
    if (count == 0) break;
    if (std::fwrite(room.data(), 1, count, to) != count)
      return fail(Code::io, name + ": cannot be kept for a second reading: " + errno_text(errno));
  }
  if (std::ferror(from) != 0) return fail(Code::io, name + ": cannot be read: " + errno_text(errno));
  if (std::fflush(to) != 0) return fail(Code::io, name + ": cannot be kept for a second reading: " + errno_text(errno));
  return owner.release();
}

}  // namespace

BatchFile::BatchFile(std::string name, std::FILE* file) : name_(std::move(name)), file_(file, std::fclose) {}

Result<BatchFile> BatchFile::open(const std::string& file) {
  const bool input = file == "-";
  const std::string name = input ? "standard input" : file;
  const int fd = input ? ::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3) : ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    if (errno == ENOENT) return fail(Code::not_found, name + ": no such file");
    return fail(Code::io, name + ": cannot be read: " + errno_text(errno));
  }
  BatchFile opened(name, ::fdopen(fd, "rb"));
  struct stat seen {};
  if (::fstat(fd, &seen) != 0) return fail(Code::io, name + ": cannot be seen: " + errno_text(errno));
  if (S_ISDIR(seen.st_mode)) return fail(Code::invalid, name + ": is a folder; give a file with a job a line");
  if (!S_ISREG(seen.st_mode)) {
    exit_on_stop_signals();
    auto copy = copied(name, opened.file_.get());
    block_stop_signals();
    if (!copy) return tl::unexpected<Error>(std::move(copy).error());
    opened.file_.reset(*copy);
  }
  MJ_CHECK(opened.measure());
  return opened;
}

Result<void> BatchFile::measure() {
  if (std::fseek(file_.get(), 0, SEEK_END) != 0) return fail(Code::io, name_ + ": " + errno_text(errno));
  bytes_ = static_cast<std::uint64_t>(std::max(0L, std::ftell(file_.get())));
  rewind();
  return {};
}

void BatchFile::rewind() {
  std::rewind(file_.get());
  read_ = number_ = 0;
}

Result<std::optional<BatchFile::Line>> BatchFile::next() {
  while (true) {
    Line line{++number_, {}};
    int byte = 0;
    while ((byte = ::getc_unlocked(file_.get())) != EOF && byte != '\n') {
      if (line.text.size() == kMaxBatchLine)
        return fail(Code::too_large, fmt::format("{} {}: has more than the {} bytes that are allowed", name_,
                                                 line_name(line.number), kMaxBatchLine));
      line.text.push_back(static_cast<char>(byte));
    }
    read_ += line.text.size() + 1;
    if (byte == EOF && std::ferror(file_.get()) != 0)
      return fail(Code::io, name_ + ": cannot be read: " + errno_text(errno));
    if (byte == EOF && line.text.empty()) return std::optional<Line>();
    if (!is_blank(line.text)) return std::optional(std::move(line));
  }
}

Result<Job> read_batch_line(const std::string& text) {
  auto object = parse_exact_json(text, kMaxBatchLine, kMaxBatchValues);
  if (!object) {
    Error error = std::move(object).error();
    // The caller adds the number of the line in the batch.
    constexpr std::string_view kLine = "at line 1 column";
    if (const auto at = error.message.find(kLine); at != std::string::npos)
      error.message.replace(at, kLine.size(), "at column");
    return tl::unexpected<Error>(std::move(error));
  }
  if (!object->is_object()) return fail(Code::invalid, "a job is an object: {\"script\": ..., \"script_type\": ...}");
  auto decoded = decode_json<Job>(*object);
  if (!decoded.ok()) return fail(Code::invalid, join(decoded.problems));
  return std::move(decoded.record);
}

namespace {

class BatchSubmission {
 public:
  BatchSubmission(const Invocation& call, BatchFile file, Id caller, std::string key)
      : call_(call),
        file_(std::move(file)),
        caller_(caller),
        by_(requested_owner(call, caller)),
        key_(std::move(key)),
        progress_(call.parts.clock) {}

  Result<void> check();  // validates every line
  Result<void> submit(OpenedStore&);
  const std::set<std::string>& types() const { return types_; }
  const std::set<std::string>& types_with_policy() const { return types_with_policy_; }
  std::uint64_t jobs() const { return jobs_; }
  std::uint64_t existed() const { return existed_; }

 private:
  struct Chunk {
    std::vector<Job> jobs;
    std::vector<std::uint64_t> lines;
    std::size_t bytes = 0;
  };
  Result<void> check_line(const BatchFile::Line&);
  Result<void> check_alone(const Job&, std::uint64_t line);
  Result<Chunk> next_chunk();
  Result<void> hand_over(OpenedStore&, Chunk&);
  void answer(const NewJobs&, const Chunk&);
  tl::unexpected<Error> stopped(Error) const;

  const Invocation& call_;
  BatchFile file_;
  Id caller_;
  service::RequestContext by_;
  std::string key_;
  std::set<std::string> types_, types_with_policy_;
  struct FirstUse {
    std::uint64_t line = 0;
    std::size_t content = 0;  // hash of the job
  };
  std::unordered_map<std::string, FirstUse> seen_;  // ids and keys of the lines
  std::uint64_t jobs_ = 0, written_ = 0, existed_ = 0, last_line_ = 0;
  ProgressLine progress_;
};

// Rejects two lines with the same id or key and different jobs, since the second could never be submitted.
Result<void> BatchSubmission::check_alone(const Job& job, std::uint64_t line) {
  std::vector<std::string> names;
  if (job.id != 0) names.push_back("id: " + std::to_string(job.id));
  if (!job.idempotency_key.empty()) names.push_back("idempotency_key: " + excerpt(job.idempotency_key));
  if (names.empty()) return {};
  const FirstUse now{line, std::hash<std::string>{}(dump_json(to_json(job)))};
  for (const std::string& name : names) {
    const auto [seen, first] = seen_.emplace(name, now);
    if (!first && seen->second.content != now.content)
      return fail(Code::invalid, name + " is on " + line_name(seen->second.line) + " too, with other content");
  }
  return {};
}

Result<void> BatchSubmission::check_line(const BatchFile::Line& line) {
  MJ_TRY(job, read_batch_line(line.text));
  MJ_CHECK(check_alone(job, line.number));
  MJ_CHECK(service::check_new_job(by_, job, caller_));
  MJ_CHECK(service::check_policy(by_, job));
  if (!job.policy.empty()) types_with_policy_.insert(job.script_type);
  types_.insert(std::move(job.script_type));
  return {};
}

Result<void> BatchSubmission::check() {
  std::string wrong;
  Code code = Code::invalid;
  std::size_t count = 0;
  while (count < kMaxInvalidLines) {
    MJ_TRY(line, file_.next());
    if (!line) break;
    ++jobs_;
    if (jobs_ % kBatchChunk == 0) progress_.show("checking lines", file_.read_bytes(), file_.bytes());
    auto checked = check_line(*line);
    if (checked) continue;
    if (count++ == 0) code = checked.error().code;
    wrong += (wrong.empty() ? "" : "\n") + line_name(line->number) + ": " + checked.error().message;
  }
  if (count == kMaxInvalidLines) wrong += "\nthe following lines were not checked";
  if (count > 0) return fail(code, wrong + "\nno job was submitted");
  if (jobs_ == 0) return fail(Code::invalid, "no line has a job to submit");
  return {};
}

Result<BatchSubmission::Chunk> BatchSubmission::next_chunk() {
  Chunk chunk;
  while (chunk.jobs.size() < kBatchChunk && chunk.bytes < kBatchChunkBytes) {
    MJ_TRY(line, file_.next());
    if (!line) break;
    auto job = read_batch_line(line->text);
    if (!job) return fail(job.error(), line_name(line->number));  // the file has changed since the check
    if (job->id == 0 && job->idempotency_key.empty()) job->idempotency_key = key_ + ':' + std::to_string(line->number);
    chunk.bytes += line->text.size();
    chunk.jobs.push_back(std::move(*job));
    chunk.lines.push_back(line->number);
  }
  return chunk;
}

void BatchSubmission::answer(const NewJobs& made, const Chunk& chunk) {
  std::string text;
  for (std::size_t i = 0; i < made.jobs.size(); ++i) {
    const std::string key = redis_key(made.jobs[i]);
    if (made.existed[i]) ++existed_;
    text += call_.json ? fmt::format(R"({{"existed":{},"key":"{}","line":{}}})", static_cast<bool>(made.existed[i]),
                                     key, chunk.lines[i])
                       : key;
    text += '\n';
  }
  print(text);
  written_ += made.jobs.size();
  if (!made.jobs.empty()) last_line_ = chunk.lines[made.jobs.size() - 1];
}

// Adds the progress of the batch to the error.
tl::unexpected<Error> BatchSubmission::stopped(Error error) const {
  const std::string so_far = last_line_ == 0 ? "no job is known to have been submitted"
                                             : "submitted so far: " + count_with_noun(written_, "job") + ", to line " +
                                                   std::to_string(last_line_);
  // A rejected line would be rejected again. It must be kept as an empty line, because line numbers are part of the
  // keys.
  const bool can_fix = error.code == Code::invalid || error.code == Code::denied;
  error.message +=
      fmt::format("; {}. {} the same file again with --idempotency-key {} submits the others, and none twice", so_far,
                  can_fix ? "Put that line right, or leave it empty: then" : "Later", key_);
  return tl::unexpected<Error>(std::move(error));
}

Result<void> BatchSubmission::hand_over(OpenedStore& opened, Chunk& chunk) {
  NewJobs made;
  MJ_CHECK(describe_missing_agents(call_, opened, false, [&](Store& store) -> Result<void> {
    made = {};
    return service::add_jobs(by_, store, std::nullopt, chunk.jobs, true, made);
  }));
  answer(made, chunk);
  if (made.refused)
    return fail(with_original_arguments(call_, made.refused->error), line_name(chunk.lines.at(made.refused->index)));
  return {};
}

Result<void> BatchSubmission::submit(OpenedStore& opened) {
  file_.rewind();
  auto chunk = next_chunk();
  while (true) {
    if (!chunk) return stopped(std::move(chunk).error());
    if (chunk->jobs.empty()) return {};
    // Reads the next lines while Redis processes this chunk, or afterwards if no thread is available. An early return
    // waits for the thread.
    auto next = run_in_parallel([this] { return next_chunk(); });
    if (auto handed = hand_over(opened, *chunk); !handed) return stopped(std::move(handed).error());
    progress_.show("submitting jobs", written_, jobs_);
    if (next_stop_signal(0) != 0) return stopped({Code::conflict, "stopped by a signal"});
    chunk = next.get();
  }
}

// Options of a single job must be given in the lines of the batch.
Result<void> refuse_flags_of_one_script(const Invocation& call) {
  auto flags = submission_flags();
  flags.push_back({"follow", "", ""});
  for (const FlagRow& flag : flags) {
    if (flag.name == "caller" || flag.name == "idempotency-key" || !call.has(flag.name)) continue;
    return fail(Code::invalid, fmt::format("--{}: is of one script; with --batch each line says what it wants",
                                           std::string(flag.name)));
  }
  return {};
}

}  // namespace

Result<int> submit_batch(const Invocation& call) {
  MJ_CHECK(refuse_flags_of_one_script(call));
  MJ_TRY(caller, id_flag(call, "caller", kDefaultCaller));
  const bool own_key = !call.has("idempotency-key");
  const std::string key = own_key ? random_hex(16) : call.get("idempotency-key");
  if (key.empty()) return fail(Code::invalid, "--idempotency-key: is empty");
  if (key.size() > kMaxBatchKey)
    return fail(Code::invalid, fmt::format("--idempotency-key: is longer than {} bytes", kMaxBatchKey));
  MJ_TRY(file, BatchFile::open(call.arguments.at(0)));
  BatchSubmission batch(call, std::move(file), caller, key);
  MJ_CHECK(batch.check());
  MJ_TRY(opened, open_store(call, false));
  MJ_CHECK(check_served(call, *opened.store, batch.types()));
  MJ_CHECK(warn_without_agents(call, *opened.store, batch.types_with_policy()));
  // Printed in advance, because a killed process cannot print it.
  if (own_key && batch.jobs() > kBatchChunk)
    print_message(
        fmt::format("if this is cut short: the same file with --idempotency-key {} submits what is missing", key));
  MJ_CHECK(batch.submit(opened));
  const std::string before =
      batch.existed() == 0 ? "" : fmt::format("; {} of them had been submitted before", batch.existed());
  print_message(count_with_noun(batch.jobs(), "job") + before);
  if (opened.session.embedded)
    print_message(
        fmt::format("they wait in {}: `mycojobs dev` or any `mycojobs run` there runs them", call.settings.state_dir));
  return 0;
}

}  // namespace mycojobs
