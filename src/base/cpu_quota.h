// SPDX-License-Identifier: Apache-2.0
#pragma once

// How many CPUs the control groups of Linux grant to this process. A container may see 128 CPUs and
// be stopped after two CPUs' worth of time: a pool of 128 threads then stands still most of the
// time.

#include <optional>
#include <string>

namespace moekit::base {

/// Whole CPUs within the smallest quota on the path from this process's control group to the root,
/// at least 1; nullopt without a limit. Version 2 (`cpu.max`) and version 1 (`cpu.cfs_quota_us` /
/// `cpu.cfs_period_us`), also where both are mounted; the mount points are read from mountinfo.
/// Where the process's own group lies outside of what is mounted (a container that sees its own
/// subtree only), the mounted root stands for it.
///
/// `root` stands before every path that is read; empty but in tests.
[[nodiscard]] std::optional<int> threads_from_cgroups(const std::string& root = {});

}  // namespace moekit::base
