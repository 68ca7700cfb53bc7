# SPDX-License-Identifier: Apache-2.0
# The results of tests/gpu/run in at most 12,000 bytes of text, the most important first: the machine, each part's tests, what failed with the
# words of the failure, the figures, what was skipped, and as many of the notes as there is room for.
BEGIN { FS = "\t"; room = 11800 }
function short(s, n) { return length(s) > n ? substr(s, 1, n - 3) "..." : s }
# Prints a line where it leaves `reserve` bytes to what follows.
function say(s, reserve) {
	if (length(s) + 1 > room - reserve) { hidden++; return }
	room -= length(s) + 1
	print s
}
$2 == "note" && $1 == "machine" { machine[++machines] = substr($0, length($1) + length($2) + 3); next }
$2 == "note" { notes[++n] = $1 ": " substr($0, length($1) + length($2) + 3) }
!($1 in order) { order[$1] = ++parts; name[parts] = $1 }
$2 == "pass" { pass[$1]++ }
$2 == "fail" { fail[$1]++; failure[++failures] = $1 ": " short($3, 80) ": " $4 }
$2 == "skip" { skip[$1]++; skipping[++skips] = sprintf("skip  %s: %s: %s", $1, short($3, 60), short($4, 120)) }
$2 == "figure" {
	i = ($1, $3) in at ? at[$1, $3] : ++f
	at[$1, $3] = i
	of[i] = $1
	held[i] = $8
	bound[i] = $7
	line[i] = $4 $5 $6 == "" ? "" : sprintf("%-64s %10s %10s %8s  %s", short($3, 76), short($4, 24), short($5, 60), $6, $7 ($8 == "" ? "" : " " $8))
}
END {
	for (i = 1; i <= f; i++) {
		if (held[i] == "holds") pass[of[i]]++
		if (held[i] == "MISSED") fail[of[i]]++
	}
	for (i = 1; i <= parts; i++) { passed += pass[name[i]]; failed += fail[name[i]]; skipped += skip[name[i]] }
	total = sprintf("%d passed, %d failed, %d skipped", passed, failed, skipped)
	room -= length(total) + 80
	for (i = 1; i <= machines; i++) say(short(machine[i], 250), 9000)
	say(sprintf("\n%-16s %6s %6s %7s", "part", "passed", "failed", "skipped"), 0)
	for (i = 1; i <= parts; i++) say(sprintf("%-16s %6d %6d %7d", name[i], pass[name[i]], fail[name[i]], skip[name[i]]), 0)
	# Failures have as many words as leaves 4,000 bytes to the figures.
	most = failures ? int((room - 4000) / failures) - 8 : 0
	if (most > 900) most = 900
	if (most < 100) most = 100
	if (failures) say("", 0)
	for (i = 1; i <= failures; i++) say("FAIL  " short(failure[i], most), 3500)
	if (f) say(sprintf("\n%-64s %10s %10s %8s  %s", "figure", "dtrain", "peer", "ratio", "expected"), 0)
	for (i = 1; i <= f; i++) if (bound[i] != "" && line[i] != "") say(line[i], 0)
	for (i = 1; i <= f; i++) if (bound[i] == "" && line[i] != "") say(line[i], 0)
	if (skips) say("", 0)
	for (i = 1; i <= skips; i++) say(skipping[i], 0)
	if (n) say("", 0)
	for (i = 1; i <= n; i++) say(short(notes[i], 160), 0)
	if (hidden) printf "%d more lines are in results.md\n", hidden
	print total
}
