# SPDX-License-Identifier: Apache-2.0
"""reward_program.py [FILE]   gives completions their rewards, and appends what it was asked, with the rewards, to the file. The rewards depend on the tokens
alone: how many of them are even, a bonus for an end; the shortest prompts' completions all have the same."""
import json
import sys

record = open(sys.argv[1], "a") if len(sys.argv) > 1 else None
for line in sys.stdin:
    one = json.loads(line)
    ids = one["completion_ids"]
    reward = 0.5 if len(one["prompt_ids"]) < 6 else sum(i % 2 == 0 for i in ids) / len(ids) + 0.25 * one["finished"]
    if record:
        record.write(json.dumps({**one, "reward": reward}) + "\n")
        record.flush()
    print(reward, flush=True)
