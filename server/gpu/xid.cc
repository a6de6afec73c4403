#include "server/gpu/xid.h"

namespace ampd {
namespace {

struct Row {
  uint32_t xid;
  XidMeaning meaning;
};

constexpr v1::XidError::Class kApplication = v1::XidError::APPLICATION;
constexpr v1::XidError::Class kHardware = v1::XidError::HARDWARE;

constexpr Row kTable[] = {
    {13, {kApplication, false, "graphics engine exception"}},
    {31, {kApplication, false, "memory page fault"}},
    {43, {kApplication, false, "the GPU stopped processing a program"}},
    {45, {kApplication, false, "cleanup after an earlier error"}},
    {68, {kApplication, false, "video processor exception"}},
    {69, {kApplication, false, "graphics engine class error"}},
    {109, {kApplication, false, "context switch timeout"}},
    // Contained or corrected: what it hit is gone, the GPU itself goes on.
    {63, {kHardware, false, "a row of memory was remapped"}},
    {92, {kHardware, false, "high rate of corrected memory errors"}},
    {94, {kHardware, false, "contained memory error"}},
    {48, {kHardware, true, "uncorrectable memory error"}},
    {62, {kHardware, true, "the internal microcontroller halted"}},
    {64, {kHardware, true, "a row of memory could not be remapped"}},
    {74, {kHardware, true, "NVLink error"}},
    {79, {kHardware, true, "the GPU has fallen off the bus"}},
    {95, {kHardware, true, "uncontained memory error"}},
    {119, {kHardware, true, "the GPU's system processor does not answer"}},
    {120, {kHardware, true, "error of the GPU's system processor"}},
};

}  // namespace

XidMeaning MeaningOfXid(uint32_t xid) {
  for (const Row& row : kTable) {
    if (row.xid == xid) return row.meaning;
  }
  return {};
}

}  // namespace ampd
