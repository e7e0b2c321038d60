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
#include "cli/invocation.h"
#include "cli/job_submission.h"
#include "cli/request_arguments.h"
#include "cli/run_service.h"
#include "cli/store_session.h"
#include "cli/terminal.h"
#include "model/codec.h"
#include "model/submitted_files.h"
#include "service/job_service.h"
#include "text/json.h"
#include "text/plural.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

constexpr std::size_t kMaxChunkLines = 256, kMaxChunkBytes = 4U << 20;  // maximum of lines and bytes of one store call
constexpr std::size_t kMaxReportedLines = 10;                           // limit of reported lines
constexpr std::size_t kMaxBatchKeyBytes = 230;                          // leaves space for the line number

bool is_blank(std::string_view text) { return text.find_first_not_of(" \t\r") == std::string_view::npos; }

std::string format_line_name(std::uint64_t number) { return "line " + std::to_string(number); }

// Copies the remaining input to an unnamed temporary file.
Result<std::FILE*> copy_to_temporary_file(const std::string& name, std::FILE* source) {
  std::FILE* copy = std::tmpfile();
  if (copy == nullptr) return fail(Code::io, name + ": cannot be kept for a second reading: " + errno_text(errno));
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> owner(copy, std::fclose);
  std::string buffer(65536, '\0');
  while (std::feof(source) == 0) {  // after end-of-file a terminal must not be read again
    const std::size_t count = std::fread(buffer.data(), 1, buffer.size(), source);
    if (count == 0) break;
    if (std::fwrite(buffer.data(), 1, count, copy) != count)
      return fail(Code::io, name + ": cannot be kept for a second reading: " + errno_text(errno));
  }
  if (std::ferror(source) != 0) return fail(Code::io, name + ": cannot be read: " + errno_text(errno));
  if (std::fflush(copy) != 0)
    return fail(Code::io, name + ": cannot be kept for a second reading: " + errno_text(errno));
  return owner.release();
}

}  // namespace

BatchFile::BatchFile(std::string name, std::FILE* file) : name_(std::move(name)), file_(file, std::fclose) {}

Result<BatchFile> BatchFile::open(const std::string& path) {
  const bool is_standard_input = path == "-";
  const std::string name = is_standard_input ? "standard input" : path;
  const int fd =
      is_standard_input ? ::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3) : ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    if (errno == ENOENT) return fail(Code::not_found, name + ": no such file");
    return fail(Code::io, name + ": cannot be read: " + errno_text(errno));
  }
  BatchFile batch(name, ::fdopen(fd, "rb"));
  struct stat status {};
  if (::fstat(fd, &status) != 0) return fail(Code::io, name + ": cannot be seen: " + errno_text(errno));
  if (S_ISDIR(status.st_mode)) return fail(Code::invalid, name + ": is a folder; give a file with a job a line");
  if (!S_ISREG(status.st_mode)) {
    exit_on_stop_signals();
    auto temporary_file = copy_to_temporary_file(name, batch.file_.get());
    block_stop_signals();
    if (!temporary_file) return tl::unexpected<Error>(std::move(temporary_file).error());
    batch.file_.reset(*temporary_file);
  }
  MJ_CHECK(batch.read_size());
  return batch;
}

Result<void> BatchFile::read_size() {
  if (std::fseek(file_.get(), 0, SEEK_END) != 0) return fail(Code::io, name_ + ": " + errno_text(errno));
  bytes_ = static_cast<std::uint64_t>(std::max(0L, std::ftell(file_.get())));
  rewind();
  return {};
}

void BatchFile::rewind() {
  std::rewind(file_.get());
  position_ = line_number_ = 0;
}

Result<std::optional<BatchFile::Line>> BatchFile::read_line() {
  while (true) {
    Line line{++line_number_, {}};
    int byte = 0;
    while ((byte = ::getc_unlocked(file_.get())) != EOF && byte != '\n') {
      if (line.text.size() == kMaxBatchLineBytes)
        return fail(Code::too_large, fmt::format("{} {}: has more than the {} bytes that are allowed", name_,
                                                 format_line_name(line.number), kMaxBatchLineBytes));
      line.text.push_back(static_cast<char>(byte));
    }
    position_ += line.text.size() + 1;
    if (byte == EOF && std::ferror(file_.get()) != 0)
      return fail(Code::io, name_ + ": cannot be read: " + errno_text(errno));
    if (byte == EOF && line.text.empty()) return std::optional<Line>();
    if (!is_blank(line.text)) return std::optional(std::move(line));
  }
}

Result<Job> parse_batch_line(const std::string& text) {
  auto object = parse_exact_json(text, kMaxBatchLineBytes, kMaxBatchLineValues);
  if (!object) {
    Error error = std::move(object).error();
    // The caller adds the number of the line in the batch.
    constexpr std::string_view kLine = "at line 1 column";
    if (const auto at = error.message.find(kLine); at != std::string::npos)
      error.message.replace(at, kLine.size(), "at column");
    return tl::unexpected<Error>(std::move(error));
  }
  if (!object->is_object()) return fail(Code::invalid, "a job is an object: {\"script\": ..., \"script_type\": ...}");
  const auto problem = service::validate_params(*service::find_request("job.create"), *object);
  MJ_TRY(job, decode_job_request(std::move(*object)));  // its errors are reported first
  if (problem) return fail(Code::invalid, problem->message);
  return std::move(job);
}

namespace {

class BatchSubmission {
 public:
  BatchSubmission(const Invocation& call, BatchFile file, Id caller, std::string key)
      : call_(call),
        file_(std::move(file)),
        caller_(caller),
        request_context_(make_request_context(call, caller)),
        key_(std::move(key)),
        progress_(call.dependencies.clock) {}

  // Validates every line. The error lists the invalid lines.
  Result<void> check();
  // Submits the jobs chunk by chunk. Errors say how many jobs were submitted. REQUIRES: check() has succeeded.
  Result<void> submit(StoreSession&);
  const std::set<std::string>& script_types() const { return script_types_; }
  const std::set<std::string>& policy_script_types() const { return policy_script_types_; }
  std::uint64_t line_count() const { return line_count_; }
  std::uint64_t existing_count() const { return existing_count_; }

 private:
  struct Chunk {
    std::vector<Job> jobs;
    std::vector<std::uint64_t> lines;
    std::size_t bytes = 0;
  };
  Result<void> check_line(const BatchFile::Line&);
  Result<void> check_unique(const Job&, std::uint64_t line);
  Result<Chunk> next_chunk();
  Result<void> submit_chunk(StoreSession&, Chunk&);
  void print_keys(const NewJobs&, const Chunk&);
  tl::unexpected<Error> add_progress(Error) const;

  const Invocation& call_;
  BatchFile file_;
  Id caller_;
  service::RequestContext request_context_;
  std::string key_;
  std::set<std::string> script_types_, policy_script_types_;
  struct FirstUse {
    std::uint64_t line = 0;
    std::size_t content = 0;  // hash of the job
  };
  std::unordered_map<std::string, FirstUse> first_uses_;  // ids and keys of the lines
  std::uint64_t line_count_ = 0, submitted_count_ = 0, existing_count_ = 0, last_line_ = 0;
  ProgressLine progress_;
};

// Rejects two lines with the same id or key and different jobs, since the second could never be submitted.
Result<void> BatchSubmission::check_unique(const Job& job, std::uint64_t line) {
  std::vector<std::string> names;
  if (job.id != 0) names.push_back("id: " + std::to_string(job.id));
  if (!job.idempotency_key.empty()) names.push_back("idempotency_key: " + excerpt(job.idempotency_key));
  if (names.empty()) return {};
  const FirstUse use{line, std::hash<std::string>{}(dump_json(to_json(job)))};
  for (const std::string& name : names) {
    const auto [entry, is_new] = first_uses_.emplace(name, use);
    if (!is_new && entry->second.content != use.content)
      return fail(Code::invalid, name + " is on " + format_line_name(entry->second.line) + " too, with other content");
  }
  return {};
}

Result<void> BatchSubmission::check_line(const BatchFile::Line& line) {
  MJ_TRY(job, parse_batch_line(line.text));
  MJ_CHECK(check_unique(job, line.number));
  MJ_CHECK(service::check_new_job(request_context_, job, caller_));
  MJ_CHECK(service::check_policy(request_context_, job));
  if (!job.policy.empty()) policy_script_types_.insert(job.script_type);
  script_types_.insert(std::move(job.script_type));
  return {};
}

Result<void> BatchSubmission::check() {
  std::string problems;
  Code code = Code::invalid;
  std::size_t invalid_count = 0;
  while (invalid_count < kMaxReportedLines) {
    MJ_TRY(line, file_.read_line());
    if (!line) break;
    ++line_count_;
    if (line_count_ % kMaxChunkLines == 0) progress_.show("checking lines", file_.position(), file_.bytes());
    auto result = check_line(*line);
    if (result) continue;
    if (invalid_count++ == 0) code = result.error().code;
    problems += (problems.empty() ? "" : "\n") + format_line_name(line->number) + ": " + result.error().message;
  }
  if (invalid_count == kMaxReportedLines) problems += "\nthe following lines were not checked";
  if (invalid_count > 0) return fail(code, problems + "\nno job was submitted");
  if (line_count_ == 0) return fail(Code::invalid, "no line has a job to submit");
  return {};
}

Result<BatchSubmission::Chunk> BatchSubmission::next_chunk() {
  Chunk chunk;
  while (chunk.jobs.size() < kMaxChunkLines && chunk.bytes < kMaxChunkBytes) {
    MJ_TRY(line, file_.read_line());
    if (!line) break;
    auto job = parse_batch_line(line->text);
    if (!job) return fail(job.error(), format_line_name(line->number));  // the file has changed since the check
    if (job->id == 0 && job->idempotency_key.empty()) job->idempotency_key = key_ + ':' + std::to_string(line->number);
    chunk.bytes += line->text.size();
    chunk.jobs.push_back(std::move(*job));
    chunk.lines.push_back(line->number);
  }
  return chunk;
}

void BatchSubmission::print_keys(const NewJobs& new_jobs, const Chunk& chunk) {
  std::string text;
  for (std::size_t i = 0; i < new_jobs.jobs.size(); ++i) {
    const std::string key = redis_key(new_jobs.jobs[i]);
    if (new_jobs.existed[i]) ++existing_count_;
    text += call_.json ? fmt::format(R"({{"existed":{},"key":"{}","line":{}}})", static_cast<bool>(new_jobs.existed[i]),
                                     key, chunk.lines[i])
                       : key;
    text += '\n';
  }
  print(text);
  submitted_count_ += new_jobs.jobs.size();
  if (!new_jobs.jobs.empty()) last_line_ = chunk.lines[new_jobs.jobs.size() - 1];
}

// Adds the progress of the batch to the error.
tl::unexpected<Error> BatchSubmission::add_progress(Error error) const {
  const std::string progress = last_line_ == 0 ? "no job is known to have been submitted"
                                               : "submitted so far: " + count_with_noun(submitted_count_, "job") +
                                                     ", to line " + std::to_string(last_line_);
  // A rejected line would be rejected again. The remedy keeps it as an empty line, because line numbers are part of
  // the keys.
  const bool is_fixable = error.code == Code::invalid || error.code == Code::denied;
  error.message +=
      fmt::format("; {}. {} the same file again with --idempotency-key {} submits the others, and none twice", progress,
                  is_fixable ? "Put that line right, or leave it empty: then" : "Later", key_);
  return tl::unexpected<Error>(std::move(error));
}

Result<void> BatchSubmission::submit_chunk(StoreSession& session, Chunk& chunk) {
  NewJobs new_jobs;
  MJ_CHECK(retry_while_unavailable(call_, session, false, [&](Store& store) -> Result<void> {
    new_jobs = {};
    return service::add_jobs(request_context_, store, std::nullopt, chunk.jobs, true, new_jobs);
  }));
  print_keys(new_jobs, chunk);
  if (new_jobs.rejected)
    return fail(to_command_line_error(call_, new_jobs.rejected->error),
                format_line_name(chunk.lines.at(new_jobs.rejected->index)));
  return {};
}

Result<void> BatchSubmission::submit(StoreSession& session) {
  file_.rewind();
  auto chunk = next_chunk();
  while (true) {
    if (!chunk) return add_progress(std::move(chunk).error());
    if (chunk->jobs.empty()) return {};
    // Reads the next lines while Redis processes this chunk, or afterwards if no thread is available. An early return
    // waits for the thread.
    auto next_result = run_in_parallel([this] { return next_chunk(); });
    if (auto result = submit_chunk(session, *chunk); !result) return add_progress(std::move(result).error());
    progress_.show("submitting jobs", submitted_count_, line_count_);
    if (next_stop_signal(0) != 0) return add_progress({Code::conflict, "stopped by a signal"});
    chunk = next_result.get();
  }
}

// Options of a single job must be given in the lines of the batch.
Result<void> reject_job_flags(const Invocation& call) {
  auto flags = submission_flags();
  for (const char* name : {"follow", "exit-code"}) flags.push_back({name, "", ""});
  if (call.arguments.size() > 1)
    return fail(Code::invalid, "--: arguments are of one script; with --batch each line has its args");
  for (const FlagRow& flag : flags) {
    if (flag.name == "caller" || flag.name == "idempotency-key" || !call.has(flag.name)) continue;
    return fail(Code::invalid, fmt::format("--{}: is of one script; with --batch each line says what it wants",
                                           std::string(flag.name)));
  }
  return {};
}

}  // namespace

Result<int> submit_batch(const Invocation& call) {
  MJ_CHECK(reject_job_flags(call));
  MJ_TRY(caller, parse_id_flag(call, "caller", kDefaultCaller));
  const bool has_generated_key = !call.has("idempotency-key");
  const std::string key = has_generated_key ? random_hex(16) : call.get("idempotency-key");
  if (key.empty()) return fail(Code::invalid, "--idempotency-key: is empty");
  if (key.size() > kMaxBatchKeyBytes)
    return fail(Code::invalid, fmt::format("--idempotency-key: is longer than {} bytes", kMaxBatchKeyBytes));
  MJ_TRY(file, BatchFile::open(call.arguments.at(0)));
  BatchSubmission batch(call, std::move(file), caller, key);
  MJ_CHECK(batch.check());
  MJ_TRY(session, open_store(call, false));
  MJ_CHECK(check_types_are_served(call, *session.store, batch.script_types()));
  MJ_CHECK(warn_if_no_agent(call, *session.store, batch.policy_script_types()));
  // Printed in advance, because a killed process cannot print it.
  if (has_generated_key && batch.line_count() > kMaxChunkLines)
    print_message(
        fmt::format("if this is cut short: the same file with --idempotency-key {} submits what is missing", key));
  MJ_CHECK(batch.submit(session));
  const std::string note =
      batch.existing_count() == 0 ? "" : fmt::format("; {} of them had been submitted before", batch.existing_count());
  print_message(count_with_noun(batch.line_count(), "job") + note);
  if (session.services.embedded)
    print_message(
        fmt::format("they wait in {}: `mycojobs dev` or any `mycojobs run` there runs them", call.settings.state_dir));
  return 0;
}

}  // namespace mycojobs
