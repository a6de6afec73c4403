"""Locks: clang's thread safety analysis over every source that uses engine/core/mutex.h, and what it cannot see itself.

    tests/thread_safety.py BUILD_FOLDER

takes the compiler's flags from BUILD_FOLDER/compile_commands.json. Without clang the other checks are made, and the exit
code is 77.
"""

import concurrent.futures
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import unittest

SOURCE = os.path.realpath(os.path.join(os.path.dirname(__file__), ".."))
BUILD = os.path.join(SOURCE, "build/dev")
MUTEX = "engine/core/mutex.h"
CLANG = shutil.which("clang++")
SKIPPED = 77
WARNINGS = ["-Wno-everything", "-Wthread-safety", "-Werror=thread-safety"]

INCLUDE = re.compile(r'^#include "([^"]+)"', re.M)
UNKNOWN_LOCK = re.compile(r"std::(mutex|timed_mutex|recursive_mutex|shared_mutex|condition_variable\w*|lock_guard|unique_lock|"
                          r"scoped_lock|shared_lock)\b|\babsl::(Mutex|CondVar)\b")
MUTEX_MEMBER = re.compile(r"^\s*(?:mutable )?Mutex (\w+)( ABSL_\w+\([^)]*\))*;", re.M)
# A data member as this project writes one; functions end in `)`, `const`, `override` or `= 0` before the `;`.
MEMBER = re.compile(r"^\s+(?!\s|using |friend |static |typedef |return |enum |struct |class )"
                    r"(?P<type>[\w:<>,*&() \[\]{}]*[\w>*&]) (?P<name>(?!override\b)\w+)(?:\[\w*\])?(?: = [^;]*|\{.*\})?;(?: *//.*)?$")
# Needs no lock by its type: what never changes, what locks for itself, and threads, which their owner starts and joins.
SELF_EVIDENT = re.compile(r"^\s+(?:const (?![^=;]*\* (?!const )\w+)[^=;]+ \w|[\w:<>, ]+ ?[*&] ?const \w|"
                          r"(?:mutable )?std::atomic<|std::thread )")


def read(name):
    with open(os.path.join(SOURCE, name), errors="replace") as file:
        return file.read()


def sources():
    for top in ("engine", "server", "client"):
        for folder, _, files in os.walk(os.path.join(SOURCE, top)):
            for file in files:
                if file.endswith((".h", ".cc", ".cu", ".cuh")):
                    yield os.path.relpath(os.path.join(folder, file), SOURCE)


def uses_the_mutex(name):
    """Whether a source includes the header, or its own header does."""
    headers = INCLUDE.findall(read(name))
    own = name.rsplit(".", 1)[0] + ".h"
    return MUTEX in headers or own in headers and MUTEX in INCLUDE.findall(read(own))


def without_literals(text):
    """`text` with comments, strings and characters blanked, lines and columns kept."""
    literal = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|(?<!\w)\'(?:\\.|[^\'\\\n])+\'', re.S)
    return literal.sub(lambda found: re.sub(r"[^\n]", " ", found.group()), text)


def enclosing(code, position):
    """Where the innermost braces around `position` open and close."""
    depth, begin = 1, position
    while depth > 0 and begin > 0:
        begin -= 1
        depth += (code[begin] == "}") - (code[begin] == "{")
    depth, end = 1, position
    while depth > 0 and end < len(code):
        depth += (code[end] == "{") - (code[end] == "}")
        end += 1
    return begin + 1, end - 1


def own_lines(text, begin, end):
    """The lines of a class of its own: those within inner braces are left out."""
    code, depth, lines = without_literals(text), 0, []
    first = text.rfind("\n", 0, begin) + 1
    for line in text[first:end].split("\n"):
        blank = code[first:first + len(line)]
        if depth <= 1:
            lines.append(line)
        depth += blank.count("{") - blank.count("}")
        first += len(line) + 1
    return lines[1:]


def is_whole(words):
    """Whether these can be a type: those of `Histogram& Of(const Metric& metric, int x = 0);` before `x` are not."""
    return words.count("(") == words.count(")") and words.count("<") == words.count(">")


def unexplained(lines):
    """Members that are neither guarded, nor of a type that needs no lock, nor beneath a comment that says why."""
    found, explained = [], False
    for line in lines:
        member = MEMBER.match(line)
        if re.match(r"\s*//", line):
            explained = True
        elif not member or not is_whole(member["type"]) or re.search(r"GUARDED_BY|\b(Mutex|CondVar) ", line):
            explained = False
        elif SELF_EVIDENT.match(line):
            continue
        elif not explained and "//" not in line:
            found.append(member["name"])
    return found


def classes_with_a_mutex(name):
    """For every mutex that is a member: its name and the lines of its class."""
    text = read(name)
    code = without_literals(text)
    for found in MUTEX_MEMBER.finditer(code):
        begin, end = enclosing(code, found.start(1))
        yield found[1], own_lines(text, begin, end)


def commands():
    """By source: the compiler's arguments that say what it reads, without those about warnings and outputs."""
    with open(os.path.join(BUILD, "compile_commands.json")) as file:
        entries = json.load(file)
    result = {}
    for entry in entries:
        words = shlex.split(entry["command"])
        kept = [word for before, word in zip(words, words[1:])
                if before not in ("-o", "-c") and re.match(r"-(?!W|o$|c$|fopenmp|O|g)", word) or before == "-isystem"]
        result[os.path.relpath(os.path.join(entry["directory"], entry["file"]), SOURCE)] = kept, entry["directory"]
    return result


def analyse(name, arguments, folder):
    command = [CLANG, "-fsyntax-only", *arguments, *WARNINGS, os.path.join(SOURCE, name)]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    return f"{name}:\n{run.stderr}" if run.returncode != 0 or run.stderr else ""


class ThreadSafetyTest(unittest.TestCase):
    maxDiff = None

    @unittest.skipIf(CLANG is None, "clang++ is not installed")
    def test_clang_finds_nothing(self):
        known = commands()
        using = [name for name in sources() if name.endswith(".cc") and uses_the_mutex(name)]
        checked = [name for name in using if name in known]
        print("not in this build:", *(set(using) - set(checked)))
        self.assertGreater(len(checked), 30)
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            found = [text for text in pool.map(lambda name: analyse(name, *known[name]), checked) if text]
        self.assertEqual("\n".join(found), "")

    @unittest.skipIf(CLANG is None, "clang++ is not installed")
    def test_clang_knows_the_mutex(self):
        arguments, folder = commands()["server/store/store.cc"]
        for lock, refused in (("MutexLock lock(&m);", False), ("", True), ("MutexLock lock(&m); lock.Unlock();", True),
                              ("while (n == 0) c.Wait(&m);", True), ("MutexLock lock(&m); while (n == 0) c.Wait(&m);", False)):
            text = (f'#include "{MUTEX}"\nstruct C {{ ampd::Mutex m; ampd::CondVar c; int n ABSL_GUARDED_BY(m) = 0;\n'
                    f"void Add() {{ using ampd::MutexLock; {lock} ++n; }} }};\n")
            run = subprocess.run([CLANG, "-fsyntax-only", *arguments, "-I", SOURCE, *WARNINGS, "-x", "c++", "-"],
                                 cwd=folder, input=text, capture_output=True, text=True)
            self.assertEqual("requires holding" in run.stderr, refused, lock + run.stderr)
            self.assertEqual(run.returncode != 0, refused, lock + run.stderr)

    def test_there_are_no_other_locks(self):
        found = [f"{name}: {lock[0]}" for name in sources() if name != MUTEX
                 for lock in UNKNOWN_LOCK.finditer(without_literals(read(name)))]
        self.assertEqual(found, [])

    def test_nothing_is_exempt(self):
        found = [name for name in sources() if name != MUTEX and "NO_THREAD_SAFETY_ANALYSIS" in read(name)]
        self.assertEqual(found, [])

    def test_every_mutex_guards_something(self):
        mutexes = [(name, mutex, lines) for name in sources() if name != MUTEX for mutex, lines in classes_with_a_mutex(name)]
        self.assertGreater(len(mutexes), 30)
        found = [f"{name}: {mutex}" for name, mutex, lines in mutexes
                 if not re.search(rf"(GUARDED_BY|LOCKS_REQUIRED)\({mutex}\)", "\n".join(lines))]
        self.assertEqual(found, [])

    def test_members_without_a_lock_say_why(self):
        found = [f"{name}: {member}" for name in sources() if name != MUTEX
                 for _, lines in classes_with_a_mutex(name) for member in unexplained(lines)]
        self.assertEqual(found, [])


if __name__ == "__main__":
    if len(sys.argv) > 1 and os.path.isdir(sys.argv[1]):
        BUILD = os.path.realpath(sys.argv.pop(1))
    result = unittest.main(verbosity=2, exit=False).result
    sys.exit(1 if not result.wasSuccessful() else SKIPPED if result.skipped else 0)
