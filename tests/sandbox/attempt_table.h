// The attempts by section. Each is a function of its words; words[0] is its name.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace mycojobs::test {

using Words = std::vector<std::string>;
using Attempts = std::map<std::string, std::function<std::string(const Words&)>>;

const Attempts& attempts_on_files();
const Attempts& attempts_on_processes();
const Attempts& attempts_on_signals();
const Attempts& attempts_on_network();
const Attempts& attempts_on_memory();
const Attempts& attempts_on_kernel();
const Attempts& attempts_combined();  // two rows of the list at once, or what no row has
const Attempts& attempts_to_escape();
const Attempts& attempts_on_limits();
const Attempts& attempts_at_random();
const Attempts& attempts_to_pin();    // kernel memory
const Attempts& attempts_on_reuse();  // what is left in a sandbox, and how the next job would find it

std::string verdict(long result);                    // "ok", or the name of errno
std::string error_name();                            // of errno
unsigned long number(const Words&, std::size_t at);  // 0: there is none
// The child leaves at once, or runs `then`. "ok" or the name of the errno.
std::string fork_once(const std::function<void()>& then = [] {});
// Waits for a child that runs `then` and leaves with its value: that value, or -1 if it ended otherwise.
int in_child(const std::function<int()>& then);

}  // namespace mycojobs::test
