#include "runtime/session_file.h"

#include <cstdlib>
#include <memory>

#include "runtime/mapped_file.h"
#include "runtime/new_file.h"
#include "runtime/session_state.h"

namespace adder {

Status SaveStateFile(const Session& session, const std::string& path) {
  ADDER_ASSIGN_OR_RETURN(NewFile file, NewFile::Create(path, NewFile::Access::kOwner));
  const size_t bytes = StateBlob::Bytes(session);
  const std::unique_ptr<uint8_t, decltype(&std::free)> memory(
      static_cast<uint8_t*>(std::malloc(bytes)), &std::free);
  if (memory == nullptr) {
    return Error(Code::kOutOfMemory, "%s: the state needs %zu bytes", path.c_str(), bytes);
  }
  const std::span<uint8_t> blob(memory.get(), bytes);
  ADDER_RETURN_IF_ERROR(StateBlob::Save(session, blob));
  ADDER_RETURN_IF_ERROR(file.Append(blob));
  return file.Finish();
}

Status LoadStateFile(Session& session, const std::string& path) {
  ADDER_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  return Annotate(StateBlob::Load(session, file.bytes()), path);
}

}  // namespace adder
