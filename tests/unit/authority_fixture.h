/* SPDX-License-Identifier: Apache-2.0 */
/* An authority and its nodes in a directory of the test's own. */
#pragma once

#include <time.h>

#include "http/authority.h"
#include "http/certificates.h"
#include "text_files.h"

enum { DAY = 86400 };

static struct validity validity;

static inline void authority_setup(void)
{
	dir = unit_tmpdir();
	validity = (struct validity){time(NULL) - 3 * DAY, time(NULL) + 5 * DAY};
}

static inline void authority_teardown(void)
{
	file_remove_tree(dir, NULL);
	free(dir);
}

static inline void make_authority(void)
{
	struct error err = ERROR_INIT;

	ck_ok(authority_make(dir, validity, false, &err), &err);
}

static inline void make_node(const char *name)
{
	struct error err = ERROR_INIT;

	ck_ok(authority_make_node(dir, name, validity, false, &err), &err);
}

/* The certificate NAME.pem and the key NAME.key in dir, with the authority that is there. */
static inline int load(const char *name, struct identity **out, struct error *err)
{
	_cleanup_free_ char *crt = str_printf("%s/%s.pem", dir, name),
	                    *key = str_printf("%s/%s.key", dir, name), *ca = in_dir("ca.pem");

	return certificates_load(&(struct certificate_files){crt, key, ca}, out, err);
}
