// The state of a session in a file.
#pragma once

#include <string>

#include "runtime/session.h"
#include "runtime/status.h"

namespace adder {

// Writes a temporary file beside `path`, readable by its owner only, flushes it to the disk and
// gives it its name: whatever goes wrong or is killed before leaves an older file as it was. Needs
// memory for the state once more.
Status SaveStateFile(const Session& session, const std::string& path);

// StateBlob::Load of the file; kNotFound if there is none.
Status LoadStateFile(Session& session, const std::string& path);

}  // namespace adder
