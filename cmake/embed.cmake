# cmake -D INPUT=file -D OUTPUT=file.cc -D NAME=kName -P embed.cmake: a file's bytes as ampd::embedded::kName, an
# absl::string_view that a header declares.
include(${CMAKE_CURRENT_LIST_DIR}/hex_bytes.cmake)
ampd_hex_bytes(${INPUT} bytes)
file(WRITE ${OUTPUT} "#include \"absl/strings/string_view.h\"

namespace ampd::embedded {
namespace {
const unsigned char kBytes[] = {
${bytes}0};
}  // namespace
extern const absl::string_view ${NAME};
const absl::string_view ${NAME}(reinterpret_cast<const char*>(kBytes), sizeof(kBytes) - 1);
}  // namespace ampd::embedded
")
