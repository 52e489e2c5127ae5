// SPDX-License-Identifier: Apache-2.0
#include "base/files.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <dirent.h>
#include <fcntl.h>
#include <filesystem>
#include <ftw.h>
#include <memory>
#include <sys/mman.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>
#include <utility>

#include "base/descriptor.h"
#include "base/text.h"

namespace moekit::base {
namespace {

static_assert(sizeof(off_t) == 8, "checkpoints are larger than 2 GiB");

Status system_error(std::string_view action, std::string_view path, int error) {
  return io_error(cat("cannot ", action, " ", path, ": ", std::generic_category().message(error)));
}

/// A path with a NUL inside would be cut by the system and name another file.
Status check_path(const std::string& path) {
  if (path.empty() || path.find('\0') != std::string::npos) {
    return io_error(cat("path of ", path.size(), " bytes is empty or holds a NUL"));
  }
  return {};
}

int retry_open(const std::string& path, int flags, mode_t permissions) {
  int descriptor = -1;
  do {
    descriptor = ::open(path.c_str(), flags, permissions);
  } while (descriptor < 0 && errno == EINTR);
  return descriptor;
}

Result<std::size_t> regular_size(int descriptor, const std::string& path) {
  struct stat info {};

  if (::fstat(descriptor, &info) != 0) {
    return system_error("stat", path, errno);
  }
  if (!S_ISREG(info.st_mode)) {
    return io_error(cat(path, " is not a regular file"));
  }
  return static_cast<std::size_t>(info.st_size);
}

/// A rename replaces whatever stands at `path`: for root even /dev/full, and a link instead of the
/// file behind it. Only a regular file, or nothing, may be replaced.
Status check_replaceable(const std::string& path) {
  struct stat info {};

  if (::lstat(path.c_str(), &info) != 0) {
    return errno == ENOENT ? Status() : system_error("stat", path, errno);
  }
  if (S_ISDIR(info.st_mode)) {
    return io_error(cat("cannot write ", path, ": it is a folder"));
  }
  if (!S_ISREG(info.st_mode)) {
    return io_error(cat("cannot write ", path, ": it exists and is not a regular file"));
  }
  return {};
}

/// `path`, or the file that the link there leads to: the link stays, its file is replaced.
Result<std::string> resolve_destination(const std::string& path) {
  std::error_code error;
  std::string place = path;
  if (std::filesystem::is_symlink(path, error)) {
    place = std::filesystem::canonical(path, error).string();
    if (error) {
      return system_error("follow the link", path, error.value());
    }
  }
  const Status status = check_replaceable(place);
  if (!status.ok()) {
    return place == path ? status : status.with_context(cat("link ", path));
  }
  return place;
}

}  // namespace

Result<MappedFile> MappedFile::open(const std::string& path) {
  MOEKIT_RETURN_IF_ERROR(check_path(path));
  // O_NONBLOCK: opening a pipe must not wait for a writer before it is refused.
  const Descriptor file(retry_open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0));
  if (file.get() < 0) {
    return system_error("open", path, errno);
  }
  MOEKIT_ASSIGN_OR_RETURN(const std::size_t size, regular_size(file.get(), path));
  MappedFile mapped;
  if (size != 0) {
    void* start = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
    if (start == MAP_FAILED) {
      return system_error(cat("map ", size, " bytes of"), path, errno);
    }
    mapped.bytes_ = {static_cast<const std::byte*>(start), size};
  }
  return mapped;
}

MappedFile::MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) {
    ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
  }
}

Result<std::string> read_text_file(const std::string& path, std::int64_t max_bytes) {
  MOEKIT_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::open(path));
  const std::span<const std::byte> bytes = file.bytes();
  if (bytes.size() > static_cast<std::size_t>(max_bytes)) {
    return invalid_argument(
        cat(path, " has ", bytes.size(), " bytes, expected at most ", max_bytes));
  }
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

namespace {

constexpr std::string_view kTemporaryMark = ".tmp-";

/// The process in `NAME.tmp-PID-N`, or 0.
pid_t owner_of(std::string_view name) {
  const std::size_t mark = name.rfind(kTemporaryMark);
  pid_t process = 0;
  if (mark != std::string_view::npos) {
    const std::string_view digits = name.substr(mark + kTemporaryMark.size());
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), process);
    const bool whole = error == std::errc() && end != digits.data() + digits.size() && *end == '-';
    return whole && process > 0 ? process : 0;
  }
  return process;
}

}  // namespace

Result<PendingFile> PendingFile::create(const std::string& path) {
  MOEKIT_RETURN_IF_ERROR(check_path(path));
  MOEKIT_ASSIGN_OR_RETURN(const std::string place, resolve_destination(path));
  static std::atomic<std::uint64_t> counter{0};
  const std::string temporary =
      cat(place, kTemporaryMark, static_cast<std::int64_t>(::getpid()), "-", counter.fetch_add(1));
  const int descriptor = retry_open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (descriptor < 0) {
    return system_error("create", temporary, errno);
  }
  return PendingFile(place, temporary, descriptor);
}

PendingFile::PendingFile(PendingFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::exchange(other.temporary_, {})),
      descriptor_(std::exchange(other.descriptor_, -1)) {}

PendingFile::~PendingFile() {
  if (descriptor_ >= 0) {
    ::close(descriptor_);
  }
  if (!temporary_.empty()) {
    ::unlink(temporary_.c_str());
  }
}

Status PendingFile::append(std::span<const std::byte> bytes) {
  if (descriptor_ < 0) {
    return failed_precondition(cat(path_, " is already published"));
  }
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) {
      continue;
    }
    if (written <= 0) {
      return system_error("write", temporary_, errno);
    }
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return {};
}

Status PendingFile::append(std::string_view text) {
  return append(std::as_bytes(std::span(text.data(), text.size())));
}

Status PendingFile::publish() {
  if (descriptor_ < 0) {
    return failed_precondition(cat(path_, " is already published"));
  }
  if (::fsync(descriptor_) != 0) {
    return system_error("sync", temporary_, errno);
  }
  if (::close(std::exchange(descriptor_, -1)) != 0) {
    return system_error("close", temporary_, errno);
  }
  MOEKIT_RETURN_IF_ERROR(check_replaceable(path_));
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) {
    return system_error(cat("rename ", temporary_, " to"), path_, errno);
  }
  temporary_.clear();
  // The rename itself survives a crash only once the folder is on disk. Some file systems refuse to
  // sync a folder; the file is whole either way, so that is not an error.
  const Descriptor folder(retry_open(parent_folder(path_), O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0));
  if (folder.get() >= 0) {
    ::fsync(folder.get());
  }
  return {};
}

bool is_folder(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::is_directory(path, ignored);
}

bool is_regular_file(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(path, ignored);
}

Result<bool> has_file(const std::string& path) {
  MOEKIT_RETURN_IF_ERROR(check_path(path));

  struct stat info {};

  if (::lstat(path.c_str(), &info) != 0) {
    return errno == ENOENT || errno == ENOTDIR ? Result<bool>(false)
                                               : system_error("open", path, errno);
  }
  const bool is_link = S_ISLNK(info.st_mode);
  if (is_link && ::stat(path.c_str(), &info) != 0) {
    return system_error("follow the link", path, errno);
  }
  if (!S_ISREG(info.st_mode)) {
    return io_error(cat(path, " is not a regular file"));
  }
  return true;
}

// The C library's: libstdc++'s iterator ends the process where it has no memory for the path.
Result<std::vector<std::string>> list_folder(const std::string& path) {
  struct Close {
    void operator()(DIR* folder) const { ::closedir(folder); }
  };

  const std::unique_ptr<DIR, Close> folder(::opendir(path.c_str()));
  if (folder == nullptr) {
    return system_error("list", path, errno);
  }
  std::vector<std::string> names;
  while (true) {
    errno = 0;
    const dirent* const entry = ::readdir(folder.get());
    if (entry == nullptr) {
      break;
    }
    const std::string_view name(entry->d_name);
    if (name != "." && name != "..") {
      names.emplace_back(name);
    }
  }
  if (errno != 0) {
    return system_error("list", path, errno);
  }
  std::sort(names.begin(), names.end());
  return names;
}

int remove_tree(const std::string& path) noexcept {
  constexpr int kMostOpen = 16;
  const auto remove_one = [](const char* name, const struct stat*, int, FTW*) {
    return std::remove(name) == 0 || errno == ENOENT ? 0 : errno;
  };
  const int failed = ::nftw(path.c_str(), remove_one, kMostOpen, FTW_DEPTH | FTW_PHYS);
  const int error = failed < 0 ? errno : failed;
  return error == ENOENT ? 0 : error;
}

Status remove_abandoned_files(const std::string& folder) {
  MOEKIT_ASSIGN_OR_RETURN(const std::vector<std::string> names, list_folder(folder));
  for (const std::string& name : names) {
    const pid_t process = owner_of(name);
    if (process == 0 || ::kill(process, 0) == 0 || errno != ESRCH) {
      continue;
    }
    const std::string path = cat(folder, "/", name);
    if (::unlink(path.c_str()) != 0 && errno != ENOENT) {
      return system_error("remove", path, errno);
    }
  }
  return {};
}

std::string parent_folder(const std::string& path) {
  const std::size_t slash = path.find_last_of('/');
  if (slash == std::string::npos) {
    return ".";
  }
  return slash == 0 ? "/" : path.substr(0, slash);
}

}  // namespace moekit::base
