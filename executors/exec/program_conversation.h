// The conversation with mycojobs-exechost about a job that is a program: an interpreter with a script, a compiler, or a
// binary. Not thread-safe.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "executors/executor.h"
#include "executors/script_answer.h"
#include "executors/script_conversation.h"

namespace mycojobs {

inline constexpr const char* kProgramHost = "exec";  // value of Stage::host for these jobs

struct ProgramSpec {
  std::string_view executor;
  std::string_view profile;  // name of the sandbox profile, for messages
  // Command line. The first word is an absolute path, or the name of a program in /usr/bin or /bin. "{script}" is
  // replaced by the path of the script, unless is_verbatim is true.
  std::vector<std::string> command;
  bool is_verbatim = false;                 // true if the job itself names the command
  std::string script_file = "script";       // file name of the script below /job
  TextMap environment = {};                 // the job's own values take precedence
  std::vector<ScriptFile> files = {};       // files that are sent with the job
  std::string attached_path = {};           // path below /job at which `attached` appears as an executable file
  std::shared_ptr<const Fd> attached = {};  // sealed file that is sent as a descriptor; null if there is none
};

// Starts the conversation with the request of the job. Errors: invalid, too_large (the message names the field, and the
// job can never run), unavailable (an input artifact cannot be read).
Result<std::unique_ptr<Conversation>> begin_program(const JobFacts&, const ProgramSpec&, ArtifactSink*);

// Stores the last kMaxBytes of a stream.
class OutputTail {
 public:
  static constexpr std::size_t kMaxBytes = 4096;
  void feed(std::string_view bytes);
  const std::string& text() const { return text_; }
  std::string last_line() const;  // returns the last line that is not blank, as UTF-8

 private:
  std::string text_;
};

// The conversation that begin_program() returns. Also the base class for executors that compute the end of the job from
// more than the answer of the host.
class ProgramConversation : public Conversation {
 public:
  ProgramConversation(std::string request, EndContext, ArtifactSink*, std::shared_ptr<const Fd> attached = {});
  std::string consume_output() override {
    reader_.on_replies_sent();
    return std::exchange(output_, {});
  }
  int attachment() const override { return attached_ ? attached_->get() : -1; }
  void feed(std::string_view bytes) override { reader_.feed(bytes); }
  std::uint64_t frame_count() const override { return reader_.frame_count(); }
  void on_stderr(std::string_view bytes) override { stderr_tail_.feed(bytes); }
  std::vector<std::string> consume_notes() override { return reader_.consume_notes(); }
  std::vector<std::string> consume_calls() override { return reader_.consume_calls(); }
  void answer(std::string_view reply) override { reader_.append_reply(output_, reply); }
  JobEnd finish(const Outcome&) const override;

 protected:
  // Returns the answer of the host so far. If the answer is an error, the last lines of stderr are added to the error.
  ScriptAnswer complete_answer() const;
  const EndContext& context() const { return context_; }
  const OutputTail& stderr_tail() const { return stderr_tail_; }

 private:
  std::string output_;  // bytes that were not sent yet
  std::shared_ptr<const Fd> attached_;
  EndContext context_;
  AnswerReader reader_;
  OutputTail stderr_tail_;
};

}  // namespace mycojobs
