// SPDX-License-Identifier: Apache-2.0
#include "jit/files.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fcntl.h>
#include <filesystem>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>

#include "base/descriptor.h"
#include "base/files.h"
#include "base/text.h"

namespace moekit::jit {
namespace {

namespace fs = std::filesystem;
using base::Descriptor;

Status errno_status(std::string_view doing, std::string_view path) {
  return io_error(base::cat(doing, " ", path, ": ", std::generic_category().message(errno)));
}

Result<std::string> read_all(int descriptor, std::string_view name) {
  std::string content;

  struct stat info {};

  if (::fstat(descriptor, &info) == 0 && info.st_size > 0) {
    content.reserve(static_cast<std::size_t>(info.st_size));
  }
  std::array<char, 65536> buffer{};
  for (;;) {
    const ssize_t got = ::read(descriptor, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got < 0) {
      return errno_status("reading", name);
    }
    if (got == 0) {
      return content;
    }
    content.append(buffer.data(), static_cast<std::size_t>(got));
  }
}

Status write_all(int descriptor, std::string_view content, std::string_view name) {
  while (!content.empty()) {
    const ssize_t written = ::write(descriptor, content.data(), content.size());
    if (written < 0 && errno == EINTR) {
      continue;
    }
    if (written < 0) {
      return errno_status("writing", name);
    }
    content.remove_prefix(static_cast<std::size_t>(written));
  }
  return {};
}

Status sync_folder(const std::string& path) {
  const Descriptor folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder.ok() || ::fsync(folder.get()) != 0) {
    return errno_status("syncing", path);
  }
  return {};
}

Status make_folders(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) {
    return io_error(base::cat("making ", path, ": ", error.message()));
  }
  return {};
}

/// Removes what it is given unless told that it became an entry.
class TemporaryFolder {
 public:
  explicit TemporaryFolder(std::string made) : path(std::move(made)) {}

  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  ~TemporaryFolder() {
    if (!published) {
      static_cast<void>(base::remove_tree(path));  // what stays is pruned some day
    }
  }

  std::string path;
  bool published = false;
};

Result<std::string> make_temporary(const std::string& folder) {
  std::string path = base::cat(folder, "/", kTemporaryPrefix, "XXXXXX");
  if (::mkdtemp(path.data()) == nullptr) {
    return errno_status("making a temporary folder in", folder);
  }
  // mkdtemp makes it private; a bundle is read by everybody.
  if (::chmod(path.c_str(), 0755) != 0) {
    return errno_status("opening up", path);
  }
  return path;
}

}  // namespace

Result<std::optional<EntryContents>> Files::read_entry(const std::string& folder,
                                                       const std::string& name) {
  const std::string path = folder + "/" + name;
  const Descriptor entry(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!entry.ok()) {
    if (errno == ENOENT || errno == ENOTDIR) {
      return std::optional<EntryContents>();
    }
    return errno_status("opening", path);
  }
  EntryContents contents;
  for (std::size_t i = 0; i < kEntryFiles.size(); ++i) {
    const std::string file_name(kEntryFiles[i]);
    const Descriptor file(::openat(entry.get(), file_name.c_str(), O_RDONLY | O_CLOEXEC));
    if (!file.ok() && errno == ENOENT) {
      continue;  // decode_entry names it
    }
    if (!file.ok()) {
      return errno_status("opening", path + "/" + file_name);
    }
    MOEKIT_ASSIGN_OR_RETURN(contents[i], read_all(file.get(), path + "/" + file_name));
  }
  return std::optional(std::move(contents));
}

Status Files::publish(const std::string& folder,
                      const std::string& name,
                      const EntryContents& contents,
                      bool replace) {
  MOEKIT_RETURN_IF_ERROR(make_folders(folder));
  MOEKIT_ASSIGN_OR_RETURN(std::string made, make_temporary(folder));
  TemporaryFolder temporary(std::move(made));
  reached(PublishStage::kFolderMade);
  for (std::size_t i = 0; i < kEntryFiles.size(); ++i) {
    const std::string path = base::cat(temporary.path, "/", kEntryFiles[i]);
    const Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
    if (!file.ok()) {
      return errno_status("making", path);
    }
    reached(PublishStage::kFileOpened);
    MOEKIT_RETURN_IF_ERROR(write_all(file.get(), contents[i], path));
    reached(PublishStage::kFileWritten);
    if (::fsync(file.get()) != 0) {
      return errno_status("syncing", path);
    }
    reached(PublishStage::kFileSynced);
  }
  MOEKIT_RETURN_IF_ERROR(sync_folder(temporary.path));
  reached(PublishStage::kFolderSynced);
  const std::string target = folder + "/" + name;
  if (replace) {
    // Moved aside and not deleted in place: a reader that has the folder open keeps reading the
    // old files, and a crash here leaves no entry, which is a miss and not a half.
    MOEKIT_ASSIGN_OR_RETURN(std::string aside_path, make_temporary(folder));
    const TemporaryFolder aside(std::move(aside_path));
    if (::rename(target.c_str(), aside.path.c_str()) == 0) {
      reached(PublishStage::kAsideMoved);
    } else if (errno != ENOENT) {
      return errno_status("moving aside", target);
    }
  }
  if (::rename(temporary.path.c_str(), target.c_str()) != 0) {
    if (errno == EEXIST || errno == ENOTEMPTY) {
      return {};  // somebody else published the same key: theirs is as good as ours
    }
    return errno_status("publishing", target);
  }
  temporary.published = true;
  reached(PublishStage::kRenamed);
  return sync_folder(folder);
}

Result<std::vector<std::string>> Files::list(const std::string& folder) {
  struct stat info {};

  const bool absent = ::stat(folder.c_str(), &info) != 0 && (errno == ENOENT || errno == ENOTDIR);
  if (absent || S_ISREG(info.st_mode)) {
    return std::vector<std::string>();
  }
  MOEKIT_ASSIGN_OR_RETURN(std::vector<std::string> names, base::list_folder(folder));
  std::erase_if(names, [&](const std::string& name) {
    return !base::is_folder(base::cat(folder, "/", name));
  });
  return names;
}

Status Files::remove(const std::string& folder, const std::string& name) {
  const std::string path = base::cat(folder, "/", name);
  errno = base::remove_tree(path);
  return errno == 0 ? Status() : errno_status("removing", path);
}

Result<std::int64_t> Files::age_seconds(const std::string& folder, const std::string& name) {
  const std::string path = folder + "/" + name;

  struct stat info {};

  if (::stat(path.c_str(), &info) != 0) {
    return errno_status("looking at", path);
  }
  return static_cast<std::int64_t>(::time(nullptr) - info.st_mtime);
}

}  // namespace moekit::jit
