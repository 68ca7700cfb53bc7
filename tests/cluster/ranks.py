#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ranks as the kernel has them, for test_faults: no service is asked. It runs in the process namespace around the nodes' own.

ranks.py list RUN           a line "RANK NODE PID" for each process of the run that is a child of its dtrain-launch
ranks.py launchers RUN      a line "NODE PID" for each dtrain-launch of the run
ranks.py end PID PID...     kills the first process with SIGKILL, and prints the milliseconds until the last of all has ended
ranks.py watch FILE UID     until it is ended itself: writes a line for each slot that processes of two attempts have at the same time,
                            and for each run of which two attempts run at the same time
"""
import os, re, select, signal, sys, time

def read(path):
    try:
        with open(path, "rb") as f: return f.read()
    except OSError:
        return b""

def stat(pid):
    """(state, parent, start time), or nothing"""
    fields = read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return (fields[0].decode(), int(fields[1]), fields[19]) if len(fields) > 19 else None

def environment(pid):
    return dict(x.split("=", 1) for x in read(f"/proc/{pid}/environ").decode(errors="replace").split("\0") if "=" in x)

def processes(uid=None):
    for name in os.listdir("/proc"):
        if not name.isdigit(): continue
        try:
            if uid is not None and os.stat(f"/proc/{name}").st_uid != uid: continue
        except OSError:
            continue
        yield int(name)

def launchers(run):
    for pid in processes():
        command = read(f"/proc/{pid}/cmdline").decode(errors="replace")
        if "dtrain-launch" in command.split("\0")[0] and re.search(rf"/{run}\.\d+(\0|/|$)", command):
            yield pid

def ranks(run):
    parents = set(launchers(run))
    for pid in processes():
        s = stat(pid)
        if s and s[1] in parents and s[0] != "Z":
            e = environment(pid)
            if e.get("DTRAIN_RUN_ID") == run: yield e["RANK"], e["DTRAIN_NODE"], pid

def holders(uid):
    """(node, slot) -> {(run, attempt): (pid, start time)}; those that a signal has stopped do nothing, and do not count"""
    held = {}
    for pid in processes(uid):
        s = stat(pid)
        if not s or s[0] in "ZXT": continue
        e = environment(pid)
        if "DTRAIN_SLOTS" not in e: continue
        for slot in e["DTRAIN_SLOTS"].split(","):
            held.setdefault((e["DTRAIN_NODE"], slot), {})[e["DTRAIN_RUN_ID"], e["DTRAIN_ATTEMPT"]] = pid, s[2]
    return held

def conflicts(held):
    attempts = {}
    for (node, slot), owners in held.items():
        if len(owners) > 1: yield f"slot {slot} of {node} has owners " + " ".join(".".join(o) for o in sorted(owners)), owners
        for (run, attempt), process in owners.items(): attempts.setdefault(run, {})[run, attempt] = process
    for run, found in attempts.items():
        if len(found) > 1: yield f"run {run} has attempts " + " ".join(a for _, a in sorted(found)), found

def watch(path, uid):
    with open(path, "a", buffering=1) as out:
        while True:
            for what, owners in conflicts(holders(uid)):
                # They are seen one after the other: it is one only if all are still there.
                now = [(pid, stat(pid)) for pid, _ in owners.values()]
                if all(s and s[0] not in "ZXT" and s[2] == was[1] for (_, s), was in zip(now, owners.values())):
                    print(f"{time.time():.3f} {what}", file=out)
            time.sleep(0.2)

def open_pid(pid):
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError: # it has ended since it was listed
        return None

def end(pids):
    poll = select.poll()
    # The first is the one to kill, and has to be there.
    descriptors = [os.pidfd_open(pids[0])] + [d for d in map(open_pid, pids[1:]) if d is not None]
    for d in descriptors: poll.register(d, select.POLLIN)
    began = time.monotonic()
    signal.pidfd_send_signal(descriptors[0], signal.SIGKILL)
    while descriptors:
        ready = poll.poll(120000)
        if not ready: sys.exit("a rank is left after 120 s")
        for d, _ in ready:
            poll.unregister(d)
            descriptors.remove(d)
    print(f"{(time.monotonic() - began) * 1000:.0f}")

verb = sys.argv[1]
if verb == "list":
    for r in sorted(ranks(sys.argv[2])): print(*r)
elif verb == "launchers":
    for pid in launchers(sys.argv[2]):
        node = re.search(r"[^\0]*", read(f"/proc/{pid}/root/etc/hostname").decode()).group().strip()
        print(node, pid)
elif verb == "end":
    end([int(p) for p in sys.argv[2:]])
elif verb == "watch":
    watch(sys.argv[2], int(sys.argv[3]))
