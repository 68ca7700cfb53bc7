# SPDX-License-Identifier: Apache-2.0
# Reads the output of train_bench profile=1 and prints the costliest operations, with their share of the step and of the peak rates of the device.
# -v peak_tf=… -v peak_tb=…: TF/s and TB/s, 0: unknown; -v most=5
BEGIN {
	FS = "\t"
	print "| operation | calls | ms | share of the step | TF/s | TB/s | of the roofline |"
	print "| --- | --- | --- | --- | --- | --- | --- |"
}
$1 == "profile" { name[++n] = $2; calls[n] = $3; ms[n] = $4; work[n] = $5; bytes[n] = $6 }
$1 == "profile total" { step = $3; all = $4 }
END {
	if (!(step > 0)) { print "no profile"; exit 1 }
	for (i = 1; i <= n && i <= most; i++) {
		s = ms[i] / 1e3
		if (s <= 0) continue
		tf = work[i] / s / 1e12; tb = bytes[i] / s / 1e12
		share = peak_tf > 0 ? tf / peak_tf : 0
		if (peak_tb > 0 && tb / peak_tb > share) share = tb / peak_tb
		printf "| %s | %d | %.2f | %.1f %% | %s | %.2f | %s |\n", name[i], calls[i], ms[i], 100 * ms[i] / step,
			(tf > 0 ? sprintf("%.0f", tf) : ""), tb, (share > 0 ? sprintf("%.0f %%", 100 * share) : "?")
	}
	printf "| all operations | | %.2f | %.1f %% | | | |\n", all, 100 * all / step
}
