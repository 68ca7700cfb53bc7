/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dtrain-keygen: makes the key of a cluster for `dtrain keygen`, which has checked the options and executes
 * it. Arguments: "make", or "replace" where a key that exists may be replaced, and the file. Messages and
 * exit status are those of dtrain.
 */
#include <stdio.h>
#include <stdlib.h>

#include "base/str.h"
#include "http/identity.h"

int main(int argc, char **argv)
{
	struct error err = ERROR_INIT;

	if (argc != 3 || !(str_eq(argv[1], "make") || str_eq(argv[1], "replace"))) {
		fprintf(stderr, "dtrain-keygen: \"dtrain keygen\" executes this program\n");
		return 2;
	}
	if (identity_make(argv[2], str_eq(argv[1], "replace"), &err) < 0) {
		fprintf(stderr, "dtrain: %s\n", err.message);
		return EXIT_FAILURE;
	}
	printf("%s: made; copy it to every node of the cluster\n", argv[2]);
	if (fflush(stdout) != 0 || ferror(stdout)) {
		fprintf(stderr, "dtrain: cannot write the output\n");
		return EXIT_FAILURE;
	}
	return EXIT_SUCCESS;
}
