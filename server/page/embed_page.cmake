# cmake -D FOLDER=dir -D OUTPUT=file.cc -P embed_page.cmake: every file of the folder as a row of PageAssets(). index.html is "/"; the
# others are at "/v/HASH/PATH", where the hash is of all of them, so that browsers may keep them for good. Their paths in index.html are
# changed to these, and the modules get a line each by which the browser asks for all of them at once, not import by import:
# those that main.js cannot do without first.
cmake_minimum_required(VERSION 3.18)
include(${CMAKE_CURRENT_LIST_DIR}/../../cmake/hex_bytes.cmake)

set(TYPE_html "text/html; charset=utf-8")
set(TYPE_css "text/css; charset=utf-8")
set(TYPE_js "text/javascript; charset=utf-8")
set(TYPE_svg "image/svg+xml")

file(GLOB_RECURSE files RELATIVE ${FOLDER} ${FOLDER}/*)
list(SORT files)
list(REMOVE_ITEM files index.html)

set(hashes "")
foreach(file IN LISTS files)
  file(SHA256 ${FOLDER}/${file} hash)
  string(APPEND hashes "${file} ${hash}\n")
endforeach()
string(SHA256 hash "${hashes}")
string(SUBSTRING ${hash} 0 16 hash)
set(prefix v/${hash}/)

# Modules that main.js imports, and those import, at the outset; others are imported when they are needed (`import()`).
set(first "")
set(more js/main.js)
while(more)
  list(POP_FRONT more module)
  list(APPEND first ${module})
  file(READ ${FOLDER}/${module} text)
  string(REGEX MATCHALL "from '\\./[a-z_]+\\.js'" imports "${text}")
  foreach(import IN LISTS imports)
    string(REGEX REPLACE "from '\\./(.*)'" "js/\\1" import "${import}")
    if(NOT import IN_LIST first AND NOT import IN_LIST more)
      list(APPEND more ${import})
    endif()
  endforeach()
endwhile()

file(READ ${FOLDER}/index.html index)
set(preloads "")
set(later "")
foreach(file IN LISTS files)
  string(FIND "${index}" "src=\"${file}\"" named)
  if(NOT file MATCHES "\\.js$" OR NOT named EQUAL -1)
    continue()
  elseif(file IN_LIST first)
    string(APPEND preloads "  <link rel=\"modulepreload\" href=\"${file}\">\n")
  else()
    string(APPEND later "  <link rel=\"modulepreload\" fetchpriority=\"low\" href=\"${file}\">\n")
  endif()
endforeach()
string(REGEX REPLACE "( *<script type=\"module\"[^\n]*\n)" "${preloads}\\1${later}" index "${index}")
# Absolute paths and fragments stay as they are.
string(REGEX REPLACE "(href|src)=\"([a-z])" "\\1=\"${prefix}\\2" index "${index}")
set(index_file ${OUTPUT}.index.html)
file(WRITE ${index_file} "${index}")

set(arrays "")
set(rows "")
set(number 0)
function(add_asset file path extension is_immutable)
  if(NOT DEFINED TYPE_${extension})
    message(FATAL_ERROR "${file}: no content type is known for .${extension}; add it to server/page/embed_page.cmake")
  endif()
  ampd_hex_bytes(${file} bytes)
  set(arrays "${arrays}// ${path}\nconst unsigned char kFile${number}[] = {\n${bytes}0};\n" PARENT_SCOPE)
  string(APPEND rows "    {\"${path}\", \"${TYPE_${extension}}\",\n"
                     "     absl::string_view(reinterpret_cast<const char*>(kFile${number}), sizeof(kFile${number}) - 1), "
                     "${is_immutable}},\n")
  set(rows "${rows}" PARENT_SCOPE)
  math(EXPR number "${number} + 1")
  set(number ${number} PARENT_SCOPE)
endfunction()
add_asset(${index_file} "/" html false)
foreach(file IN LISTS files)
  string(REGEX REPLACE ".*\\." "" extension ${file})
  add_asset(${FOLDER}/${file} "/${prefix}${file}" ${extension} true)
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
