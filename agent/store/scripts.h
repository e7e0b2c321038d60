// The server-side scripts (scripts/*.lua, each behind common.lua), put into the program when it is configured.
#pragma once

#include <string_view>

namespace mycojobs {

struct Script {
  std::string_view name, sha1, text;
};

namespace scripts {
extern const Script cancel, claim, expire, grant, hold_runner, refuse_message, release_runner, renew, report, submit,
    sweep_missing, take_message, topic_send;
}  // namespace scripts

}  // namespace mycojobs
