// For `doctor`: what of the sandbox works on this host, decided by trying.
#pragma once

#include <string>
#include <vector>

#include "mycojobs/result.h"
#include "sandbox/client.h"

namespace mycojobs {

struct LayerReport {
  std::string name;  // as in Outcome::layers; and "canary", the whole of it
  bool ok = false;
  std::string detail;
  std::string remedy;  // empty if ok
};

// Error: the launcher cannot be started, or cannot even begin (names the layer and the remedy).
Result<std::vector<LayerReport>> probe_layers(const SandboxConfig&);

}  // namespace mycojobs
