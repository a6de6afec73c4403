// A VFS of SQLite, on top of its default one, that ends each page of a database's file with a checksum and compares it
// when the page is read. It does so for files whose header reserves kPageSumBytes a page; others pass as they are, and
// so do all files but the main one: the log has sums of its own, and what is read from it is not looked at here.
//
// What SQLite sees of a page has zeros in the place of the sum, so pages that another program copies from the log into
// the file have no sum, and none that is wrong. A file says whether there may be such pages: the sum of page 1 is that
// page's in a whole file, and its complement where pages without sums count as good. Every commit of the store writes
// page 1, so that a page 1 without a sum tells of a copy by another program. A page that another program changed has a
// wrong sum, as a damaged one.
#ifndef AMPD_SERVER_STORE_CHECKSUM_VFS_H_
#define AMPD_SERVER_STORE_CHECKSUM_VFS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

struct sqlite3;

namespace ampd {

// For sqlite3_open_v2; registered on the first call. Null where that failed. Thread-safe.
const char* ChecksumVfs();

enum class PageSums {
  // The file reserves no room for them.
  kNone,
  // Pages without one are taken as they are.
  kSome,
  // A page without one is damaged.
  kAll,
};

struct DamagedPage {
  uint32_t number;
  // In words: what is wrong with it.
  std::string what;
};

// What is wrong with the page, read from the file as it is; nullopt: nothing. `size` as of PageSum.
std::optional<std::string> DamageOf(const unsigned char* page, size_t size, uint32_t number, PageSums sums);

// Of the main database of a connection that was opened with ChecksumVfs(); used by the thread that owns it alone.
PageSums PageSumsOf(sqlite3* db);
// The caller knows that all pages of the file are to have sums, those that are still in the log included: they get them
// as they are copied. Of a file that has no page yet too, where room is reserved with its first one.
void ExpectAllPageSums(sqlite3* db);
// Of the file, past the log and the sums. For looks at all of a file: whoever opens it a second time in this process
// takes SQLite's locks from it when closing it. False: it has not so many bytes there, or they cannot be read.
bool ReadAsItIs(sqlite3* db, int64_t offset, size_t bytes, unsigned char* to);
// The damaged page that was read last.
std::optional<DamagedPage> LastDamagedPage(sqlite3* db);
// Told of every read of a damaged page.
void SetOnDamage(sqlite3* db, std::function<void(const DamagedPage&)> on_damage);

}  // namespace ampd

#endif  // AMPD_SERVER_STORE_CHECKSUM_VFS_H_
