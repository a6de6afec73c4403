#!/bin/sh
# Runs a compilation by nvcc and keeps what ptxas says of the kernels' resources (-Xptxas -v) in OBJECT.resources, beside
# the object that -o names, instead of printing it.
#   keep_resources.sh COMPILER ARGUMENT...
object=
previous=
for argument; do
  [ "$previous" = -o ] && object=$argument
  previous=$argument
done
[ -n "$object" ] || exec "$@"
said=$(mktemp) || exit 1
trap 'rm -f "$said"' EXIT
"$@" 2>"$said"
code=$?
pattern='^ptxas info|^ +[0-9]+ bytes stack frame, [0-9]+ bytes spill'
grep -E "$pattern" "$said" >"$object.resources"
grep -vE "$pattern" "$said" >&2
exit $code
