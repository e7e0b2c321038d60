// Decoders of untrusted input and of stored data that others may have written. Each target is a function of some bytes.
// A caller detects crashes, sanitizer errors, and violated properties, which end the process (must()).
//
//   corpus/<target>/taken-*     accepted by the decoder     refused-*     rejected
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace mycojobs::fuzz {

// The targets return 1 if the input was accepted and 0 if it was rejected. Each is defined in the file of its subject.
int fuzz_message_hash(std::string_view);       // lines of name=value, as the fields of a hash
int fuzz_message_json(std::string_view);       //
int fuzz_job_hash(std::string_view);           //
int fuzz_envelope(std::string_view);           // JSON, sealed or not
int fuzz_receipt(std::string_view);            // JSON, signed or not
int fuzz_answer_body(std::string_view);        // JSON, as the next targets: bodies of envelopes
int fuzz_logs_body(std::string_view);          //
int fuzz_cancel_body(std::string_view);        //
int fuzz_file_body(std::string_view);          // or a report of missing files
int fuzz_cbor(std::string_view);               // bytes
int fuzz_cbor_values(std::string_view);        // bytes that choose a value
int fuzz_rpc_request(std::string_view);        // body of a request
int fuzz_rpc_answer(std::string_view);         // body of a response
int fuzz_http_request(std::string_view);       // head and body
int fuzz_policy(std::string_view);             // JSON
int fuzz_flow_yaml(std::string_view);          //
int fuzz_flow_json(std::string_view);          //
int fuzz_workflow_manifest(std::string_view);  // JSON
int fuzz_workflow_scenario(std::string_view);  // JSON
int fuzz_workflow_history(std::string_view);   // lines of JSON
int fuzz_workflow_snapshot(std::string_view);  // JSON with head, pages and facts

struct Target {
  std::string_view name;  // also the name of its corpus
  int (*run)(std::string_view);
  std::span<const std::string_view> pieces;  // text that a mutation inserts
};
std::span<const Target> targets();
const Target* find_target(std::string_view name);  // null if there is none

// Checks a property. If `holds` is false, prints `what` and ends the process with SIGABRT.
void must(bool condition, std::string_view message);

}  // namespace mycojobs::fuzz
