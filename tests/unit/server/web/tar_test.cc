#include "server/web/tar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"

namespace ampd {
namespace {

using ::testing::HasSubstr;

const absl::Time kTime = absl::FromUnixSeconds(1'700'000'000);

std::string Archive(const std::vector<TarEntry>& entries, char fill) {
  std::string archive;
  for (const TarEntry& entry : entries) {
    absl::StrAppend(&archive, entry.header, std::string(entry.size, fill), TarPadding(entry.size));
  }
  return archive + TarEnd();
}

TEST(Tar, AnotherProgramFindsEveryFileInIt) {
  const std::string folder(155, 'f');
  const std::string name(100, 'n');
  std::vector<TarEntry> entries;
  for (const auto& [file, size] : {std::pair{std::string("a"), 0},
                                   {std::string("b.safetensors"), 511},
                                   {std::string("c d"), 512},
                                   {name, 100'000}}) {
    const absl::StatusOr<TarEntry> entry = MakeTarEntry(folder, file, size, kTime);
    ASSERT_TRUE(entry.ok()) << entry.status();
    EXPECT_EQ(entry->header.size(), static_cast<size_t>(kTarBlock));
    entries.push_back(*entry);
  }
  const std::string archive = Archive(entries, 'x');
  EXPECT_EQ(TarBytes(entries), static_cast<int64_t>(archive.size()));
  std::string place = (std::filesystem::temp_directory_path() / "ampd-tar-XXXXXX").string();
  ASSERT_NE(mkdtemp(place.data()), nullptr);
  std::ofstream(place + "/a.tar", std::ios::binary) << archive;
  const std::string list =
      absl::StrCat("cd ", place, " && tar -tvf a.tar --utc --full-time > list 2> errors && tar -xf a.tar");
  EXPECT_EQ(system(list.c_str()), 0);
  std::ifstream file(place + "/list");
  const std::string listed(std::istreambuf_iterator<char>(file), {});
  EXPECT_THAT(listed, HasSubstr(absl::StrCat(" 511 2023-11-14 22:13:20 ", folder, "/b.safetensors\n")));
  EXPECT_THAT(listed, HasSubstr(absl::StrCat(" 100000 2023-11-14 22:13:20 ", folder, "/", name, "\n")));
  EXPECT_THAT(listed, HasSubstr("-rw-r--r-- 0/0"));
  EXPECT_EQ(std::filesystem::file_size(place + "/errors"), 0u);
  EXPECT_EQ(std::filesystem::file_size(absl::StrCat(place, "/", folder, "/c d")), 512u);
  std::ifstream large(absl::StrCat(place, "/", folder, "/", name));
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(large), {}), std::string(100'000, 'x'));
  std::filesystem::remove_all(place);
}

TEST(Tar, RefusesByNameWhatItCannotHold) {
  constexpr int64_t kMost = (int64_t{1} << 33) - 1;
  EXPECT_TRUE(MakeTarEntry("f", "n", kMost, kTime).ok());
  EXPECT_THAT(MakeTarEntry("f", "n", kMost, kTime)->header.substr(124, 12), std::string("77777777777\0", 12));
  const absl::Status large = MakeTarEntry("f", "n", kMost + 1, kTime).status();
  EXPECT_EQ(large.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(large.message()), HasSubstr("f/n of 8589934592 bytes"));
  EXPECT_FALSE(MakeTarEntry("f", std::string(101, 'n'), 1, kTime).ok());
  EXPECT_FALSE(MakeTarEntry(std::string(156, 'f'), "n", 1, kTime).ok());
}

TEST(Tar, TimesOutsideOfItsRangeAreItsEnds) {
  EXPECT_EQ(MakeTarEntry("f", "n", 1, absl::InfinitePast())->header.substr(136, 11), "00000000000");
  EXPECT_EQ(MakeTarEntry("f", "n", 1, absl::InfiniteFuture())->header.substr(136, 11), "77777777777");
}

}  // namespace
}  // namespace ampd
