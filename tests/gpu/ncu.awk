# SPDX-License-Identifier: Apache-2.0
# Reads "ncu --csv --page raw --print-units base" and prints kernels by their time, with shares of the peak bandwidth and of the cycles of the tensor cores.
# -v most=5
function field(name) { return name in column ? column[name] : 0 }
function number(i) { gsub(/,/, "", cell[i]); return cell[i] + 0 }
function split_line(  i) {
	n = split($0, cell, /","/)
	sub(/^"/, "", cell[1]); sub(/"\r?$/, "", cell[n])
}
!header && /"Kernel Name"/ && /"ID"/ {
	split_line()
	for (i = 1; i <= n; i++) {
		column[cell[i]] = i
		if (cell[i] ~ /tensor/) tensor = i
	}
	header = n
	next
}
header && /^"[0-9]+"/ {
	split_line()
	if (n != header) next
	name = cell[field("Kernel Name")]
	sub(/\(.*/, "", name)
	t = number(field("gpu__time_duration.sum"))
	if (!(name in time)) names[++kinds] = name
	count[name]++; time[name] += t; all += t
	bytes[name] += number(field("dram__bytes.sum"))
	dram[name] += t * number(field("dram__throughput.avg.pct_of_peak_sustained_elapsed"))
	sm[name] += t * number(field("sm__throughput.avg.pct_of_peak_sustained_elapsed"))
	if (tensor) tc[name] += t * number(tensor)
}
END {
	if (!kinds) { print "no kernels in ncu's output"; exit 1 }
	print "| kernel | launches | ms | share | TB/s | of peak bandwidth | of the SMs | of the tensor cores |"
	print "| --- | --- | --- | --- | --- | --- | --- | --- |"
	for (k = 1; k <= most && k <= kinds; k++) {
		top = ""
		for (i = 1; i <= kinds; i++)
			if (!(names[i] in done) && (top == "" || time[names[i]] > time[top])) top = names[i]
		done[top] = 1
		t = time[top]
		if (t <= 0) continue
		printf "| `%s` | %d | %.2f | %.1f %% | %.2f | %.0f %% | %.0f %% | %s |\n", substr(top, 1, 70), count[top], t / 1e6, 100 * t / all,
			bytes[top] / t / 1e3, dram[top] / t, sm[top] / t, (tensor ? sprintf("%.0f %%", tc[top] / t) : "?")
	}
	printf "| all %d launches | | %.2f | | | | | |\n", total_of(count), all / 1e6
}
function total_of(a,  i, n) { for (i in a) n += a[i]; return n }
