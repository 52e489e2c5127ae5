// SPDX-License-Identifier: Apache-2.0
#include "base/cpu_quota.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string_view>
#include <vector>

namespace moekit::base {

namespace {

std::string read_text(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) {
    parts.push_back(std::move(part));
  }
  return parts;
}

bool lists_cpu(const std::string& controllers) {
  const std::vector<std::string> names = split(controllers, ',');
  return std::find(names.begin(), names.end(), "cpu") != names.end();
}

// mountinfo writes blanks, tabs, newlines and backslashes of a path as \ooo.
std::string unescape(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    int code = 0;
    if (text[i] == '\\' && i + 3 < text.size() &&
        std::from_chars(text.data() + i + 1, text.data() + i + 4, code, 8).ec == std::errc()) {
      out += static_cast<char>(code);
      i += 3;
    } else {
      out += text[i];
    }
  }
  return out;
}

enum class Version { kOne, kTwo };

// A hierarchy of groups that may hold CPU quotas, as mountinfo names it.
struct Hierarchy {
  Version version = Version::kTwo;
  std::string root{};  // the group that is visible at `mount_point`
  std::string mount_point{};
};

// A line of proc(5): `36 35 0:31 ROOT MOUNT_POINT OPTIONS [TAGS...] - TYPE SOURCE SUPER_OPTIONS`.
std::optional<Hierarchy> hierarchy_of(const std::string& mount_line) {
  constexpr std::size_t kRoot = 3;
  const std::vector<std::string> fields = split(mount_line, ' ');
  const auto dash = std::find(fields.begin(), fields.end(), "-");
  if (dash - fields.begin() < 6 || fields.end() - dash < 4) {
    return std::nullopt;
  }
  Hierarchy found{Version::kTwo, unescape(fields[kRoot]), unescape(fields[kRoot + 1])};
  if (dash[1] == "cgroup2") {
    return found;
  }
  if (dash[1] == "cgroup" && lists_cpu(dash[3])) {
    found.version = Version::kOne;
    return found;
  }
  return std::nullopt;
}

// A line of cgroups(7): `ID:CONTROLLERS:GROUP`; version 2 has id 0 and lists none.
std::optional<std::string> group_in(const std::string& membership, Version version) {
  for (const std::string& line : split(membership, '\n')) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) {
      continue;
    }
    const bool serves = version == Version::kTwo
                            ? line.starts_with("0::")
                            : lists_cpu(line.substr(first + 1, second - first - 1));
    if (serves) {
      return line.substr(second + 1);
    }
  }
  return std::nullopt;
}

// `group` as a path below the mount point; empty for the mounted group itself and for one outside.
std::string below_mount(const Hierarchy& hierarchy, const std::string& group) {
  const std::string prefix = hierarchy.root == "/" ? "" : hierarchy.root;
  if (group == "/" || group.starts_with("/..") || !group.starts_with(prefix + "/")) {
    return {};
  }
  return group.substr(prefix.size());
}

// "200000 100000" is two CPUs; "max 100000" and "-1 100000" are no limit.
std::optional<int> whole_cpus(std::string_view quota_and_period) {
  const char* const end = quota_and_period.data() + quota_and_period.size();
  std::int64_t quota = 0;
  const auto [after_quota, bad_quota] = std::from_chars(quota_and_period.data(), end, quota);
  if (bad_quota != std::errc() || after_quota == end || *after_quota != ' ' || quota <= 0) {
    return std::nullopt;
  }
  std::int64_t period = 0;
  if (std::from_chars(after_quota + 1, end, period).ec != std::errc() || period <= 0) {
    return std::nullopt;
  }
  return static_cast<int>(std::clamp<std::int64_t>(quota / period, 1, 1 << 16));
}

std::optional<int> quota_of(const std::string& folder, Version version) {
  if (version == Version::kTwo) {
    return whole_cpus(read_text(folder + "/cpu.max"));
  }
  std::string quota = read_text(folder + "/cpu.cfs_quota_us");
  quota.erase(std::min(quota.find('\n'), quota.size()));
  return whole_cpus(quota + ' ' + read_text(folder + "/cpu.cfs_period_us"));
}

}  // namespace

std::optional<int> threads_from_cgroups(const std::string& root) {
  const std::string membership = read_text(root + "/proc/self/cgroup");
  std::optional<int> smallest;
  for (const std::string& line : split(read_text(root + "/proc/self/mountinfo"), '\n')) {
    const std::optional<Hierarchy> hierarchy = hierarchy_of(line);
    const auto group = hierarchy ? group_in(membership, hierarchy->version) : std::nullopt;
    if (!group.has_value()) {
      continue;
    }
    std::string below = below_mount(*hierarchy, *group);
    while (true) {
      const auto here = quota_of(root + hierarchy->mount_point + below, hierarchy->version);
      if (here.has_value()) {
        smallest = std::min(smallest.value_or(*here), *here);
      }
      const std::size_t slash = below.rfind('/');
      if (slash == std::string::npos) {
        break;
      }
      below.resize(slash);
    }
  }
  return smallest;
}

}  // namespace moekit::base
