// SPDX-License-Identifier: Apache-2.0
#pragma once

// Everything that the image store does to a disk: read an entry, publish one, list, remove. A class
// with virtual functions, so that a test can count the accesses, refuse them, or die in the middle.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "moekit/status.h"

#include "jit/entry.h"

namespace moekit::jit {

/// Points of publish() between which a crash must leave no half entry behind.
enum class PublishStage : std::uint8_t {
  kFolderMade,    // the temporary folder exists
  kFileOpened,    // a file exists, empty (once per file)
  kFileWritten,   // its bytes are handed to the system (once per file)
  kFileSynced,    // and on the disk (once per file)
  kFolderSynced,  // the temporary folder is complete
  kAsideMoved,    // a bad entry of the same name is out of the way (only when one was)
  kRenamed,       // the entry is visible under its name
};

class Files {
 public:
  virtual ~Files() = default;

  /// The three files of `folder`/`name`, read through one handle of the folder, so that they come
  /// from one publication; nothing when there is no such entry.
  ///
  /// Errors  kIo  the system's reason
  [[nodiscard]] virtual Result<std::optional<EntryContents>> read_entry(const std::string& folder,
                                                                        const std::string& name);

  /// Writes a temporary folder beside, syncs it, renames it. An entry of the same name that is
  /// there already has won and stays, unless `replace`; both are success.
  ///
  /// Errors  kIo  the system's reason: read-only, full, no such place
  [[nodiscard]] virtual Status publish(const std::string& folder,
                                       const std::string& name,
                                       const EntryContents& contents,
                                       bool replace);

  /// Names of the folders in `folder`, sorted; none when it does not exist. Temporary folders
  /// (their names begin with a full stop) are included.
  [[nodiscard]] virtual Result<std::vector<std::string>> list(const std::string& folder);

  /// Removes one entry or temporary folder with its files.
  [[nodiscard]] virtual Status remove(const std::string& folder, const std::string& name);

  /// Seconds since the folder was last changed.
  [[nodiscard]] virtual Result<std::int64_t> age_seconds(const std::string& folder,
                                                         const std::string& name);

 protected:
  /// Called at each stage; a test ends the process here.
  virtual void reached(PublishStage) {}
};

/// Names of temporary folders begin with this.
inline constexpr std::string_view kTemporaryPrefix = ".tmp-";

}  // namespace moekit::jit
