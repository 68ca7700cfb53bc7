# SPDX-License-Identifier: Apache-2.0
# The results of tests/gpu/run in a few lines of text: the machine, each part's tests, what failed, and the figures that something is expected of.
BEGIN { FS = "\t" }
function short(s, n) { return length(s) > n ? substr(s, 1, n - 3) "..." : s }
$2 == "note" && $1 == "machine" { print short(substr($0, length($1) + length($2) + 3), 150) }
$1 != "machine" && !($1 in order) { order[$1] = ++parts; name[parts] = $1 }
$2 == "pass" { pass[$1]++ }
$2 == "fail" { fail[$1]++; words[++w] = sprintf("FAIL  %s: %s: %s", $1, short($3, 60), short($4, 160)) }
$2 == "skip" { skip[$1]++; words[++w] = sprintf("skip  %s: %s: %s", $1, short($3, 60), short($4, 100)) }
$2 == "figure" && $7 != "" {
	i = ($1, $3) in at ? at[$1, $3] : ++f
	at[$1, $3] = i
	of[i] = $1
	held[i] = $8
	line[i] = sprintf("%-64s %10s %10s %8s  %s", short($3, 64), $4, $5, $6, $7 ($8 == "" ? "" : " " $8))
}
END {
	for (i = 1; i <= f; i++) {
		if (held[i] == "holds") pass[of[i]]++
		if (held[i] == "MISSED") fail[of[i]]++
	}
	printf "\n%-16s %6s %6s %7s\n", "part", "passed", "failed", "skipped"
	for (i = 1; i <= parts; i++) {
		p = name[i]
		printf "%-16s %6d %6d %7d\n", p, pass[p], fail[p], skip[p]
		passed += pass[p]; failed += fail[p]; skipped += skip[p]
	}
	if (f) printf "\n%-64s %10s %10s %8s  %s\n", "figure", "dtrain", "peer", "ratio", "expected"
	for (i = 1; i <= f; i++) print line[i]
	if (w) print ""
	for (i = 1; i <= w; i++) print words[i]
	printf "%d passed, %d failed, %d skipped\n", passed, failed, skipped
}
