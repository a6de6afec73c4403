#!/usr/bin/env bash
# Prints the bill of materials of an image as SPDX 2.3 JSON: the Debian packages of the system it runs on, ampd's programs with
# their checksums, and what these were built with.
#
#   sbom.sh NAME VERSION PROGRAMS [BUILT_WITH]
#
# NAME and VERSION are the image's, PROGRAMS the folder of ampd's programs. BUILT_WITH is a file of lines "RELATION TYPE NAME
# VERSION" about another system's packages: RELATION is "build" for what programs were compiled with and "runtime" for what was
# copied into the image, TYPE "deb" or "pypi". SOURCE_DATE_EPOCH, in seconds, takes the place of the time.
set -euo pipefail
if [[ $# -lt 3 || ! -d "$3" ]]; then
  echo "usage: $0 NAME VERSION PROGRAMS [BUILT_WITH]" >&2
  exit 2
fi
name=$1 version=$2 programs=$3 built_with=${4:-/dev/null}
created="$(date -u -d "@${SOURCE_DATE_EPOCH:-$(date +%s)}" +%Y-%m-%dT%H:%M:%SZ)"

# Lines of BUILT_WITH's form, those of this system with the architecture behind, and "program NAME SHA1 SHA256".
contents() {
  dpkg-query -W -f 'runtime deb ${Package} ${Version} ${Architecture} ${db:Status-Status}\n' |
    awk '$6 == "installed"' | LC_ALL=C sort
  cat "$built_with"
  local program
  for program in "$programs"/*; do
    [[ -f "$program" ]] || continue
    echo "program $(basename "$program") $(sha1sum <"$program" | cut -c 1-40) $(sha256sum <"$program" | cut -c 1-64)"
  done
}

found="$(contents)"
digest="$(sha256sum <<<"$found" | cut -c 1-32)"
awk -v name="$name" -v version="$version" -v created="$created" -v digest="$digest" '
  function id(text) { gsub(/[^A-Za-z0-9.-]/, "-", text); return "SPDXRef-" ++count "-" text }
  # As purl wants it in names and versions.
  function encoded(text) { gsub(/%/, "%25", text); gsub(/:/, "%3A", text); gsub(/\+/, "%2B", text); return text }
  function pair(key, value) { return "\"" key "\": \"" value "\"" }
  function relate(from, kind, to) {
    relations = relations (relations == "" ? "" : ",\n") "    {" pair("spdxElementId", from) ", " pair("relationshipType", kind) ", " \
                pair("relatedSpdxElement", to) "}"
  }
  function package(key, title, number, supplier, license, purl) {
    print separator "    {" pair("SPDXID", key) ", " pair("name", title) ", " pair("versionInfo", number) ","
    print "     " pair("supplier", supplier) ", " pair("downloadLocation", "NOASSERTION") ", \"filesAnalyzed\": false, " pair("licenseConcluded", "NOASSERTION") ","
    printf "     %s, %s", pair("licenseDeclared", license), pair("copyrightText", "NOASSERTION")
    if (purl != "") {
      print ","
      printf "     \"externalRefs\": [{%s, %s, %s}]", pair("referenceCategory", "PACKAGE-MANAGER"), pair("referenceType", "purl"),
             pair("referenceLocator", purl)
    }
    printf "}"
    separator = ",\n"
  }
  function purl_of(type, title, number, architecture) {
    if (type == "pypi") return "pkg:pypi/" encoded(title) "@" encoded(number)
    return "pkg:deb/debian/" encoded(title) "@" encoded(number) "?" (architecture == "" ? "" : "arch=" architecture "&") "distro=debian-12"
  }
  BEGIN {
    image = "SPDXRef-image"
    print "{\n  " pair("spdxVersion", "SPDX-2.3") ",\n  " pair("dataLicense", "CC0-1.0") ",\n  " pair("SPDXID", "SPDXRef-DOCUMENT") ","
    print "  " pair("name", name "-" version) ","
    print "  " pair("documentNamespace", "https://spdx.org/spdxdocs/" name "-" version "-" digest) ","
    print "  \"creationInfo\": {" pair("created", created) ", \"creators\": [\"Tool: ampd-sbom\"]},\n  \"packages\": ["
    package(image, name, version, "NOASSERTION", "Apache-2.0", "")
    relate("SPDXRef-DOCUMENT", "DESCRIBES", image)
  }
  $1 == "runtime" || $1 == "build" {
    key = id($3)
    package(key, $3, $4, $2 == "pypi" ? "NOASSERTION" : "Organization: Debian", "NOASSERTION", purl_of($2, $3, $4, $5))
    if ($1 == "build") relate(key, "BUILD_DEPENDENCY_OF", image)
    else relate(image, "CONTAINS", key)
  }
  $1 == "program" {
    key = id($2)
    files = files (files == "" ? "" : ",\n") "    {" pair("SPDXID", key) ", " pair("fileName", "./usr/local/bin/" $2) ", " \
            pair("licenseConcluded", "Apache-2.0") ", " pair("copyrightText", "NOASSERTION") ",\n     \"checksums\": [{" \
            pair("algorithm", "SHA1") ", " pair("checksumValue", $3) "}, {" pair("algorithm", "SHA256") ", " pair("checksumValue", $4) "}]}"
    relate(image, "CONTAINS", key)
  }
  END { printf "\n  ],\n  \"files\": [\n%s\n  ],\n  \"relationships\": [\n%s\n  ]\n}\n", files, relations }' <<<"$found"
