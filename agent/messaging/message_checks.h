// The checks of a message that another supervisor delivers. message_receiver.h applies them in this order before it
// stores the message: format and size, signature and age, right of the signer, target host, Mycelium node. The local
// supervisor applies check_message() also before it sends a message. Pure functions.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "base/result.h"
#include "model/records.h"
#include "security/rights.h"

namespace mycojobs {

// Maximum time-out of a message, and maximum validity of its signature.
inline constexpr std::uint32_t kMaxMessageTimeoutS = 7 * 24 * 3600;

// Parses the message in the body of an envelope, and checks its format, the number of its jobs and its target context.
// Errors: invalid, too_large, denied (the message is signed for another context).
Result<Message> parse_signed_message(const nlohmann::json& body, Id context);

// Checks the signature and the age of a message against the record of its signer. The signature is valid for the
// time-out of the message or kSignatureWindowS, whichever is longer. Errors: invalid (the time-out is over
// kMaxMessageTimeoutS); denied (as check_signature()).
Result<void> check_message(const Message&, const Actor& signer, std::uint64_t now_s);

// Checks that the message is signed for this host, since a message for one host must not be accepted by another. A
// message without a target address is for a context on the host of its sender, so only the local supervisor, which
// signs the envelope with own_key, may deliver it. Error denied.
Result<void> check_target(const Message&, const std::string& envelope_signer, const std::string& own_key);

// Checks that the node of a Mycelium address delivered the request. Addresses without a node pass. The key of a node
// identifies the host, and the key of a coordinator identifies the sender; if an address contains both, both are
// checked. `node` is the node that delivered the request, or empty if another transport delivered it. Error denied.
Result<void> check_node(const std::string& address, const std::string& node, bool allows_other_transport);

// Returns a refusal if the actor must not send messages to the context.
std::optional<Refusal> find_send_refusal(Id actor, const AclContext&);

}  // namespace mycojobs
