/* SPDX-License-Identifier: Apache-2.0 */
/* Each of the steps in which keys and certificates are made and read may fail, for want of memory or in
 * GnuTLS. */
#include <gnutls/abstract.h>
#include <gnutls/crypto.h>
#include <gnutls/gnutls.h>
#include <gnutls/x509.h>
#include <string.h>
#include <unistd.h>

#include "authority_fixture.h"
#include "failing_memory.h"

/* ---- GnuTLS ---- */

static long calls_left; /* until one fails; 0: none does */
static int failure;     /* with this */
static bool failed;

static bool fails_now(void)
{
	if (calls_left == 0 || --calls_left > 0)
		return false;
	failed = true;
	return true;
}

#define DEFINE_FAILING_GNUTLS(NAME, PARAMETERS, ...)                                                         \
	int __real_gnutls_##NAME PARAMETERS;                                                                 \
	int __wrap_gnutls_##NAME PARAMETERS;                                                                 \
	int __wrap_gnutls_##NAME PARAMETERS                                                                  \
	{                                                                                                    \
		return fails_now() ? failure : __real_gnutls_##NAME(__VA_ARGS__);                            \
	}

DEFINE_FAILING_GNUTLS(rnd, (gnutls_rnd_level_t level, void *data, size_t len), level, data, len)
DEFINE_FAILING_GNUTLS(hash_fast, (gnutls_digest_algorithm_t a, const void *p, size_t n, void *out), a, p, n,
                      out)
DEFINE_FAILING_GNUTLS(base64_encode2, (const gnutls_datum_t *data, gnutls_datum_t *out), data, out)
DEFINE_FAILING_GNUTLS(pubkey_init, (gnutls_pubkey_t * key), key)
DEFINE_FAILING_GNUTLS(pubkey_import_x509, (gnutls_pubkey_t key, gnutls_x509_crt_t crt, unsigned flags), key,
                      crt, flags)
DEFINE_FAILING_GNUTLS(pubkey_export2, (gnutls_pubkey_t key, gnutls_x509_crt_fmt_t f, gnutls_datum_t *out),
                      key, f, out)
DEFINE_FAILING_GNUTLS(x509_privkey_init, (gnutls_x509_privkey_t * key), key)
DEFINE_FAILING_GNUTLS(x509_privkey_generate,
                      (gnutls_x509_privkey_t key, gnutls_pk_algorithm_t a, unsigned bits, unsigned flags),
                      key, a, bits, flags)
DEFINE_FAILING_GNUTLS(x509_privkey_export2_pkcs8,
                      (gnutls_x509_privkey_t key, gnutls_x509_crt_fmt_t f, const char *password,
                       unsigned flags, gnutls_datum_t *out),
                      key, f, password, flags, out)
DEFINE_FAILING_GNUTLS(x509_privkey_import2,
                      (gnutls_x509_privkey_t key, const gnutls_datum_t *data, gnutls_x509_crt_fmt_t f,
                       const char *password, unsigned flags),
                      key, data, f, password, flags)
DEFINE_FAILING_GNUTLS(x509_privkey_get_key_id,
                      (gnutls_x509_privkey_t key, unsigned flags, unsigned char *out, size_t *len), key,
                      flags, out, len)
DEFINE_FAILING_GNUTLS(x509_crt_init, (gnutls_x509_crt_t * crt), crt)
DEFINE_FAILING_GNUTLS(x509_crt_import,
                      (gnutls_x509_crt_t crt, const gnutls_datum_t *data, gnutls_x509_crt_fmt_t f), crt, data,
                      f)
DEFINE_FAILING_GNUTLS(x509_crt_list_import,
                      (gnutls_x509_crt_t * list, unsigned *count, const gnutls_datum_t *data,
                       gnutls_x509_crt_fmt_t f, unsigned flags),
                      list, count, data, f, flags)
DEFINE_FAILING_GNUTLS(x509_crt_export2, (gnutls_x509_crt_t crt, gnutls_x509_crt_fmt_t f, gnutls_datum_t *out),
                      crt, f, out)
DEFINE_FAILING_GNUTLS(x509_crt_get_key_id,
                      (gnutls_x509_crt_t crt, unsigned flags, unsigned char *out, size_t *len), crt, flags,
                      out, len)
DEFINE_FAILING_GNUTLS(x509_crt_get_subject_key_id,
                      (gnutls_x509_crt_t crt, void *out, size_t *len, unsigned *critical), crt, out, len,
                      critical)
DEFINE_FAILING_GNUTLS(x509_crt_get_subject_alt_name,
                      (gnutls_x509_crt_t crt, unsigned i, void *out, size_t *len, unsigned *critical), crt, i,
                      out, len, critical)
DEFINE_FAILING_GNUTLS(x509_crt_set_version, (gnutls_x509_crt_t crt, unsigned version), crt, version)
DEFINE_FAILING_GNUTLS(x509_crt_set_serial, (gnutls_x509_crt_t crt, const void *serial, size_t len), crt,
                      serial, len)
DEFINE_FAILING_GNUTLS(x509_crt_set_activation_time, (gnutls_x509_crt_t crt, time_t at), crt, at)
DEFINE_FAILING_GNUTLS(x509_crt_set_expiration_time, (gnutls_x509_crt_t crt, time_t at), crt, at)
DEFINE_FAILING_GNUTLS(x509_crt_set_key, (gnutls_x509_crt_t crt, gnutls_x509_privkey_t key), crt, key)
DEFINE_FAILING_GNUTLS(x509_crt_set_subject_key_id, (gnutls_x509_crt_t crt, const void *id, size_t len), crt,
                      id, len)
DEFINE_FAILING_GNUTLS(x509_crt_set_authority_key_id, (gnutls_x509_crt_t crt, const void *id, size_t len), crt,
                      id, len)
DEFINE_FAILING_GNUTLS(x509_crt_set_dn_by_oid,
                      (gnutls_x509_crt_t crt, const char *oid, unsigned raw, const void *name, unsigned len),
                      crt, oid, raw, name, len)
DEFINE_FAILING_GNUTLS(x509_crt_set_basic_constraints, (gnutls_x509_crt_t crt, unsigned ca, int path_len), crt,
                      ca, path_len)
DEFINE_FAILING_GNUTLS(x509_crt_set_key_usage, (gnutls_x509_crt_t crt, unsigned usage), crt, usage)
DEFINE_FAILING_GNUTLS(x509_crt_set_key_purpose_oid,
                      (gnutls_x509_crt_t crt, const void *oid, unsigned critical), crt, oid, critical)
DEFINE_FAILING_GNUTLS(x509_crt_set_subject_alt_name,
                      (gnutls_x509_crt_t crt, gnutls_x509_subject_alt_name_t type, const void *data,
                       unsigned len, unsigned flags),
                      crt, type, data, len, flags)
DEFINE_FAILING_GNUTLS(x509_crt_sign2,
                      (gnutls_x509_crt_t crt, gnutls_x509_crt_t issuer, gnutls_x509_privkey_t key,
                       gnutls_digest_algorithm_t digest, unsigned flags),
                      crt, issuer, key, digest, flags)
DEFINE_FAILING_GNUTLS(x509_trust_list_init, (gnutls_x509_trust_list_t * list, unsigned size), list, size)
DEFINE_FAILING_GNUTLS(x509_trust_list_add_trust_mem,
                      (gnutls_x509_trust_list_t list, const gnutls_datum_t *cas, const gnutls_datum_t *crls,
                       gnutls_x509_crt_fmt_t f, unsigned flags, unsigned verify_flags),
                      list, cas, crls, f, flags, verify_flags)
DEFINE_FAILING_GNUTLS(x509_trust_list_verify_crt2,
                      (gnutls_x509_trust_list_t list, gnutls_x509_crt_t *chain, unsigned count,
                       gnutls_typed_vdata_st *data, unsigned elements, unsigned flags, unsigned *status,
                       gnutls_verify_output_function f),
                      list, chain, count, data, elements, flags, status, f)

/* ---- what is made and read ---- */

/* Made before: no allocation of the test's own is to fail. */
static struct {
	char *fresh, *node_crt, *node_key, *fresh_key, *cluster_key, *n1_crt, *n1_key, *ca;
} paths;

static int make_new_authority(void *context, struct error *err)
{
	return authority_make(paths.fresh, validity, true, err);
}

static int make_new_node(void *context, struct error *err)
{
	int r;

	unlink(paths.node_crt);
	unlink(paths.node_key);
	r = authority_make_node(dir, "n7", validity, false, err);
	ck_assert(r == 0 || access(paths.node_crt, F_OK) < 0);
	return r;
}

static int make_new_key(void *context, struct error *err)
{
	int r;

	unlink(paths.fresh_key);
	r = identity_make(paths.fresh_key, false, err);
	ck_assert((r == 0) == (access(paths.fresh_key, F_OK) == 0));
	return r;
}

static int load_key(void *context, struct error *err)
{
	struct identity *id = NULL;
	int r = identity_load(paths.cluster_key, &id, err);

	ck_assert((r == 0) == (id != NULL));
	identity_free(id);
	return r;
}

static int load_node(void *context, struct error *err)
{
	struct identity *id = NULL;
	int r =
	    certificates_load(&(struct certificate_files){paths.n1_crt, paths.n1_key, paths.ca}, &id, err);

	ck_assert((r == 0) == (id != NULL));
	identity_free(id);
	return r;
}

static int load_clients(void *context, struct error *err)
{
	const struct identity *own = context;
	struct identity *id = NULL;
	int r = certificates_load_clients(own, paths.ca, &id, err);

	ck_assert((r == 0) == (id != NULL));
	if (id) {
		ck_assert_str_eq(id->key, own->key);
		ck_assert_str_eq(id->certificate, own->certificate);
	}
	identity_free(id);
	return r;
}

static int read_names(void *context, struct error *err)
{
	const struct identity *id = context;
	const gnutls_datum_t der = {id->certificate_der, (unsigned)id->certificate_der_len};
	struct certificate_names names;
	int r = certificate_names_read(&der, &names, err);

	ck_assert((r == 0) == (names.count == 1));
	certificate_names_release(&names);
	return r;
}

static int verify_own(void *context, struct error *err)
{
	const struct identity *id = context;
	const gnutls_datum_t der = {id->certificate_der, (unsigned)id->certificate_der_len};
	time_t expires;

	return certificates_verify(id, &der, 1, true, &expires, err);
}

static int (*const works[])(void *context, struct error *err) = {
    make_new_authority, make_new_node, make_new_key, load_key,
    load_node,          load_clients,  read_names,   verify_own};

static struct identity *setup_all(void)
{
	struct identity *id = NULL;
	struct error err = ERROR_INIT;

	paths.fresh = in_dir("fresh");
	paths.node_crt = in_dir("nodes/n7.pem");
	paths.node_key = in_dir("nodes/n7.key");
	paths.fresh_key = in_dir("fresh.pem");
	paths.cluster_key = in_dir("cluster.pem");
	paths.n1_crt = in_dir("nodes/n1.pem");
	paths.n1_key = in_dir("nodes/n1.key");
	paths.ca = in_dir("ca.pem");
	make_authority();
	make_node("n1");
	ck_ok(identity_make(paths.cluster_key, false, &err), &err);
	ck_ok(load("nodes/n1", &id, &err), &err);
	return id;
}

static void end_all(struct identity *id)
{
	identity_free(id);
	free(paths.fresh);
	free(paths.node_crt);
	free(paths.node_key);
	free(paths.fresh_key);
	free(paths.cluster_key);
	free(paths.n1_crt);
	free(paths.n1_key);
	free(paths.ca);
}

START_TEST(memory_may_run_out)
{
	struct identity *id = setup_all();

	memory_runs_out(works[_i], id);
	end_all(id);
}
END_TEST

/* Each step says in the words of GnuTLS what has failed, and nothing is made. */
START_TEST(each_step_may_fail)
{
	static const struct {
		int failure, code;
	} cases[] = {{GNUTLS_E_INTERNAL_ERROR, -EINVAL}, {GNUTLS_E_MEMORY_ERROR, -ENOMEM}};
	struct identity *id = setup_all();

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		failure = cases[i].failure;
		for (long n = 1;; n++) {
			struct error err = ERROR_INIT;
			int r;

			mark_point();
			failed = false;
			calls_left = n;
			r = works[_i](id, &err);
			calls_left = 0;
			if (!failed) {
				ck_ok(r, &err);
				ck_assert_int_gt(n, 1);
				break;
			}
			ck_assert_msg(r == cases[i].code, "call %ld: %d: %s", n, r, err.message);
			ck_assert_msg(strstr(err.message, gnutls_strerror(failure)), "call %ld: %s", n,
			              err.message);
		}
	}
	end_all(id);
}
END_TEST

/* One whose names cannot be read is of no node. */
START_TEST(a_certificate_that_cannot_be_read_is_of_no_node)
{
	struct identity *id = setup_all();

	ck_assert(certificates_are_of(id, "n1"));
	failure = GNUTLS_E_INTERNAL_ERROR;
	for (long n = 1; n <= 3; n++) {
		calls_left = n;
		ck_assert(!certificates_are_of(id, "n1"));
	}
	calls_left = 0;
	end_all(id);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("authority failures");
	TCase *c = tcase_create("authority failures");

	tcase_set_timeout(c, 60);
	tcase_add_checked_fixture(c, authority_setup, authority_teardown);
	suite_add_tcase(s, c);
	tcase_add_loop_test(c, memory_may_run_out, 0, ARRAY_SIZE(works));
	tcase_add_loop_test(c, each_step_may_fail, 0, ARRAY_SIZE(works));
	tcase_add_test(c, a_certificate_that_cannot_be_read_is_of_no_node);
	return unit_run(s);
}
