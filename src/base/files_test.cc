// SPDX-License-Identifier: Apache-2.0
#include "base/files.h"

#include <csignal>
#include <filesystem>
#include <fstream>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <gtest/gtest.h>

namespace moekit::base {
namespace {

class FilesTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = (std::filesystem::path(testing::TempDir()) /
               ("moekit_files_" + std::to_string(::getpid()) + "_" +
                testing::UnitTest::GetInstance()->current_test_info()->name()))
                  .string();
    std::filesystem::create_directories(folder_);
  }

  void TearDown() override { std::filesystem::remove_all(folder_); }

  [[nodiscard]] std::size_t count_entries() const {
    const Result<std::vector<std::string>> names = list_folder(folder_);
    EXPECT_TRUE(names.has_value());
    return names->size();
  }

  std::string folder_;
};

TEST_F(FilesTest, published_file_reads_back_and_leaves_no_temporary) {
  const std::string path = folder_ + "/a";
  for (const std::string text : {"first", "second, over the first"}) {
    Result<PendingFile> file = PendingFile::create(path);
    ASSERT_TRUE(file.has_value()) << file.status().to_string();
    ASSERT_TRUE(file->append(text).ok());
    ASSERT_TRUE(file->publish().ok());
    EXPECT_EQ(file->append("x").code(), StatusCode::kFailedPrecondition);
    EXPECT_EQ(file->publish().code(), StatusCode::kFailedPrecondition);
    EXPECT_EQ(read_text_file(path, 100).value(), text);
  }
  EXPECT_EQ(count_entries(), 1U);
}

TEST_F(FilesTest, temporaries_of_processes_that_are_gone_are_removed) {
  Result<PendingFile> mine = PendingFile::create(folder_ + "/mine");
  ASSERT_TRUE(mine.has_value());
  // No process has the largest id: Linux gives at most 2^22.
  std::ofstream(folder_ + "/a.tmp-2147483647-0") << "half";
  for (const char* other : {"/a.tmp-x-0", "/a.tmp-0-0", "/a.tmp-2147483647", "/a.tmp--1-0", "/a"}) {
    std::ofstream(folder_ + other) << "whole";
  }
  EXPECT_EQ(count_entries(), 7U);
  EXPECT_TRUE(remove_abandoned_files(folder_).ok());
  EXPECT_EQ(count_entries(), 6U);
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/a.tmp-2147483647-0"));
  EXPECT_TRUE(mine->publish().ok());
  EXPECT_EQ(remove_abandoned_files(folder_ + "/none").code(), StatusCode::kIo);
}

TEST_F(FilesTest, a_dropped_file_leaves_nothing_and_the_old_one_stays) {
  const std::string path = folder_ + "/a";
  std::ofstream(path) << "old";
  {
    Result<PendingFile> file = PendingFile::create(path);
    ASSERT_TRUE(file.has_value());
    ASSERT_TRUE(file->append("half of the ne").ok());
    EXPECT_EQ(count_entries(), 2U);
  }
  EXPECT_EQ(count_entries(), 1U);
  EXPECT_EQ(read_text_file(path, 100).value(), "old");
}

TEST_F(FilesTest, a_full_disk_is_an_io_error_and_leaves_nothing) {
  // A file size limit answers write() like a full disk does, once its signal is ignored.
  const auto previous = std::signal(SIGXFSZ, SIG_IGN);

  struct rlimit before {};

  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);

  const struct rlimit small { 4096, before.rlim_max };

  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  Status status;
  {
    Result<PendingFile> file = PendingFile::create(folder_ + "/a");
    ASSERT_TRUE(file.has_value());
    status = file->append(std::string(10000, 'x'));
  }
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, previous);
  EXPECT_EQ(status.code(), StatusCode::kIo);
  EXPECT_EQ(count_entries(), 0U);
}

TEST_F(FilesTest, unwritable_places_are_io_errors) {
  EXPECT_EQ(PendingFile::create(folder_ + "/none/a").status().code(), StatusCode::kIo);
  EXPECT_EQ(PendingFile::create(folder_).status().code(), StatusCode::kIo);
  EXPECT_EQ(PendingFile::create("").status().code(), StatusCode::kIo);
  if (::geteuid() != 0) {  // root writes everywhere
    ::chmod(folder_.c_str(), 0500);
    EXPECT_EQ(PendingFile::create(folder_ + "/a").status().code(), StatusCode::kIo);
    ::chmod(folder_.c_str(), 0700);
  }
}

TEST_F(FilesTest, only_regular_files_are_replaced) {
  // As root a rename would replace the device itself.
  const Status device = PendingFile::create("/dev/full").status();
  EXPECT_EQ(device.code(), StatusCode::kIo);
  EXPECT_NE(device.message().find("/dev/full"), std::string_view::npos) << device.message();
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/full"));
  const std::string pipe = folder_ + "/pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const Status refused = PendingFile::create(pipe).status();
  EXPECT_EQ(refused.code(), StatusCode::kIo);
  EXPECT_NE(refused.message().find(pipe), std::string_view::npos) << refused.message();
  ASSERT_EQ(::symlink(pipe.c_str(), (folder_ + "/to_pipe").c_str()), 0);
  EXPECT_EQ(PendingFile::create(folder_ + "/to_pipe").status().code(), StatusCode::kIo);
  EXPECT_TRUE(std::filesystem::is_fifo(pipe));
  EXPECT_EQ(count_entries(), 2U);
}

TEST_F(FilesTest, a_pipe_made_while_writing_is_not_replaced) {
  const std::string path = folder_ + "/a";
  {
    Result<PendingFile> file = PendingFile::create(path);
    ASSERT_TRUE(file.has_value()) << file.status().to_string();
    ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
    EXPECT_EQ(file->publish().code(), StatusCode::kIo);
  }
  EXPECT_TRUE(std::filesystem::is_fifo(path));
  EXPECT_EQ(count_entries(), 1U);
}

TEST_F(FilesTest, a_link_stays_and_its_file_is_replaced) {
  std::filesystem::create_directory(folder_ + "/real");
  std::ofstream(folder_ + "/real/a") << "old";
  const std::string link = folder_ + "/link";
  ASSERT_EQ(::symlink("real/a", link.c_str()), 0);
  Result<PendingFile> file = PendingFile::create(link);
  ASSERT_TRUE(file.has_value()) << file.status().to_string();
  ASSERT_TRUE(file->append("new").ok());
  ASSERT_TRUE(file->publish().ok());
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_EQ(read_text_file(folder_ + "/real/a", 100).value(), "new");
  for (const std::string target : {"none", "loop"}) {
    const std::string path = folder_ + "/" + (target == "loop" ? "loop" : "dangling");
    ASSERT_EQ(::symlink(target.c_str(), path.c_str()), 0);
    const Status status = PendingFile::create(path).status();
    EXPECT_EQ(status.code(), StatusCode::kIo);
    EXPECT_NE(status.message().find(path), std::string_view::npos) << status.message();
    EXPECT_TRUE(std::filesystem::is_symlink(path));
  }
  EXPECT_EQ(count_entries(), 4U);  // real, link, dangling, loop
}

TEST_F(FilesTest, what_is_there_and_no_file_is_not_taken_for_absent) {
  const std::string place = folder_ + "/place";
  EXPECT_FALSE(*has_file(place));
  EXPECT_FALSE(*has_file(place + "/inside"));
  std::filesystem::create_symlink("nowhere", place);
  EXPECT_EQ(has_file(place).status().code(), StatusCode::kIo);
  EXPECT_NE(has_file(place).status().message().find("cannot follow the link " + place),
            std::string_view::npos);
  std::filesystem::remove(place);
  std::filesystem::create_symlink("place", place);
  EXPECT_EQ(has_file(place).status().code(), StatusCode::kIo);
  std::filesystem::remove(place);
  std::filesystem::create_directory(place);
  EXPECT_NE(has_file(place).status().message().find("is not a regular file"),
            std::string_view::npos);
  std::filesystem::remove(place);
  std::ofstream(place) << "x";
  EXPECT_TRUE(*has_file(place));
  EXPECT_FALSE(*has_file(place + "/inside"));
  std::filesystem::create_symlink("place", folder_ + "/link");
  EXPECT_TRUE(*has_file(folder_ + "/link"));
}

TEST_F(FilesTest, only_regular_files_are_mapped) {
  EXPECT_EQ(MappedFile::open(folder_ + "/none").status().code(), StatusCode::kIo);
  EXPECT_EQ(MappedFile::open(folder_).status().code(), StatusCode::kIo);
  EXPECT_EQ(MappedFile::open(std::string("a\0b", 3)).status().code(), StatusCode::kIo);
  ASSERT_EQ(::mkfifo((folder_ + "/pipe").c_str(), 0600), 0);
  EXPECT_EQ(MappedFile::open(folder_ + "/pipe").status().code(), StatusCode::kIo);
  std::ofstream(folder_ + "/empty").close();
  const Result<MappedFile> empty = MappedFile::open(folder_ + "/empty");
  ASSERT_TRUE(empty.has_value());
  EXPECT_TRUE(empty->bytes().empty());
}

TEST_F(FilesTest, a_sparse_file_above_4_gib_reads_at_its_end) {
  const std::string path = folder_ + "/sparse";
  constexpr std::uint64_t kSize = (std::uint64_t{5} << 30) + 1;
  {
    std::ofstream file(path, std::ios::binary);
    file.seekp(static_cast<std::streamoff>(kSize - 1));
    file.put('e');
  }
  const Result<MappedFile> file = MappedFile::open(path);
  ASSERT_TRUE(file.has_value()) << file.status().to_string();
  ASSERT_EQ(file->bytes().size(), kSize);
  EXPECT_EQ(file->bytes().back(), std::byte{'e'});
  EXPECT_EQ(file->bytes()[kSize - 2], std::byte{0});
  EXPECT_EQ(read_text_file(path, 1000).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(FilesTest, parent_folders) {
  EXPECT_EQ(parent_folder("a"), ".");
  EXPECT_EQ(parent_folder("/a"), "/");
  EXPECT_EQ(parent_folder("b/c/a"), "b/c");
}

}  // namespace
}  // namespace moekit::base
