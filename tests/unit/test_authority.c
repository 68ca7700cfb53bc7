/* SPDX-License-Identifier: Apache-2.0 */
/* What keys and certificates contain, of the cluster's key, of an authority and of a node, and which of them
 * are accepted. */
#include <arpa/inet.h>
#include <gnutls/abstract.h>
#include <gnutls/crypto.h>
#include <gnutls/gnutls.h>
#include <gnutls/x509.h>
#include <string.h>
#include <sys/stat.h>

#include "authority_fixture.h"
#include "base/str.h"

/* ---- files ---- */

static bool exists(const char *name)
{
	_cleanup_free_ char *path = in_dir(name);

	return file_exists(path);
}

static mode_t mode_of(const char *name)
{
	_cleanup_free_ char *path = in_dir(name);
	struct stat st;

	ck_assert_int_eq(stat(path, &st), 0);
	return st.st_mode & 07777;
}

static gnutls_datum_t datum_of(const char *text)
{
	return (gnutls_datum_t){(unsigned char *)text, (unsigned)strlen(text)};
}

static gnutls_x509_crt_t read_certificate(const char *name)
{
	_cleanup_free_ char *text = read_text(name);
	const gnutls_datum_t pem = datum_of(text);
	gnutls_x509_crt_t crt;

	ck_assert_int_eq(gnutls_x509_crt_init(&crt), 0);
	ck_assert_int_eq(gnutls_x509_crt_import(crt, &pem, GNUTLS_X509_FMT_PEM), 0);
	return crt;
}

/* ---- what certificates contain ---- */

/* What all of them have. */
static void ck_certificate(gnutls_x509_crt_t crt)
{
	unsigned char serial[64];
	size_t len = sizeof(serial);
	unsigned bits;

	ck_assert_int_eq(gnutls_x509_crt_get_version(crt), 3);
	ck_assert_int_eq(gnutls_x509_crt_get_serial(crt, serial, &len), 0);
	ck_assert_uint_eq(len, 16); /* a first byte of 0 would not count, and one above 0x7f is negative */
	ck_assert_uint_lt(serial[0], 0x80);
	ck_assert_int_eq(gnutls_x509_crt_get_pk_algorithm(crt, &bits), GNUTLS_PK_ECDSA);
	ck_assert_uint_eq(bits, 256);
	ck_assert_int_eq(gnutls_x509_crt_get_signature_algorithm(crt), GNUTLS_SIGN_ECDSA_SHA256);
}

static void ck_constraints(gnutls_x509_crt_t crt, unsigned want_ca, int want_path_len, unsigned want_usage)
{
	unsigned critical = 0, ca = 7, usage = 0;
	int path_len = 7;

	ck_assert_int_ge(gnutls_x509_crt_get_basic_constraints(crt, &critical, &ca, &path_len), 0);
	ck_assert_uint_eq(critical, 1);
	ck_assert_uint_eq(ca, want_ca);
	ck_assert_int_eq(path_len, want_path_len);
	ck_assert_int_eq(gnutls_x509_crt_get_key_usage(crt, &usage, NULL), 0);
	ck_assert_uint_eq(usage, want_usage);
}

static void ck_validity(gnutls_x509_crt_t crt)
{
	ck_assert_int_eq(gnutls_x509_crt_get_activation_time(crt), validity.from);
	ck_assert_int_eq(gnutls_x509_crt_get_expiration_time(crt), validity.until);
}

/* "": it has none. */
static void get_name(gnutls_x509_crt_t crt, char name[128])
{
	size_t len = 128;

	if (gnutls_x509_crt_get_dn_by_oid(crt, GNUTLS_OID_X520_COMMON_NAME, 0, 0, name, &len) < 0)
		name[0] = '\0';
}

/* The key of the certificate by its own account is the one that it has. */
static void ck_key_id(gnutls_x509_crt_t crt, unsigned char said[64], size_t *len)
{
	unsigned char id[64];
	size_t id_len = sizeof(id);

	*len = 64;
	ck_assert_int_eq(gnutls_x509_crt_get_subject_key_id(crt, said, len, NULL), 0);
	ck_assert_int_eq(gnutls_x509_crt_get_key_id(crt, 0, id, &id_len), 0);
	ck_assert_uint_eq(*len, 20);
	ck_assert_int_eq(memcmp(said, id, 20), 0);
}

START_TEST(an_authority_signs_and_nothing_else)
{
	_cleanup_free_ char *other = in_dir("other");
	unsigned char serial[2][64], id[64];
	size_t len[2] = {64, 64}, id_len;
	struct error err = ERROR_INIT;
	gnutls_x509_crt_t crt, second;
	char name[2][128];

	make_authority();
	ck_ok(authority_make(other, validity, false, &err), &err);
	ck_assert_uint_eq(mode_of("ca.key"), 0600);
	ck_assert_uint_eq(mode_of("ca.pem"), 0644);
	ck_assert_uint_eq(mode_of("other"), 0700);
	crt = read_certificate("ca.pem");
	second = read_certificate("other/ca.pem");
	ck_certificate(crt);
	ck_validity(crt);
	ck_constraints(crt, 1, 0, GNUTLS_KEY_KEY_CERT_SIGN);
	ck_key_id(crt, id, &id_len);
	ck_assert_uint_eq(gnutls_x509_crt_check_issuer(crt, crt), 1);
	ck_assert_uint_eq(gnutls_x509_crt_check_issuer(crt, second), 0);
	/* No two have one name, or one number. */
	get_name(crt, name[0]);
	get_name(second, name[1]);
	ck_assert(str_starts(name[0], "dtrain cluster authority "));
	ck_assert_uint_eq(strlen(name[0]), strlen("dtrain cluster authority 01234567"));
	ck_assert_str_ne(name[0], name[1]);
	ck_assert_int_eq(gnutls_x509_crt_get_serial(crt, serial[0], &len[0]), 0);
	ck_assert_int_eq(gnutls_x509_crt_get_serial(second, serial[1], &len[1]), 0);
	ck_assert_int_ne(memcmp(serial[0], serial[1], 16), 0);
	gnutls_x509_crt_deinit(crt);
	gnutls_x509_crt_deinit(second);
}
END_TEST

#define LONGEST "n234567890123456789012345678901234567890123456789012345678901234"

static const struct {
	const char *name;
	int type;
	const char *common; /* its common name has at most 64 characters */
} nodes[] = {
    {"n1.example.org", GNUTLS_SAN_DNSNAME, "n1.example.org"},
    {"10.1.2.3", GNUTLS_SAN_IPADDRESS, "10.1.2.3"},
    {"fe80::7", GNUTLS_SAN_IPADDRESS, "fe80::7"},
    {LONGEST, GNUTLS_SAN_DNSNAME, LONGEST},
    {LONGEST "5", GNUTLS_SAN_DNSNAME, ""},
};

START_TEST(a_certificate_names_its_node)
{
	_cleanup_free_ char *crt_name = str_printf("nodes/%s.pem", nodes[_i].name),
	                    *key_name = str_printf("nodes/%s.key", nodes[_i].name);
	unsigned char san[256], of_authority[64], id[64];
	size_t len = sizeof(san), authority_len, id_len;
	char name[128], oid[64], text[INET6_ADDRSTRLEN] = "";
	gnutls_x509_crt_t ca, crt;

	make_authority();
	make_node(nodes[_i].name);
	ck_assert_uint_eq(mode_of("nodes"), 0700);
	ck_assert_uint_eq(mode_of(key_name), 0600);
	ck_assert_uint_eq(mode_of(crt_name), 0644);
	ca = read_certificate("ca.pem");
	crt = read_certificate(crt_name);
	ck_certificate(crt);
	ck_validity(crt);
	ck_constraints(crt, 0, -1, GNUTLS_KEY_DIGITAL_SIGNATURE);
	ck_assert_uint_eq(gnutls_x509_crt_check_issuer(crt, ca), 1);
	get_name(crt, name);
	ck_assert_str_eq(name, nodes[_i].common);
	/* One name, and two purposes. */
	ck_assert_int_eq(gnutls_x509_crt_get_subject_alt_name(crt, 0, san, &len, NULL), nodes[_i].type);
	if (nodes[_i].type == GNUTLS_SAN_IPADDRESS)
		ck_assert_ptr_nonnull(inet_ntop(len == 4 ? AF_INET : AF_INET6, san, text, sizeof(text)));
	else
		ck_assert_uint_eq(len, strlen(nodes[_i].name));
	ck_assert_int_eq(memcmp(*text ? text : (char *)san, nodes[_i].name, strlen(nodes[_i].name)), 0);
	len = sizeof(san);
	ck_assert_int_eq(gnutls_x509_crt_get_subject_alt_name(crt, 1, san, &len, NULL),
	                 GNUTLS_E_REQUESTED_DATA_NOT_AVAILABLE);
	for (unsigned i = 0; i < 3; i++) {
		len = sizeof(oid);
		ck_assert_int_eq(gnutls_x509_crt_get_key_purpose_oid(crt, i, oid, &len, NULL),
		                 i < 2 ? 0 : GNUTLS_E_REQUESTED_DATA_NOT_AVAILABLE);
		if (i < 2)
			ck_assert_str_eq(oid, i == 0 ? GNUTLS_KP_TLS_WWW_SERVER : GNUTLS_KP_TLS_WWW_CLIENT);
	}
	/* Whose key has signed it. */
	ck_key_id(crt, id, &id_len);
	ck_key_id(ca, of_authority, &authority_len);
	len = sizeof(san);
	ck_assert_int_eq(gnutls_x509_crt_get_authority_key_id(crt, san, &len, NULL), 0);
	ck_assert_uint_eq(len, authority_len);
	ck_assert_int_eq(memcmp(san, of_authority, len), 0);
	gnutls_x509_crt_deinit(ca);
	gnutls_x509_crt_deinit(crt);
}
END_TEST

/* Either of the two files, and neither of them is changed. */
START_TEST(no_half_is_replaced)
{
	static const char *const halves[] = {"nodes/n1.key", "nodes/n1.pem", "ca.key", "ca.pem"};

	make_authority();
	make_node("n1");
	for (size_t i = 0; i < ARRAY_SIZE(halves); i++) {
		_cleanup_free_ char *path = in_dir(halves[i]), *before = read_text(halves[i]), *after = NULL,
		                    *gone = in_dir("gone"), *words = str_printf("%s exists", path);
		const char *other = halves[i ^ 1];
		_cleanup_free_ char *other_path = in_dir(other);
		struct error err = ERROR_INIT;

		ck_assert_int_eq(rename(other_path, gone), 0);
		ck_assert_int_eq(i < 2 ? authority_make_node(dir, "n1", validity, false, &err)
		                       : authority_make(dir, validity, false, &err),
		                 -EEXIST);
		ck_assert_msg(str_starts(err.message, words), "%s", err.message);
		ck_assert(!exists(other));
		after = read_text(halves[i]);
		ck_assert_str_eq(before, after);
		ck_assert_int_eq(rename(gone, other_path), 0);
	}
}
END_TEST

/* ---- the cluster's key ---- */

/* As curl computes it of the certificate that it is shown. */
static char *pin_of(gnutls_x509_crt_t crt)
{
	gnutls_datum_t der, base64;
	unsigned char digest[32];
	gnutls_pubkey_t key;
	char *pin;

	ck_assert_int_eq(gnutls_pubkey_init(&key), 0);
	ck_assert_int_eq(gnutls_pubkey_import_x509(key, crt, 0), 0);
	ck_assert_int_eq(gnutls_pubkey_export2(key, GNUTLS_X509_FMT_DER, &der), 0);
	ck_assert_int_eq(gnutls_hash_fast(GNUTLS_DIG_SHA256, der.data, der.size, digest), 0);
	ck_assert_int_eq(gnutls_base64_encode2(&(gnutls_datum_t){digest, sizeof(digest)}, &base64), 0);
	pin = str_printf("sha256//%.*s", (int)base64.size, (char *)base64.data);
	gnutls_pubkey_deinit(key);
	gnutls_free(der.data);
	gnutls_free(base64.data);
	return pin;
}

START_TEST(the_clusters_key_has_a_certificate)
{
	_cleanup_free_ char *path = in_dir("cluster.pem"), *pin = NULL;
	_cleanup_(identity_freep) struct identity *id = NULL;
	gnutls_x509_crt_t crt;
	gnutls_datum_t der;
	struct error err = ERROR_INIT;
	const time_t now = time(NULL);
	unsigned char serial[2][64];
	size_t len[2] = {64, 64};
	char name[128];

	ck_ok(identity_make(path, false, &err), &err);
	ck_ok(identity_load(path, &id, &err), &err);
	ck_assert(identity_is_shared(id));
	ck_assert_ptr_null(id->trust);
	crt = read_certificate("cluster.pem");
	ck_certificate(crt);
	get_name(crt, name);
	ck_assert_str_eq(name, "dtrain cluster");
	ck_constraints(crt, 1, 0, GNUTLS_KEY_DIGITAL_SIGNATURE | GNUTLS_KEY_KEY_CERT_SIGN);
	ck_assert_uint_eq(gnutls_x509_crt_check_issuer(crt, crt), 1);
	/* Clocks differ; and it is replaced by hand. */
	ck_assert_int_le(gnutls_x509_crt_get_activation_time(crt), now - DAY + 60);
	ck_assert_int_ge(gnutls_x509_crt_get_activation_time(crt), now - DAY - 60);
	ck_assert_int_eq(gnutls_x509_crt_get_expiration_time(crt), GNUTLS_X509_NO_WELL_DEFINED_EXPIRATION);
	ck_assert_int_eq(gnutls_x509_crt_export2(crt, GNUTLS_X509_FMT_DER, &der), 0);
	ck_assert_uint_eq(der.size, id->certificate_der_len);
	ck_assert_int_eq(memcmp(der.data, id->certificate_der, der.size), 0);
	pin = pin_of(crt);
	ck_assert_str_eq(id->pin, pin);
	/* No two have one number. */
	ck_assert_int_eq(gnutls_x509_crt_get_serial(crt, serial[0], &len[0]), 0);
	ck_ok(identity_make(path, true, &err), &err);
	gnutls_x509_crt_deinit(crt);
	crt = read_certificate("cluster.pem");
	ck_assert_int_eq(gnutls_x509_crt_get_serial(crt, serial[1], &len[1]), 0);
	ck_assert_int_ne(memcmp(serial[0], serial[1], 15), 0);
	gnutls_free(der.data);
	gnutls_x509_crt_deinit(crt);
}
END_TEST

/* No other user may read it; a file that is there is not written to, nor one that a link points to. */
START_TEST(a_key_is_written_once)
{
	_cleanup_free_ char *path = in_dir("cluster.pem"), *nowhere = in_dir("none/cluster.pem"),
	                    *target = in_dir("target"), *text = NULL;
	struct error err = ERROR_INIT;

	for (int force = 0; force < 2; force++) {
		ck_assert_int_eq(identity_make(nowhere, force, &err), -ENOENT);
		ck_assert_ptr_nonnull(strstr(err.message, "cannot write"));
	}
	/* The file that it points to is not there yet. */
	ck_assert_int_eq(symlink(target, path), 0);
	ck_assert_int_lt(identity_make(path, false, &err), 0);
	ck_assert(!exists("target"));
	write_text("target", "old", 0600);
	ck_assert_int_eq(identity_make(path, false, &err), -EEXIST);
	ck_ok(identity_make(path, true, &err), &err);
	text = read_text("target");
	ck_assert_str_eq(text, "old");
	ck_assert_uint_eq(mode_of("cluster.pem"), 0600);
}
END_TEST

/* The first key and the first certificate count, in whichever order, and whatever stands around them. */
START_TEST(the_blocks_of_a_file_are_found)
{
	_cleanup_free_ char *path = in_dir("cluster.pem"), *old = NULL, *key = NULL, *crt = NULL;
	const char *parameters =
	    "-----BEGIN EC PARAMETERS-----\nBggqhkjOPQMBBw==\n-----END EC PARAMETERS-----\n";
	struct error err = ERROR_INIT;
	struct {
		char *text;
		const char *words; /* NULL: it is taken */
	} cases[11];

	ck_ok(identity_make(path, false, &err), &err);
	old = read_text("cluster.pem");
	crt = strdup(strstr(old, "-----BEGIN CERTIFICATE-----"));
	key = strndup(old, strlen(old) - strlen(crt));
	cases[0].text = str_printf("%s%s", crt, key);
	cases[1].text = str_printf("of the cluster\n%s\n%s%s# end", parameters, key, crt);
	cases[2].text = str_printf("%s%s%s%s", key, crt, parameters,
	                           "-----BEGIN CERTIFICATE-----\nx\n"
	                           "-----END CERTIFICATE-----\n");
	cases[3].text = strdup(key);
	cases[4].text = strdup(crt);
	cases[5].text = strdup("");
	cases[6].text = strdup("-----BEGIN PRIVATE KEY-----");
	cases[7].text = str_printf("%.*s", (int)strlen(old) - 10, old); /* without its last line */
	cases[8].text = str_printf("%s-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n", key);
	cases[9].text = str_printf("-----BEGIN PRIVATE KEY-----\nx\n-----END PRIVATE KEY-----\n%s", crt);
	cases[10].text = str_printf("%s-----BEGIN CERTIFICATE-----\n", key);
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct identity *id = NULL;
		const char *words = i < 3 ? NULL : i == 8 || i == 9 ? path : "needs a private key and a";
		int r;

		write_text("cluster.pem", cases[i].text, 0600);
		r = identity_load(path, &id, &err);
		ck_assert_msg(r == (words ? -EINVAL : 0), "%zu: %d: %s", i, r, err.message);
		if (words) {
			ck_assert_msg(strstr(err.message, words), "%zu: %s", i, err.message);
			ck_assert_ptr_null(id);
		} else {
			ck_assert_str_eq(id->key, key);
			ck_assert_str_eq(id->certificate, crt);
		}
		identity_free(id);
		free(cases[i].text);
	}
}
END_TEST

START_TEST(identities_are_equal_where_their_files_are)
{
	struct identity a = {.certificate = "c", .key = "k"}, b = a;

	ck_assert(identity_equal(&a, &b));
	b.trust = "t";
	ck_assert(!identity_equal(&a, &b));
	a.trust = "t";
	ck_assert(identity_equal(&a, &b));
	b.key = "l";
	ck_assert(!identity_equal(&a, &b));
	b.key = "k";
	b.certificate = "d";
	ck_assert(!identity_equal(&a, &b));
}
END_TEST

/* ---- what others show ---- */

/* What a certificate has besides its names; the last one has no data. */
static const struct other_name {
	int type;
	const char *data;
	unsigned len;
} * others;

/* A certificate of the authority in dir with so many names, for some of the two purposes. */
static gnutls_datum_t sign(int names, bool server, bool client, const char *save_as)
{
	_cleanup_free_ char *key_text = read_text("ca.key"), *node_key = NULL;
	gnutls_x509_crt_t ca = read_certificate("ca.pem"), crt;
	gnutls_x509_privkey_t ca_key, key;
	gnutls_datum_t pem = datum_of(key_text), der, out;

	ck_assert_int_eq(gnutls_x509_privkey_init(&ca_key), 0);
	ck_assert_int_eq(gnutls_x509_privkey_import2(ca_key, &pem, GNUTLS_X509_FMT_PEM, NULL, 0), 0);
	ck_assert_int_eq(gnutls_x509_privkey_init(&key), 0);
	ck_assert_int_eq(gnutls_x509_privkey_generate(key, GNUTLS_PK_ECDSA,
	                                              GNUTLS_CURVE_TO_BITS(GNUTLS_ECC_CURVE_SECP256R1), 0),
	                 0);
	ck_assert_int_eq(gnutls_x509_crt_init(&crt), 0);
	ck_assert_int_eq(gnutls_x509_crt_set_version(crt, 3), 0);
	ck_assert_int_eq(gnutls_x509_crt_set_serial(crt, "\x01", 1), 0);
	ck_assert_int_eq(gnutls_x509_crt_set_activation_time(crt, validity.from), 0);
	ck_assert_int_eq(gnutls_x509_crt_set_expiration_time(crt, validity.until), 0);
	ck_assert_int_eq(gnutls_x509_crt_set_key(crt, key), 0);
	for (int i = 0; i < names; i++) {
		char name[16];
		int len = snprintf(name, sizeof(name), "n%d", i);

		ck_assert_int_eq(gnutls_x509_crt_set_subject_alt_name(crt, GNUTLS_SAN_DNSNAME, name,
		                                                      (unsigned)len, GNUTLS_FSAN_APPEND),
		                 0);
	}
	for (const struct other_name *o = others; o && o->data; o++)
		ck_assert_int_eq(
		    gnutls_x509_crt_set_subject_alt_name(crt, o->type, o->data, o->len, GNUTLS_FSAN_APPEND),
		    0);
	if (server)
		ck_assert_int_eq(gnutls_x509_crt_set_key_purpose_oid(crt, GNUTLS_KP_TLS_WWW_SERVER, 0), 0);
	if (client)
		ck_assert_int_eq(gnutls_x509_crt_set_key_purpose_oid(crt, GNUTLS_KP_TLS_WWW_CLIENT, 0), 0);
	ck_assert_int_eq(gnutls_x509_crt_sign2(crt, ca, ca_key, GNUTLS_DIG_SHA256, 0), 0);
	if (save_as) {
		_cleanup_free_ char *crt_name = str_printf("%s.pem", save_as),
		                    *key_name = str_printf("%s.key", save_as), *text = NULL;

		ck_assert_int_eq(gnutls_x509_privkey_export2_pkcs8(key, GNUTLS_X509_FMT_PEM, NULL, 0, &out),
		                 0);
		write_text(key_name, (char *)out.data, 0600);
		gnutls_free(out.data);
		ck_assert_int_eq(gnutls_x509_crt_export2(crt, GNUTLS_X509_FMT_PEM, &out), 0);
		write_text(crt_name, (char *)out.data, 0600);
		gnutls_free(out.data);
	}
	ck_assert_int_eq(gnutls_x509_crt_export2(crt, GNUTLS_X509_FMT_DER, &der), 0);
	gnutls_x509_crt_deinit(crt);
	gnutls_x509_crt_deinit(ca);
	gnutls_x509_privkey_deinit(key);
	gnutls_x509_privkey_deinit(ca_key);
	return der;
}

/* The same certificate is shown to those that call, and to those that are called. */
START_TEST(a_node_needs_a_certificate_for_both_purposes)
{
	static const struct {
		const char *name;
		bool server, client;
	} cases[] = {
	    {"both", true, true}, {"any", false, false}, {"server", true, false}, {"client", false, true}};

	make_authority();
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		const bool taken = cases[i].server == cases[i].client;
		gnutls_datum_t der = sign(1, cases[i].server, cases[i].client, cases[i].name);
		_cleanup_(identity_freep) struct identity *id = NULL, *other = NULL;
		struct error err = ERROR_INIT;
		time_t expires;
		int r = load(cases[i].name, &id, &err);

		ck_assert_msg(r == (taken ? 0 : -EINVAL), "%s: %d: %s", cases[i].name, r, err.message);
		if (taken) {
			ck_assert_int_eq(id->expires, validity.until);
			ck_assert(!identity_is_shared(id));
		} else {
			ck_assert_ptr_nonnull(strstr(err.message, cases[i].name));
			ck_assert_ptr_nonnull(strstr(err.message, "it is for another purpose"));
		}
		make_node(cases[i].name);
		{
			_cleanup_free_ char *name = str_printf("nodes/%s", cases[i].name);

			ck_ok(load(name, &other, &err), &err);
		}
		for (int client = 0; client < 2; client++) {
			bool fits = cases[i].server == cases[i].client ||
			            (client ? cases[i].client : cases[i].server);

			expires = 0;
			r = certificates_verify(other, &der, 1, client, &expires, &err);
			ck_assert_int_eq(r, fits ? 0 : -EACCES);
			ck_assert_int_eq(expires, fits ? validity.until : 0);
		}
		gnutls_free(der.data);
	}
}
END_TEST

/* Of no certificate, and of more than eight, nothing is read; the one that expires first counts. */
START_TEST(a_chain_has_a_length)
{
	_cleanup_(identity_freep) struct identity *id = NULL;
	const struct validity first = validity;
	struct error err = ERROR_INIT;
	gnutls_datum_t chain[9];
	time_t expires;

	make_authority();
	make_node("n1");
	ck_ok(load("nodes/n1", &id, &err), &err);
	for (size_t i = 0; i < ARRAY_SIZE(chain); i++) {
		validity.until = i == 2 ? first.until - DAY : first.until;
		chain[i] = sign(1, true, true, NULL);
	}
	ck_assert_int_eq(certificates_verify(id, chain, 0, true, &expires, &err), -EINVAL);
	ck_assert_str_eq(err.message, "0 certificates: 1 to 8 are possible");
	ck_assert_int_eq(certificates_verify(id, chain, 9, true, &expires, &err), -EINVAL);
	ck_assert_str_eq(err.message, "9 certificates: 1 to 8 are possible");
	ck_ok(certificates_verify(id, chain, 8, true, &expires, &err), &err);
	ck_assert_int_eq(expires, first.until - DAY);
	ck_ok(certificates_verify(id, chain, 2, true, &expires, &err), &err);
	ck_assert_int_eq(expires, first.until);
	for (size_t i = 0; i < ARRAY_SIZE(chain); i++)
		gnutls_free(chain[i].data);
}
END_TEST

START_TEST(not_every_name_is_that_of_a_node)
{
	static const struct other_name list[] = {
	    {GNUTLS_SAN_RFC822NAME, "root@n9", 7},
	    {GNUTLS_SAN_URI, "http://n9", 9},
	    {GNUTLS_SAN_IPADDRESS, "\x0a\x01\x02\x03", 4},
	    {GNUTLS_SAN_DNSNAME, "last", 4},
	    {0},
	};
	struct certificate_names names;
	struct error err = ERROR_INIT;
	gnutls_datum_t der;

	make_authority();
	others = list;
	der = sign(1, true, true, NULL);
	ck_ok(certificate_names_read(&der, &names, &err), &err);
	ck_assert_uint_eq(names.count, 3);
	ck_assert_str_eq(names.list[0], "n0");
	ck_assert_str_eq(names.list[1], "10.1.2.3");
	ck_assert_str_eq(names.list[2], "last");
	certificate_names_release(&names);
	ck_assert_ptr_null(names.list);
	gnutls_free(der.data);
}
END_TEST

START_TEST(a_certificate_has_up_to_99_names)
{
	make_authority();
	for (int n = 99; n <= 100; n++) {
		gnutls_datum_t der = sign(n, true, true, NULL);
		struct certificate_names names;
		struct error err = ERROR_INIT;
		int r = certificate_names_read(&der, &names, &err);

		ck_assert_int_eq(r, n == 99 ? 0 : -EINVAL);
		ck_assert_uint_eq(names.count, n == 99 ? 99 : 0);
		if (n == 99)
			ck_assert_str_eq(names.list[98], "n98");
		else
			ck_assert_str_eq(err.message, "the certificate has more than 99 names");
		certificate_names_release(&names);
		gnutls_free(der.data);
	}
}
END_TEST

int main(void)
{
	Suite *s = suite_create("authority");
	TCase *c = tcase_create("authority");

	tcase_set_timeout(c, 60);
	tcase_add_checked_fixture(c, authority_setup, authority_teardown);
	suite_add_tcase(s, c);
	tcase_add_test(c, an_authority_signs_and_nothing_else);
	tcase_add_loop_test(c, a_certificate_names_its_node, 0, ARRAY_SIZE(nodes));
	tcase_add_test(c, no_half_is_replaced);
	tcase_add_test(c, the_clusters_key_has_a_certificate);
	tcase_add_test(c, a_key_is_written_once);
	tcase_add_test(c, the_blocks_of_a_file_are_found);
	tcase_add_test(c, identities_are_equal_where_their_files_are);
	tcase_add_test(c, a_node_needs_a_certificate_for_both_purposes);
	tcase_add_test(c, a_chain_has_a_length);
	tcase_add_test(c, not_every_name_is_that_of_a_node);
	tcase_add_test(c, a_certificate_has_up_to_99_names);
	return unit_run(s);
}
