# cmake -D FOLDER=dir -D OUTPUT=file.cc -P embed_page.cmake: every file of the folder as a row of PageAssets(). index.html is "/".
include(${CMAKE_CURRENT_LIST_DIR}/../../cmake/hex_bytes.cmake)

set(TYPE_html "text/html; charset=utf-8")
set(TYPE_css "text/css; charset=utf-8")
set(TYPE_js "text/javascript; charset=utf-8")
set(TYPE_svg "image/svg+xml")

file(GLOB_RECURSE files RELATIVE ${FOLDER} ${FOLDER}/*)
list(SORT files)
set(arrays "")
set(rows "")
set(index 0)
foreach(file IN LISTS files)
  string(REGEX REPLACE ".*\\." "" extension ${file})
  if(NOT DEFINED TYPE_${extension})
    message(FATAL_ERROR "${FOLDER}/${file}: no content type is known for .${extension}; add it to server/page/embed_page.cmake")
  endif()
  string(REGEX REPLACE "^index\\.html$" "" path ${file})
  ampd_hex_bytes(${FOLDER}/${file} bytes)
  string(APPEND arrays "// ${file}\nconst unsigned char kFile${index}[] = {\n${bytes}0};\n")
  string(APPEND rows "    {\"/${path}\", \"${TYPE_${extension}}\",\n"
                     "     absl::string_view(reinterpret_cast<const char*>(kFile${index}), sizeof(kFile${index}) - 1)},\n")
  math(EXPR index "${index} + 1")
endforeach()

file(WRITE ${OUTPUT} "#include \"server/page/page_assets.h\"

#include \"absl/strings/string_view.h\"

namespace ampd {
namespace {
${arrays}
const Asset kAssets[] = {
${rows}};
}  // namespace

absl::Span<const Asset> PageAssets() { return kAssets; }

}  // namespace ampd
")
