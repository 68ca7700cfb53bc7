#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The lines of a worker about its data and its steps: each number with its unit.
. "$(dirname "$0")/worker.sh"

# says PATTERN: the log of the run has a whole line that matches.
says() { grep -qxE -- "$1" "$tmp/$name.log" || { cat "$tmp/$name.log"; fail "$name: no line \"$1\""; }; }
kib='[0-9.]+ (B|KiB)'
lines=$(grep -c '[^[:space:]]' "$src/LICENSE")

name=one
json one "$tmp/one" '"max_steps": 1' '' '"eval_fraction": 0.01'
run one || { cat "$tmp/one.log"; fail "one step"; }
says "tokenizing: 0 B of $kib read"
held=$(((lines + 99) / 100))
says "data: $((lines - held)) examples in [0-9]+ rows, [0-9]+ tokens"
says "1% held out for evaluation: $held of $lines examples"
says "model: .*; 1 step, [0-9]+ an epoch; .* of memory"
says "step 1/1 loss [0-9.]+ eval [0-9.]+ lr .* [0-9]+ tokens/s eta 0s"

name=count
json count "$tmp/count" '"max_steps": 2' '' '"eval_fraction": 7'
run count || { cat "$tmp/count.log"; fail "a count"; }
says "held out for evaluation: 7 of $lines examples"
says "model: .*; 2 steps, [0-9]+ an epoch; .* of memory"

# What the service is told. A run that was made shorter than it has already run goes on from the checkpoint that there is.
json longer "$tmp/shortened" '"max_steps": 4' '"save_steps": 4'
run longer || { cat "$tmp/longer.log"; fail "a run to shorten"; }
coproc service { exec python3 - "$tmp/service" "$tmp/posted" <<-'EOF'
	import http.server, socketserver, sys
	class Handler(http.server.BaseHTTPRequestHandler):
	    def do_POST(self):
	        body = self.rfile.read(int(self.headers["Content-Length"]))
	        with open(sys.argv[2], "ab") as f:
	            f.write(body + b"\n")
	        self.send_response(200)
	        self.send_header("Content-Length", "2")
	        self.end_headers()
	        self.wfile.write(b"{}")
	    def log_message(self, *unused):
	        pass
	with socketserver.ThreadingUnixStreamServer(sys.argv[1], Handler) as server:
	    print("ready", flush=True)
	    server.serve_forever()
EOF
}
# shellcheck disable=SC2154 # set by coproc
pids="$pids $service_PID"
read -r line <&"${service[0]}" && [ "$line" = ready ] || fail "no service"
json shorter "$tmp/shortened" '"max_steps": 2' '"save_steps": 4'
env -i PATH="$PATH" OMP_NUM_THREADS=1 DTRAIN_ATTEMPT=1 DTRAIN_RUN_ID=7 DTRAIN_SOCKET="$tmp/service" DTRAIN_CONFIG="$tmp/shorter.json" "$worker" >"$tmp/shorter.log" 2>&1 ||
	{ cat "$tmp/shorter.log"; fail "a shorter run"; }
grep -q "^warning: the checkpoint is of step 4, the run has 2" "$tmp/shorter.log" || { cat "$tmp/shorter.log"; fail "the run was not made shorter"; }
[ "$(grep -o '"checkpoint":[0-9]*' "$tmp/posted" | sort -u)" = '"checkpoint":4' ] || { cat "$tmp/posted"; fail "the service was told of another checkpoint"; }
kill "$service_PID"
wait "$service_PID" 2>/dev/null || true
echo "a worker says what it does, with units"
