// SPDX-License-Identifier: Apache-2.0
#pragma once

// Files read through a mapping and files published whole: a reader sees the old file or the new
// one, never a part. Offsets are 64-bit everywhere.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "moekit/status.h"

namespace moekit::base {

/// A regular file mapped read-only. The bytes are as stable as the file: whoever truncates it while
/// it is mapped makes later reads fault, as with every mapping.
class MappedFile {
 public:
  /// Errors  kIo  no such file, not a regular file, permission, the system refuses the mapping
  [[nodiscard]] static Result<MappedFile> open(const std::string& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return bytes_; }

 private:
  MappedFile() noexcept = default;

  std::span<const std::byte> bytes_;
};

/// The whole content of a small file.
///
/// Errors  kIo               cannot be opened or read
///         kInvalidArgument  larger than max_bytes
[[nodiscard]] Result<std::string> read_text_file(const std::string& path, std::int64_t max_bytes);

/// A file being written under a temporary name beside its destination. Nothing appears at the
/// destination before publish(), and a PendingFile that is dropped leaves nothing behind. A link at
/// the destination stays and the file it leads to is replaced.
class PendingFile {
 public:
  /// Errors  kIo  the folder is missing, not writable or full; something other than a regular file
  ///              (folder, device, pipe, socket) or a dangling link stands at the destination
  [[nodiscard]] static Result<PendingFile> create(const std::string& path);

  PendingFile(PendingFile&& other) noexcept;
  PendingFile& operator=(PendingFile&& other) = delete;
  PendingFile(const PendingFile&) = delete;
  PendingFile& operator=(const PendingFile&) = delete;
  ~PendingFile();

  [[nodiscard]] Status append(std::span<const std::byte> bytes);
  [[nodiscard]] Status append(std::string_view text);

  /// fsync, rename over the destination, fsync of the folder.
  [[nodiscard]] Status publish();

 private:
  PendingFile(std::string path, std::string temporary, int descriptor)
      : path_(std::move(path)), temporary_(std::move(temporary)), descriptor_(descriptor) {}

  std::string path_;
  std::string temporary_;
  int descriptor_ = -1;
};

[[nodiscard]] bool is_folder(const std::string& path);
[[nodiscard]] bool is_regular_file(const std::string& path);

/// True for a regular file, through links; false where nothing is.
///
/// Errors  kIo  something else stands there: a folder, a pipe, a link that leads nowhere
[[nodiscard]] Result<bool> has_file(const std::string& path);

/// Names of the entries of a folder, sorted.
[[nodiscard]] Result<std::vector<std::string>> list_folder(const std::string& path);

/// Removes what is there, a folder with all that is in it; links are not followed. Returns 0 when
/// nothing is left, else an errno: a destructor may call it, memory or not.
[[nodiscard]] int remove_tree(const std::string& path) noexcept;

/// Unlinks what PendingFile left in a folder when its process was killed; temporaries of processes
/// that run stay.
[[nodiscard]] Status remove_abandoned_files(const std::string& folder);

/// Everything before the last '/', or "." without one.
[[nodiscard]] std::string parent_folder(const std::string& path);

}  // namespace moekit::base
