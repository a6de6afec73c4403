// What is looked at when a database is opened, and the rewriting that gives its pages checksums.
#include <sqlite3.h>

#include <algorithm>
#include <filesystem>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "engine/core/status.h"
#include "server/store/checksum_vfs.h"
#include "server/store/database.h"
#include "server/store/page_sum.h"
#include "server/store/statement.h"

namespace ampd {
namespace {

// Looking through the tables of this much takes well under a second, and comparing the checksums of this much about one
// where the file is in memory.
constexpr int64_t kMaxTableBytes = 64 << 20;
constexpr int64_t kMaxSummedBytes = 1 << 30;
constexpr size_t kReadBytes = 1 << 20;
constexpr size_t kHeaderBytes = 100;
// Of more it is said how many there are.
constexpr size_t kNamedPages = 3;
// SQLite keeps its locks there, and no page.
constexpr int64_t kLockByte = 0x40000000;

// The first column of every row, a line each; SQLite's code.
int QueryLines(sqlite3* db, const std::string& sql, std::string* lines) {
  const auto add = [](void* out, int, char** values, char**) {
    std::string* text = static_cast<std::string*>(out);
    absl::StrAppend(text, text->empty() ? "" : "\n", values[0] == nullptr ? "" : values[0]);
    return 0;
  };
  return sqlite3_exec(db, sql.c_str(), add, lines, nullptr);
}

int64_t SizeOf(const std::string& path) {
  std::error_code error;
  const uintmax_t bytes = std::filesystem::file_size(path, error);
  return error ? 0 : static_cast<int64_t>(bytes);
}

uint32_t BigEndian(const unsigned char* bytes) {
  return uint32_t{bytes[0]} << 24 | uint32_t{bytes[1]} << 16 | uint32_t{bytes[2]} << 8 | bytes[3];
}

}  // namespace

bool Database::CopyWholeLog() const {
  int pages = 0;
  int copied = 0;
  const int code = sqlite3_wal_checkpoint_v2(db_, nullptr, SQLITE_CHECKPOINT_PASSIVE, &pages, &copied);
  return code == SQLITE_OK && pages == copied;
}

// The file of the log would stay as large as the database was. Where another reads it the next start does it.
void Database::EmptyLog() const {
  sqlite3_wal_checkpoint_v2(db_, nullptr, SQLITE_CHECKPOINT_TRUNCATE, nullptr, nullptr);
}

absl::Status Database::Check() const {
  // A page that the log has is not read from the file, where a power loss may have left it in part.
  if (CopyWholeLog()) {
    AMPD_RETURN_IF_ERROR(PageSumsOf(db_) == PageSums::kNone ? CheckHeader() : CheckSums());
    AMPD_RETURN_IF_ERROR(CheckLength());
  }
  return SizeOf(path_) > kMaxTableBytes ? absl::OkStatus() : CheckTables();
}

absl::Status Database::CheckSums() const {
  unsigned char header[kHeaderBytes];
  if (!ReadAsItIs(db_, 0, kHeaderBytes, header)) return absl::OkStatus();
  const auto page_size = static_cast<int64_t>(PageSizeOf(header));
  // A file may be longer than its database, where the power went before it was cut.
  const int64_t bytes = std::min(SizeOf(path_), BigEndian(header + 28) * page_size);
  if (page_size == 0 || bytes > kMaxSummedBytes) return absl::OkStatus();
  std::vector<std::string> damaged;
  const auto note = [&](uint32_t number, const std::string& what) {
    damaged.push_back(absl::StrCat("page ", number, " ", what));
    if (damaged.size() <= kNamedPages) damage_->Note({number, what});
  };
  std::vector<unsigned char> buffer(kReadBytes);
  int64_t at_a_time = kReadBytes;
  for (int64_t at = 0; at + page_size <= bytes;) {
    const int64_t read = std::min(at_a_time, (bytes - at) / page_size * page_size);
    const auto first = static_cast<uint32_t>(at / page_size + 1);
    if (!ReadAsItIs(db_, at, static_cast<size_t>(read), buffer.data())) {
      // To find which ones.
      if (std::exchange(at_a_time, page_size) > page_size) continue;
      note(first, "cannot be read");
      at += page_size;
      continue;
    }
    for (int64_t within = 0; within < read; within += page_size) {
      const uint32_t number = first + static_cast<uint32_t>(within / page_size);
      if (number == kLockByte / page_size + 1) continue;
      const auto damage = DamageOf(buffer.data() + within, static_cast<size_t>(page_size), number, PageSumsOf(db_));
      if (damage) note(number, *damage);
    }
    at += read;
  }
  if (damaged.empty()) return absl::OkStatus();
  const size_t more = damaged.size() - std::min(damaged.size(), kNamedPages);
  damaged.resize(damaged.size() - more);
  return Damaged(absl::StrCat(absl::StrJoin(damaged, "; "), more > 0 ? absl::StrCat("; and ", more, " more") : ""));
}

// A file that says that it has no sums, and has one at the end of its second page, did say so.
absl::Status Database::CheckHeader() const {
  unsigned char header[kHeaderBytes];
  if (!ReadAsItIs(db_, 0, kHeaderBytes, header)) return absl::OkStatus();
  const size_t size = PageSizeOf(header);
  std::vector<unsigned char> page(size);
  if (size == 0 || !ReadAsItIs(db_, static_cast<int64_t>(size), size, page.data())) return absl::OkStatus();
  if (StoredSum(page.data(), size) != PageSum(page.data(), size, 2)) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(path_,
                                          ": page 1 is damaged: it says that pages have no checksums (byte 20 is ",
                                          header[20], ", not ", kPageSumBytes, "), and page 2 has one"));
}

absl::Status Database::CheckTables() const {
  std::string found;
  const int code = QueryLines(db_, "PRAGMA quick_check(3)", &found);
  if (code == SQLITE_OK && found == "ok") return absl::OkStatus();
  // Some damage ends the check itself.
  if (code != SQLITE_OK && (code & 0xff) != SQLITE_CORRUPT) return ErrorOf(code, "quick_check");
  if (code != SQLITE_OK) absl::StrAppend(&found, found.empty() ? "" : "\n", sqlite3_errmsg(db_));
  return Damaged(absl::StrReplaceAll(found, {{"\n", "; "}}));
}

absl::Status Database::Damaged(const std::string& what) const {
  std::string tables;
  const int code = QueryLines(db_, "SELECT name FROM sqlite_schema WHERE type = 'table'", &tables);
  if (code != SQLITE_OK) return absl::DataLossError(absl::StrCat(path_, " is damaged, its list of tables too: ", what));
  std::vector<std::string> damaged;
  for (const absl::string_view table : absl::StrSplit(tables, '\n')) {
    std::string of_table;
    const int checked = QueryLines(db_, absl::StrCat("PRAGMA quick_check('", table, "')"), &of_table);
    if (checked != SQLITE_OK || of_table != "ok") damaged.emplace_back(table);
  }
  const std::string where = damaged.empty() ? " is damaged, in no table that is in use: " : " is damaged, in tables ";
  return absl::DataLossError(
      absl::StrCat(path_, where, absl::StrJoin(damaged, ", "), damaged.empty() ? "" : ": ", what));
}

absl::Status Database::CheckLength() const {
  unsigned char header[kHeaderBytes];
  if (!ReadAsItIs(db_, 0, kHeaderBytes, header)) return absl::OkStatus();
  const auto size = static_cast<int64_t>(PageSizeOf(header));
  const int64_t pages = size == 0 ? 0 : SizeOf(path_) / size;
  if (size == 0 || pages >= BigEndian(header + 28)) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat(path_, " is damaged: the file ends with page ", pages, " of ", BigEndian(header + 28)));
}

absl::Status Database::AddPageSums(const Log& log) {
  const PageSums sums = PageSumsOf(db_);
  if (sums == PageSums::kAll || ChecksumVfs() == nullptr) return absl::OkStatus();
  const auto tell = [&](absl::string_view text) {
    if (log) log(absl::StrCat(path_, ": ", text));
  };
  const absl::string_view without = sums == PageSums::kNone ? "its pages have no checksums"
                                                            : "another program copied pages without checksums into it";
  std::error_code error;
  const std::filesystem::space_info room = std::filesystem::space(std::filesystem::path(path_).parent_path(), error);
  // A copy, a log as long as the file, and the growth of the file.
  const int64_t needed = 3 * SizeOf(path_) + (1 << 20);
  if (!error && static_cast<int64_t>(room.available) < needed) {
    tell(absl::StrCat(without, ", and there is no room to rewrite it: that takes ", needed,
                      " bytes; the next start tries again"));
    return absl::OkStatus();
  }
  tell(absl::StrCat(without, ": rewriting it"));
  // Not to copy the new pages to the file before it is known what they are.
  sqlite3_wal_hook(db_, nullptr, nullptr);
  const absl::Status rewritten = Execute("VACUUM");
  WatchLog();
  if (absl::IsDataLoss(rewritten)) return rewritten;
  if (!rewritten.ok()) {
    EmptyLog();
    tell(absl::StrCat(without, ", and it cannot be rewritten: ", rewritten.message(), "; the next start tries again"));
    return absl::OkStatus();
  }
  if (sums == PageSums::kSome) ExpectAllPageSums(db_);
  EmptyLog();
  return absl::OkStatus();
}

}  // namespace ampd
