// The state of a session in a file.
#pragma once

#include <string>

#include "runtime/session.h"
#include "runtime/status.h"

namespace adder {

// A NewFile that only its owner may read. Needs memory for the state once more.
Status SaveStateFile(const Session& session, const std::string& path);

// StateBlob::Load of the file; kNotFound if there is none.
Status LoadStateFile(Session& session, const std::string& path);

}  // namespace adder
