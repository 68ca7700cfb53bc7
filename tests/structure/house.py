#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the house: which room may know which, and that no two files know each other in a circle.

Usage: house.py SOURCE [BUILD]
       house.py --drawing

A file knows another that it includes, or (where BUILD holds the object files) whose symbol it uses. No two headers may include each other
in a circle, nor two .c files call each other in one. ROOMS below is the drawing: --drawing prints it as docs/architecture.md has it. Prints a
line for each fault; exit status 1 when there is one."""
import collections
import os
import re
import subprocess
import sys

# A room and the rooms that it may know. What is inside of a room may know all of the room.
ROOMS = {
    "base": "",
    "config": "base",
    "wire": "base config",
    "http": "base config wire",
    "cluster": "base config wire",
    "node": "base config wire node/gpu node/launch",
    "node/gpu": "base config wire",
    "node/launch": "base config wire node/gpu",
    "controller": "base config wire cluster",
    "dtraind": "base config wire http cluster controller node dtraind/routes",
    "dtraind/routes": "base config wire http cluster controller node dtraind",
    "options": "base config engine",
    "dtrain": "base config wire http options engine/tokenizer engine/chat engine/dataset engine/checkpoint engine/model engine/train",
    "worker": "base config wire http options engine",
    "engine/memory": "base",
    "engine/device": "base",
    "engine/device/cpu": "base engine/device",
    "engine/device/cuda": "base engine/device",
    "engine/comm": "base engine/device",
    "engine/comm/ucx": "base engine/device engine/comm",
    "engine/comm/nccl": "base engine/device engine/comm engine/device/cuda",
    "engine/tokenizer": "base",
    "engine/chat": "base engine/tokenizer",
    "engine/dataset": "base engine/tokenizer engine/chat",
    "engine/model": "base engine/memory engine/device",
    "engine/shard": "base engine/memory engine/device engine/comm engine/model",
    "engine/optim": "base engine/memory engine/device engine/comm engine/model engine/shard",
    "engine/checkpoint": "base engine/memory engine/device engine/comm engine/model engine/shard engine/optim",
    "engine/train": "base engine/memory engine/device engine/comm engine/model engine/shard engine/optim engine/dataset engine/checkpoint",
}
# Implementations of one header, of which the linker chooses one.
EITHER = [("engine/device/cpu", "engine/device/cuda"), ("engine/comm/ucx", "engine/comm/nccl")]
EXTENSIONS = (".c", ".h", ".cu", ".cuh")


def room_of(path):
    """The innermost room that the file lies in."""
    folder = os.path.dirname(path)
    while folder and folder not in ROOMS:
        folder = os.path.dirname(folder)
    return folder


def may_know(room, other):
    if room == other or other.startswith(room + "/"):
        return True
    return any(other == known or other.startswith(known + "/") for known in ROOMS[room].split())


def stem(path):
    return os.path.splitext(path)[0]


def read_sources(source):
    files = []
    for folder, _, names in os.walk(os.path.join(source, "src")):
        for name in names:
            if name.endswith(EXTENSIONS):
                files.append(os.path.relpath(os.path.join(folder, name), os.path.join(source, "src")))
    return sorted(files)


def read_includes(source, files):
    """(from, to, where) of each include of one of our files by another."""
    known = set(files)
    for path in files:
        with open(os.path.join(source, "src", path), encoding="utf-8") as text:
            for number, line in enumerate(text, 1):
                found = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
                if not found:
                    continue
                target = found.group(1)
                if target not in known:
                    target = os.path.normpath(os.path.join(os.path.dirname(path), target))
                if target in known:
                    yield path, target, "src/%s:%d includes %s" % (path, number, target)


def read_calls(source, build, files):
    """(from, to, what) of each symbol that an object uses and another one of ours defines. A file that is compiled several times (for
    several processors, for another engine) is one file; a symbol that several files define is no edge, for the linker chooses. An
    object that is older than its source is left over from an earlier build, and is not read."""
    sources = {stem(path): path for path in files if path.endswith((".c", ".cu"))}
    defined = collections.defaultdict(set)
    used = []
    for folder, _, names in os.walk(os.path.join(build, "src")):
        for name in names:
            if not name.endswith(".o"):
                continue
            base = re.sub(r"^.*-(?=[^-]*\.o$)", "", name)[: -len(".o")]
            path = sources.get(os.path.normpath(os.path.join(os.path.relpath(folder, os.path.join(build, "src")), base)))
            compiled = os.path.join(folder, name)
            if not path or os.path.getmtime(compiled) < os.path.getmtime(os.path.join(source, "src", path)):
                continue
            listing = subprocess.run(["nm", "-P", compiled], capture_output=True, text=True, check=True).stdout
            for line in listing.splitlines():
                symbol, kind = line.split()[:2]
                if kind in "TDBRVWC":
                    defined[symbol].add(path)
                elif kind == "U":
                    used.append((path, symbol))
    for path, symbol in used:
        if len(defined[symbol]) == 1:
            target = next(iter(defined[symbol]))
            if target != path:
                yield path, target, "src/%s uses %s of %s" % (path, symbol, target)


def find_circles(edges):
    """Tarjan's strongly connected components of more than one node."""
    index, low, on_stack, stack, circles = {}, {}, set(), [], []
    sys.setrecursionlimit(10000)

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        on_stack.add(node)
        for target in sorted(edges.get(node, ())):
            if target not in index:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in on_stack:
                low[node] = min(low[node], index[target])
        if low[node] == index[node]:
            circle = []
            while True:
                circle.append(stack.pop())
                on_stack.discard(circle[-1])
                if circle[-1] == node:
                    break
            if len(circle) > 1:
                circles.append(sorted(circle))

    for node in sorted(edges):
        if node not in index:
            visit(node)
    return circles


def draw():
    """A line for each room: the rooms that it may know."""
    for room, known in ROOMS.items():
        print(("%-20s %s" % (room, known or "-")).rstrip())


def main():
    if sys.argv[1:] == ["--drawing"]:
        draw()
        return 0
    if len(sys.argv) not in (2, 3):
        print("usage: house.py SOURCE [BUILD]", file=sys.stderr)
        return 2
    source = sys.argv[1]
    files = read_sources(source)
    faults = []
    edges = collections.defaultdict(set)
    why = {}
    either = {frozenset(pair) for pair in EITHER}
    links = list(read_includes(source, files))
    if len(sys.argv) == 3:
        links += read_calls(source, sys.argv[2], files)
    for path in files:
        if not room_of(path):
            faults.append("src/%s lies in no room" % path)
    seen = set()
    for path, target, what in links:
        room, other = room_of(path), room_of(target)
        if not room or not other or frozenset((room, other)) in either:
            continue
        if not may_know(room, other) and what not in seen:
            seen.add(what)
            faults.append("%s: %s may not know %s" % (what, room, other))
        edges[path].add(target)
        why.setdefault((path, target), what)
    for circle in find_circles(edges):
        faults.append("a circle of %d files: %s" % (len(circle), ", ".join(circle)))
        inside = set(circle)
        for path in circle:
            for target in sorted(edges[path] & inside):
                faults.append("    " + why[(path, target)])
    for fault in faults:
        print(fault)
    if not faults:
        print("%d files in %d rooms, %d edges: no circle, no arrow upward" % (len(files), len(ROOMS), sum(map(len, edges.values()))))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
