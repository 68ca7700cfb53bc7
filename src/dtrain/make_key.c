/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dtrain-keygen: makes the key of a cluster, or an authority and the certificates of nodes, for `dtrain
 * keygen`, which has checked the options and executes it. Arguments: "make", or "replace" where what exists
 * may be replaced, and the file; or the directory of the authority, the days for which it is valid (0: the
 * default), and the name of a node, if its certificate is to be made. Messages and exit status are those of
 * dtrain.
 */
#include <stdio.h>
#include <stdlib.h>

#include "base/str.h"
#include "http/authority.h"
#include "http/identity.h"

enum { AUTHORITY_DAYS = 7300, NODE_DAYS = 825, DAY = 86400 };

static int make(char **argv, int argc, bool force, struct error *err)
{
	struct validity validity;
	int64_t days;
	int r;

	if (argc == 3)
		return identity_make(argv[2], force, err);
	r = str_to_int64(argv[3], 0, 1 << 20, &days);
	if (r < 0)
		return error_set(err, r, "%s: not a number of days", argv[3]);
	if (days == 0)
		days = argc == 4 ? AUTHORITY_DAYS : NODE_DAYS;
	/* Clocks of nodes differ. */
	validity.from = time(NULL) - DAY;
	validity.until = time(NULL) + days * DAY;
	return argc == 4 ? authority_make(argv[2], validity, force, err)
	                 : authority_make_node(argv[2], argv[4], validity, force, err);
}

int main(int argc, char **argv)
{
	struct error err = ERROR_INIT;

	if (argc < 3 || argc > 5 || !(str_eq(argv[1], "make") || str_eq(argv[1], "replace"))) {
		fprintf(stderr, "dtrain-keygen: \"dtrain keygen\" executes this program\n");
		return 2;
	}
	if (make(argv, argc, str_eq(argv[1], "replace"), &err) < 0) {
		fprintf(stderr, "dtrain: %s\n", err.message);
		return EXIT_FAILURE;
	}
	if (argc == 3)
		printf("%s: made; copy it to every node of the cluster\n", argv[2]);
	else if (argc == 4)
		printf("%s/ca.pem: made; copy it to every node of the cluster, and keep %s/ca.key secret\n",
		       argv[2], argv[2]);
	else
		printf("%s/nodes/%s.pem and %s/nodes/%s.key: made; copy both to %s\n", argv[2], argv[4],
		       argv[2], argv[4], argv[4]);
	if (fflush(stdout) != 0 || ferror(stdout)) {
		fprintf(stderr, "dtrain: cannot write the output\n");
		return EXIT_FAILURE;
	}
	return EXIT_SUCCESS;
}
