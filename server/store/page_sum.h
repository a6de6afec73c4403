// The checksum that each page of the database's file ends with. docs/formats.md describes it for other programs.
#ifndef AMPD_SERVER_STORE_PAGE_SUM_H_
#define AMPD_SERVER_STORE_PAGE_SUM_H_

#include <cstddef>
#include <cstdint>

namespace ampd {

// At the end of each page; SQLite leaves them alone where the file's header reserves as many.
inline constexpr int kPageSumBytes = 8;

// Of the whole pages of `size` bytes, a multiple of 8 and at least 512, as page `number`, from 1, without the last
// kPageSumBytes. Never 0. A change of one aligned group of 8 bytes always changes it. Of page 1 the fields do not count
// that SQLite changes in a copy of a database.
uint64_t PageSum(const unsigned char* page, size_t size, uint32_t number);

// What the page ends with. 0: it was written by a program that knows of no sums.
uint64_t StoredSum(const unsigned char* page, size_t size);
void StoreSum(uint64_t sum, unsigned char* page, size_t size);

// With the first 100 bytes of the file: whether its pages have room for sums; the size of a page, 0 where this is no
// database.
bool ReservesSums(const unsigned char* header);
size_t PageSizeOf(const unsigned char* header);

}  // namespace ampd

#endif  // AMPD_SERVER_STORE_PAGE_SUM_H_
