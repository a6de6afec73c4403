#include "server/store/checksum_vfs.h"

#include <sqlite3.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/store/page_sum.h"

namespace ampd {
namespace {

constexpr char kName[] = "ampd-checksum";
constexpr size_t kHeaderBytes = 100;
constexpr size_t kMinPage = 512;
constexpr size_t kMaxPage = 65536;
// Of newer SQLite: that parts of pages may be read, which have no sum.
constexpr int kSubpageRead = 0x00008000;
// SQLite's own are below 100.
constexpr int kStateOpcode = 0x616d7064;

struct State {
  // The file of the VFS below.
  sqlite3_file* below;
  PageSums sums = PageSums::kNone;
  // The next page 1 is of a log that has all pages anew: what the file has now does not count.
  bool rewritten = false;
  // A page with its sum, on its way to the file.
  std::vector<unsigned char> page;
  std::optional<DamagedPage> last_damaged;
  std::function<void(const DamagedPage&)> on_damage;
};

// In memory that is SQLite's; the file of the VFS below follows it.
struct File {
  sqlite3_file base;
  State* state;
};

File* Of(sqlite3_file* file) { return reinterpret_cast<File*>(file); }
sqlite3_file* Below(sqlite3_file* file) { return reinterpret_cast<sqlite3_file*>(Of(file) + 1); }
const sqlite3_io_methods* MethodsBelow(sqlite3_file* file) { return Below(file)->pMethods; }
sqlite3_vfs* VfsBelow(sqlite3_vfs* vfs) { return static_cast<sqlite3_vfs*>(vfs->pAppData); }

bool IsWholePage(int bytes, sqlite3_int64 offset) {
  const auto size = static_cast<size_t>(bytes);
  return size >= kMinPage && size <= kMaxPage && std::has_single_bit(size) && offset % bytes == 0;
}

bool IsZero(const unsigned char* bytes, size_t size) {
  return std::all_of(bytes, bytes + size, [](unsigned char byte) { return byte == 0; });
}

// By page 1, which a power loss amid a copy of the log may have left in part: it is in the log then.
PageSums SumsOf(sqlite3_file* file) {
  unsigned char page[kMaxPage];
  const auto read = [&](size_t size) {
    return MethodsBelow(file)->xRead(Below(file), page, static_cast<int>(size), 0) == SQLITE_OK;
  };
  if (!read(kHeaderBytes) || !ReservesSums(page)) return PageSums::kNone;
  const size_t size = PageSizeOf(page);
  return read(size) && StoredSum(page, size) == PageSum(page, size, 1) ? PageSums::kAll : PageSums::kSome;
}

// Whether another program copied pages from the log since page 1 told that all have sums: it copies page 1, which every
// commit has, before the others.
bool OthersCopied(sqlite3_file* file, size_t size) {
  unsigned char page[kMaxPage];
  const int code = MethodsBelow(file)->xRead(Below(file), page, static_cast<int>(size), 0);
  return code == SQLITE_OK && ReservesSums(page) && StoredSum(page, size) == 0;
}

int Close(sqlite3_file* file) {
  const int code = MethodsBelow(file)->xClose(Below(file));
  delete std::exchange(Of(file)->state, nullptr);
  return code;
}

int Read(sqlite3_file* file, void* to, int bytes, sqlite3_int64 offset) {
  const int code = MethodsBelow(file)->xRead(Below(file), to, bytes, offset);
  State& state = *Of(file)->state;
  if (state.sums == PageSums::kNone || !IsWholePage(bytes, offset)) return code;
  if (code != SQLITE_OK && code != SQLITE_IOERR_SHORT_READ) return code;
  auto* page = static_cast<unsigned char*>(to);
  const auto size = static_cast<size_t>(bytes);
  const auto number = static_cast<uint32_t>(offset / bytes + 1);
  const bool may_be_others = code == SQLITE_OK && state.sums == PageSums::kAll && StoredSum(page, size) == 0;
  if (may_be_others && SumsOf(file) == PageSums::kSome) state.sums = PageSums::kSome;
  std::optional<std::string> damage = code == SQLITE_OK
                                          ? DamageOf(page, size, number, state.sums)
                                          : std::make_optional<std::string>("lies beyond the end of the file");
  if (!damage) {
    StoreSum(0, page, size);
    return SQLITE_OK;
  }
  state.last_damaged = DamagedPage{number, *std::move(damage)};
  if (state.on_damage) state.on_damage(*state.last_damaged);
  return SQLITE_IOERR_DATA;
}

int Write(sqlite3_file* file, const void* from, int bytes, sqlite3_int64 offset) {
  State& state = *Of(file)->state;
  const auto size = static_cast<size_t>(bytes);
  const auto* page = static_cast<const unsigned char*>(from);
  if (!IsWholePage(bytes, offset)) return MethodsBelow(file)->xWrite(Below(file), from, bytes, offset);
  if (offset == 0) {
    const bool rewritten = std::exchange(state.rewritten, false);
    if (!ReservesSums(page)) {
      state.sums = PageSums::kNone;
    } else if (state.sums == PageSums::kNone) {
      // The first page with room for sums is followed by all the others, from a log that has them all.
      state.sums = PageSums::kAll;
    } else if (!rewritten && OthersCopied(file, size)) {
      state.sums = PageSums::kSome;
    }
  }
  if (state.sums == PageSums::kNone) return MethodsBelow(file)->xWrite(Below(file), from, bytes, offset);
  const auto number = static_cast<uint32_t>(offset / bytes + 1);
  const uint64_t sum = PageSum(page, size, number);
  state.page.assign(page, page + size);
  StoreSum(number == 1 && state.sums == PageSums::kSome ? ~sum : sum, state.page.data(), size);
  return MethodsBelow(file)->xWrite(Below(file), state.page.data(), bytes, offset);
}

int Truncate(sqlite3_file* file, sqlite3_int64 size) { return MethodsBelow(file)->xTruncate(Below(file), size); }
int Sync(sqlite3_file* file, int flags) { return MethodsBelow(file)->xSync(Below(file), flags); }
int FileSize(sqlite3_file* file, sqlite3_int64* size) { return MethodsBelow(file)->xFileSize(Below(file), size); }
int Lock(sqlite3_file* file, int level) { return MethodsBelow(file)->xLock(Below(file), level); }
int Unlock(sqlite3_file* file, int level) { return MethodsBelow(file)->xUnlock(Below(file), level); }
int CheckReservedLock(sqlite3_file* file, int* is_held) {
  return MethodsBelow(file)->xCheckReservedLock(Below(file), is_held);
}

int FileControl(sqlite3_file* file, int opcode, void* argument) {
  if (opcode == kStateOpcode) {
    *static_cast<State**>(argument) = Of(file)->state;
    return SQLITE_OK;
  }
  return MethodsBelow(file)->xFileControl(Below(file), opcode, argument);
}

int SectorSize(sqlite3_file* file) { return MethodsBelow(file)->xSectorSize(Below(file)); }
int DeviceCharacteristics(sqlite3_file* file) {
  return MethodsBelow(file)->xDeviceCharacteristics(Below(file)) & ~kSubpageRead;
}
int ShmMap(sqlite3_file* file, int region, int bytes, int extend, void volatile** at) {
  return MethodsBelow(file)->xShmMap(Below(file), region, bytes, extend, at);
}
int ShmLock(sqlite3_file* file, int offset, int n, int flags) {
  return MethodsBelow(file)->xShmLock(Below(file), offset, n, flags);
}
void ShmBarrier(sqlite3_file* file) { MethodsBelow(file)->xShmBarrier(Below(file)); }
int ShmUnmap(sqlite3_file* file, int remove) { return MethodsBelow(file)->xShmUnmap(Below(file), remove); }

// Mapped pages would pass unseen: there are none, and SQLite reads them.
int Fetch(sqlite3_file*, sqlite3_int64, int, void** at) {
  *at = nullptr;
  return SQLITE_OK;
}
int Unfetch(sqlite3_file*, sqlite3_int64, void*) { return SQLITE_OK; }

constexpr sqlite3_io_methods Methods(int version) {
  return {version,
          Close,
          Read,
          Write,
          Truncate,
          Sync,
          FileSize,
          Lock,
          Unlock,
          CheckReservedLock,
          FileControl,
          SectorSize,
          DeviceCharacteristics,
          ShmMap,
          ShmLock,
          ShmBarrier,
          ShmUnmap,
          Fetch,
          Unfetch};
}
constexpr sqlite3_io_methods kWithoutLog = Methods(1);
constexpr sqlite3_io_methods kMethods = Methods(3);

int Open(sqlite3_vfs* vfs, const char* name, sqlite3_file* file, int flags, int* out_flags) {
  if ((flags & SQLITE_OPEN_MAIN_DB) == 0) return VfsBelow(vfs)->xOpen(VfsBelow(vfs), name, file, flags, out_flags);
  const int code = VfsBelow(vfs)->xOpen(VfsBelow(vfs), name, Below(file), flags, out_flags);
  // With methods it is closed, whether it was opened or not.
  file->pMethods = MethodsBelow(file) == nullptr       ? nullptr
                   : MethodsBelow(file)->iVersion >= 2 ? &kMethods
                                                       : &kWithoutLog;
  if (file->pMethods == nullptr) return code;
  Of(file)->state = new State{.below = Below(file)};
  if (code == SQLITE_OK) Of(file)->state->sums = SumsOf(file);
  return code;
}

int Delete(sqlite3_vfs* vfs, const char* name, int sync) { return VfsBelow(vfs)->xDelete(VfsBelow(vfs), name, sync); }
int Access(sqlite3_vfs* vfs, const char* name, int flags, int* result) {
  return VfsBelow(vfs)->xAccess(VfsBelow(vfs), name, flags, result);
}
int FullPathname(sqlite3_vfs* vfs, const char* name, int bytes, char* path) {
  return VfsBelow(vfs)->xFullPathname(VfsBelow(vfs), name, bytes, path);
}
void* DlOpen(sqlite3_vfs* vfs, const char* path) { return VfsBelow(vfs)->xDlOpen(VfsBelow(vfs), path); }
void DlError(sqlite3_vfs* vfs, int bytes, char* message) { VfsBelow(vfs)->xDlError(VfsBelow(vfs), bytes, message); }
using Symbol = void (*)();
Symbol DlSym(sqlite3_vfs* vfs, void* library, const char* symbol) {
  return VfsBelow(vfs)->xDlSym(VfsBelow(vfs), library, symbol);
}
void DlClose(sqlite3_vfs* vfs, void* library) { VfsBelow(vfs)->xDlClose(VfsBelow(vfs), library); }
int Randomness(sqlite3_vfs* vfs, int bytes, char* to) { return VfsBelow(vfs)->xRandomness(VfsBelow(vfs), bytes, to); }
int Sleep(sqlite3_vfs* vfs, int microseconds) { return VfsBelow(vfs)->xSleep(VfsBelow(vfs), microseconds); }
int CurrentTime(sqlite3_vfs* vfs, double* days) { return VfsBelow(vfs)->xCurrentTime(VfsBelow(vfs), days); }
int GetLastError(sqlite3_vfs* vfs, int bytes, char* message) {
  return VfsBelow(vfs)->xGetLastError(VfsBelow(vfs), bytes, message);
}
int CurrentTimeInt64(sqlite3_vfs* vfs, sqlite3_int64* milliseconds) {
  return VfsBelow(vfs)->xCurrentTimeInt64(VfsBelow(vfs), milliseconds);
}

bool Register() {
  sqlite3_vfs* below = sqlite3_vfs_find(nullptr);
  if (below == nullptr) return false;
  // For ever, as SQLite keeps it.
  auto* vfs = new sqlite3_vfs{};
  vfs->iVersion = std::min(below->iVersion, 2);
  vfs->szOsFile = static_cast<int>(sizeof(File)) + below->szOsFile;
  vfs->mxPathname = below->mxPathname;
  vfs->zName = kName;
  vfs->pAppData = below;
  vfs->xOpen = Open;
  vfs->xDelete = Delete;
  vfs->xAccess = Access;
  vfs->xFullPathname = FullPathname;
  vfs->xDlOpen = DlOpen;
  vfs->xDlError = DlError;
  vfs->xDlSym = DlSym;
  vfs->xDlClose = DlClose;
  vfs->xRandomness = Randomness;
  vfs->xSleep = Sleep;
  vfs->xCurrentTime = CurrentTime;
  vfs->xGetLastError = GetLastError;
  vfs->xCurrentTimeInt64 = CurrentTimeInt64;
  return sqlite3_vfs_register(vfs, 0) == SQLITE_OK;
}

// Null where the connection has no such file.
State* StateOf(sqlite3* db) {
  State* state = nullptr;
  return sqlite3_file_control(db, "main", kStateOpcode, static_cast<void*>(&state)) == SQLITE_OK ? state : nullptr;
}

}  // namespace

const char* ChecksumVfs() {
  static const bool registered = Register();
  return registered ? kName : nullptr;
}

std::optional<std::string> DamageOf(const unsigned char* page, size_t size, uint32_t number, PageSums sums) {
  const uint64_t stored = StoredSum(page, size);
  if (sums == PageSums::kNone) return std::nullopt;
  if (stored == 0 && sums == PageSums::kSome) return std::nullopt;
  if (stored == 0 && IsZero(page, size)) return "is all zeros";
  const uint64_t sum = PageSum(page, size, number);
  if (stored == sum || (number == 1 && stored == ~sum)) return std::nullopt;
  return absl::StrFormat("has checksum %016x, its bytes have %016x", stored, sum);
}

PageSums PageSumsOf(sqlite3* db) {
  const State* state = StateOf(db);
  return state == nullptr ? PageSums::kNone : state->sums;
}

void ExpectAllPageSums(sqlite3* db) {
  State* state = StateOf(db);
  if (state == nullptr) return;
  state->sums = PageSums::kAll;
  state->rewritten = true;
}

bool ReadAsItIs(sqlite3* db, int64_t offset, size_t bytes, unsigned char* to) {
  const State* state = StateOf(db);
  if (state == nullptr) return false;
  return state->below->pMethods->xRead(state->below, to, static_cast<int>(bytes), offset) == SQLITE_OK;
}

std::optional<DamagedPage> LastDamagedPage(sqlite3* db) {
  const State* state = StateOf(db);
  return state == nullptr ? std::nullopt : state->last_damaged;
}

void SetOnDamage(sqlite3* db, std::function<void(const DamagedPage&)> on_damage) {
  if (State* state = StateOf(db); state != nullptr) state->on_damage = std::move(on_damage);
}

}  // namespace ampd
