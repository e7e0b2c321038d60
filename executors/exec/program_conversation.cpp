#include "executors/exec/program_conversation.h"

#include <algorithm>

#include "executors/channel.h"
#include "executors/job_end_builder.h"
#include "text/utf8.h"
#include "text/utf8_cut.h"

namespace mycojobs {

void OutputTail::feed(std::string_view bytes) {
  constexpr std::size_t kMaxReadBytes = kMaxBytes + 1;  // one more byte, so that the cut below applies too
  if (bytes.size() > kMaxReadBytes) bytes.remove_prefix(bytes.size() - kMaxReadBytes);
  text_.append(bytes);
  if (text_.size() > kMaxBytes) text_.erase(0, character_boundary(text_, text_.size() - kMaxBytes));
}

std::string OutputTail::last_line() const {
  const std::size_t last = text_.find_last_not_of(" \t\r\n");
  if (last == std::string::npos) return {};
  const std::size_t newline = text_.rfind('\n', last);
  const std::size_t first = newline == std::string::npos ? 0 : newline + 1;
  return to_utf8(std::string_view(text_).substr(first, last - first + 1));
}

ProgramConversation::ProgramConversation(std::string request, EndContext context, ArtifactSink* sink,
                                         std::shared_ptr<const Fd> attached)
    : output_(std::move(request)),
      attached_(std::move(attached)),
      context_(std::move(context)),
      reader_(context_.max_result_bytes, sink) {}

ScriptAnswer ProgramConversation::complete_answer() const {
  ScriptAnswer answer = reader_.answer();
  if (!answer.error) return answer;
  ScriptError& error = *answer.error;
  error.stderr_tail = to_utf8(stderr_tail_.text());
  if (error.exit_code && error.message.empty()) error.message = stderr_tail_.last_line();
  return answer;
}

JobEnd ProgramConversation::finish(const Outcome& outcome) const {
  return build_job_end(context_, outcome, complete_answer());
}

Result<std::unique_ptr<Conversation>> begin_program(const JobFacts& facts, const ProgramSpec& spec,
                                                    ArtifactSink* sink) {
  ScriptExtras extras{.executor = spec.executor,
                      .profile = spec.profile,
                      .command = spec.command,
                      .script_file = spec.script_file,
                      .environment = spec.environment,
                      .files = spec.files,
                      .attached_path = spec.attached_path};
  for (std::string& argument : extras.command) {
    constexpr std::string_view kPlaceholder = "{script}";
    const std::string path = "/job/" + spec.script_file;
    if (spec.is_verbatim) break;
    for (std::size_t position = 0; (position = argument.find(kPlaceholder, position)) != std::string::npos;
         position += path.size())
      argument.replace(position, kPlaceholder.size(), path);
  }
  MJ_TRY(request, encode_script_request(facts, extras));
  return std::make_unique<ProgramConversation>(std::move(request), make_end_context(facts, spec.profile), sink,
                                               spec.attached);
}

}  // namespace mycojobs
