// Decoders of what strangers send or may have put into a store, each as a function of some bytes. Whoever calls one
// finds crashes, what the sanitizers see, and the properties that stand in it: one that does not hold ends the process
// (must()).
//
//   corpus/<target>/taken-*     the decoder takes it     refused-*     it does not
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace mycojobs::fuzz {

// 1: it was taken; 0: refused. Each stands in the file of its subject.
int fuzz_message_hash(std::string_view);       // lines of name=value, as the fields of a hash
int fuzz_message_json(std::string_view);       //
int fuzz_job_hash(std::string_view);           //
int fuzz_envelope(std::string_view);           // JSON, sealed or not
int fuzz_receipt(std::string_view);            // JSON, signed or not
int fuzz_answer_body(std::string_view);        // JSON, as the next ones: bodies of envelopes
int fuzz_logs_body(std::string_view);          //
int fuzz_cancel_body(std::string_view);        //
int fuzz_file_body(std::string_view);          // or what is said of files that are missing
int fuzz_cbor(std::string_view);               // bytes
int fuzz_cbor_values(std::string_view);        // bytes that choose a value
int fuzz_rpc_request(std::string_view);        // a request's body
int fuzz_rpc_answer(std::string_view);         // an answer's
int fuzz_http_request(std::string_view);       // head and body
int fuzz_policy(std::string_view);             // JSON
int fuzz_flow_yaml(std::string_view);          //
int fuzz_flow_json(std::string_view);          //
int fuzz_workflow_manifest(std::string_view);  // JSON
int fuzz_workflow_scenario(std::string_view);  // JSON
int fuzz_workflow_history(std::string_view);   // lines of JSON
int fuzz_workflow_snapshot(std::string_view);  // JSON of head, pages and facts

struct Target {
  std::string_view name;  // of its corpus, too
  int (*run)(std::string_view);
  std::span<const std::string_view> pieces;  // what a mutation puts in
};
std::span<const Target> targets();
const Target* find_target(std::string_view name);  // null: there is none

// A property: if it does not hold, says what and ends the process by SIGABRT.
void must(bool holds, std::string_view what);

}  // namespace mycojobs::fuzz
