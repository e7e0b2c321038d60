#include "cli/log_output.h"

#include <nlohmann/json.hpp>

#include "cli/command_output.h"
#include "cli/request_arguments.h"
#include "cli/terminal.h"
#include "model/codec.h"
#include "text/timestamp.h"

namespace mycojobs {

std::vector<FlagRow> log_flags() {
  return {{"timestamps", "", "print the time (UTC) at which the agent has received each line"}};
}

Result<LogOptions> read_log_options(const Invocation& call) {
  const nlohmann::json arguments{{"id", call.arguments.at(0)}};  // required by the request
  MJ_TRY(params, read_request(call, *service::find_request("job.logs"), arguments));
  const std::uint64_t tail = params.number("tail");
  return LogOptions{call.json, call.has("timestamps"), params.number("since_ms"),
                    tail == 0 ? LogSelection::kAllLines : tail};
}

void JobLogPrinter::print_part(const Log& part) {
  if (options_.json) {
    print_json_line(to_json(part));
  } else if (options_.timestamps) {
    splitter_.add_part(part, print_line);
  } else {
    print_log(part);
  }
}

void JobLogPrinter::finish() { splitter_.flush(print_line); }

void JobLogPrinter::print_line(const Log& line) {
  print_output(line.stream != LogStream::out, format_utc_time_ms(line.ts_ms) + " " + line.text + "\n");
}

}  // namespace mycojobs
