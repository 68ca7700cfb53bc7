/* SPDX-License-Identifier: Apache-2.0 */
/* Makes certificate authorities and the certificates of nodes. */
#include "http/authority.h"

#include <arpa/inet.h>
#include <errno.h>
#include <gnutls/crypto.h>
#include <gnutls/gnutls.h>
#include <gnutls/x509.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/str.h"
#include "http/identity.h"

enum { COMMON_NAME_MAX = 64 };
/* What names of files add to that of a node: while they are written, the number of a process, too. */
static const char LONGEST_SUFFIX[] = ".key.tmp.4194304";
enum { NODE_NAME_MAX = NAME_MAX - (sizeof(LONGEST_SUFFIX) - 1) };

DEFINE_CLEANUP(gnutls_x509_privkey_t, gnutls_x509_privkey_deinit)
DEFINE_CLEANUP(gnutls_x509_crt_t, gnutls_x509_crt_deinit)

struct authority {
	gnutls_x509_privkey_t key;
	gnutls_x509_crt_t certificate;
};

static void authority_release(struct authority *a)
{
	gnutls_x509_privkey_deinit(a->key);
	gnutls_x509_crt_deinit(a->certificate);
}

static void datum_free(gnutls_datum_t *d)
{
	if (d->data)
		gnutls_memset(d->data, 0, d->size);
	gnutls_free(d->data);
}

#define _cleanup_datum_ _cleanup_(datum_free)

/* What all certificates have. */
static int begin(gnutls_x509_crt_t crt, gnutls_x509_privkey_t key, const char *name, struct validity validity)
{
	unsigned char serial[16], id[64];
	size_t id_len = sizeof(id);
	int r;

	if ((r = gnutls_rnd(GNUTLS_RND_NONCE, serial, sizeof(serial))) < 0)
		return r;
	serial[0] = (serial[0] & 0x7f) | 1; /* a serial number is positive */
	if ((r = gnutls_x509_crt_set_version(crt, 3)) < 0 ||
	    (r = gnutls_x509_crt_set_serial(crt, serial, sizeof(serial))) < 0 ||
	    (r = gnutls_x509_crt_set_activation_time(crt, validity.from)) < 0 ||
	    (r = gnutls_x509_crt_set_expiration_time(crt, validity.until)) < 0 ||
	    (r = gnutls_x509_crt_set_key(crt, key)) < 0 ||
	    (r = gnutls_x509_crt_get_key_id(crt, 0, id, &id_len)) < 0 ||
	    (r = gnutls_x509_crt_set_subject_key_id(crt, id, MIN(id_len, 20u))) < 0)
		return r;
	/* A common name has at most 64 characters, a node's may have more; the alternative name counts. */
	return strlen(name) > COMMON_NAME_MAX
	           ? 0
	           : gnutls_x509_crt_set_dn_by_oid(crt, GNUTLS_OID_X520_COMMON_NAME, 0, name, strlen(name));
}

/* Two authorities of a cluster have different names: programs find the signer of a certificate by its
 * name. */
static int make_authority(struct authority *a, struct validity validity)
{
	unsigned char random[4];
	char name[64];
	int r;

	if ((r = gnutls_rnd(GNUTLS_RND_NONCE, random, sizeof(random))) < 0)
		return r;
	snprintf(name, sizeof(name), "dtrain cluster authority %02x%02x%02x%02x", random[0], random[1],
	         random[2], random[3]);
	if ((r = begin(a->certificate, a->key, name, validity)) < 0 ||
	    (r = gnutls_x509_crt_set_basic_constraints(a->certificate, 1, 0)) < 0 ||
	    (r = gnutls_x509_crt_set_key_usage(a->certificate, GNUTLS_KEY_KEY_CERT_SIGN)) < 0)
		return r;
	return gnutls_x509_crt_sign2(a->certificate, a->certificate, a->key, GNUTLS_DIG_SHA256, 0);
}

static int set_node_name(gnutls_x509_crt_t crt, const char *name)
{
	unsigned char address[16];
	unsigned len = inet_pton(AF_INET, name, address) == 1    ? 4
	               : inet_pton(AF_INET6, name, address) == 1 ? 16
	                                                         : 0;

	return len ? gnutls_x509_crt_set_subject_alt_name(crt, GNUTLS_SAN_IPADDRESS, address, len,
	                                                  GNUTLS_FSAN_SET)
	           : gnutls_x509_crt_set_subject_alt_name(crt, GNUTLS_SAN_DNSNAME, name, strlen(name),
	                                                  GNUTLS_FSAN_SET);
}

static int make_node(gnutls_x509_crt_t crt, gnutls_x509_privkey_t key, const struct authority *a,
                     const char *name, struct validity validity)
{
	unsigned char id[64];
	size_t id_len = sizeof(id);
	int r;

	if ((r = begin(crt, key, name, validity)) < 0 || (r = set_node_name(crt, name)) < 0 ||
	    (r = gnutls_x509_crt_set_basic_constraints(crt, 0, -1)) < 0 ||
	    (r = gnutls_x509_crt_set_key_usage(crt, GNUTLS_KEY_DIGITAL_SIGNATURE)) < 0 ||
	    (r = gnutls_x509_crt_set_key_purpose_oid(crt, GNUTLS_KP_TLS_WWW_SERVER, 0)) < 0 ||
	    (r = gnutls_x509_crt_set_key_purpose_oid(crt, GNUTLS_KP_TLS_WWW_CLIENT, 0)) < 0 ||
	    (r = gnutls_x509_crt_get_subject_key_id(a->certificate, id, &id_len, NULL)) < 0 ||
	    (r = gnutls_x509_crt_set_authority_key_id(crt, id, id_len)) < 0)
		return r;
	return gnutls_x509_crt_sign2(crt, a->certificate, a->key, GNUTLS_DIG_SHA256, 0);
}

static int generate(gnutls_x509_privkey_t *key, gnutls_x509_crt_t *crt)
{
	int r;

	if ((r = gnutls_x509_privkey_init(key)) < 0 || (r = gnutls_x509_crt_init(crt)) < 0)
		return r;
	return gnutls_x509_privkey_generate(*key, GNUTLS_PK_ECDSA,
	                                    GNUTLS_CURVE_TO_BITS(GNUTLS_ECC_CURVE_SECP256R1), 0);
}

/* DIRECTORY/NAME.pem and DIRECTORY/NAME.key; the key first, so that no certificate is without one. */
static int write_both(const char *directory, const char *name, gnutls_x509_privkey_t key,
                      gnutls_x509_crt_t crt, bool force, struct error *err)
{
	_cleanup_datum_ gnutls_datum_t key_pem = {NULL, 0}, crt_pem = {NULL, 0};
	_cleanup_free_ char *crt_path = str_printf("%s/%s.pem", directory, name),
	                    *key_path = str_printf("%s/%s.key", directory, name);
	int r;

	if (!crt_path || !key_path)
		return error_oom(err);
	if ((r = gnutls_x509_privkey_export2_pkcs8(key, GNUTLS_X509_FMT_PEM, NULL, 0, &key_pem)) < 0 ||
	    (r = gnutls_x509_crt_export2(crt, GNUTLS_X509_FMT_PEM, &crt_pem)) < 0)
		return identity_tls_error(err, r, crt_path);
	for (int i = 0; i < 2; i++) {
		const char *path = i ? crt_path : key_path;

		if (!force && file_exists(path))
			return error_set(err, -EEXIST, "%s exists; give --force to replace it", path);
	}
	r = file_write_atomic(key_path, key_pem.data, key_pem.size, 0600, err);
	return r < 0 ? r : file_write_atomic(crt_path, crt_pem.data, crt_pem.size, 0644, err);
}

int authority_make(const char *directory, struct validity validity, bool force, struct error *err)
{
	_cleanup_(authority_release) struct authority a = {0};
	int r = file_mkdirs(directory, 0700, err);

	if (r < 0)
		return r;
	if ((r = generate(&a.key, &a.certificate)) < 0 || (r = make_authority(&a, validity)) < 0)
		return identity_tls_error(err, r, "cannot make a certificate authority");
	return write_both(directory, "ca", a.key, a.certificate, force, err);
}

static int load_authority(const char *directory, struct authority *a, struct error *err)
{
	_cleanup_free_ char *crt_path = str_path_join(directory, "ca.pem"),
	                    *key_path = str_path_join(directory, "ca.key"), *crt = NULL, *key = NULL;
	int r;

	if (!crt_path || !key_path)
		return error_oom(err);
	if ((r = file_read(crt_path, 1 << 20, &crt, NULL, err)) < 0 ||
	    (r = file_read(key_path, 1 << 20, &key, NULL, err)) < 0)
		return r;
	if ((r = gnutls_x509_privkey_init(&a->key)) < 0 || (r = gnutls_x509_crt_init(&a->certificate)) < 0 ||
	    (r = gnutls_x509_crt_import(a->certificate, &(gnutls_datum_t){(unsigned char *)crt, strlen(crt)},
	                                GNUTLS_X509_FMT_PEM)) < 0)
		r = identity_tls_error(err, r, crt_path);
	else if ((r = gnutls_x509_privkey_import2(a->key,
	                                          &(gnutls_datum_t){(unsigned char *)key, strlen(key)},
	                                          GNUTLS_X509_FMT_PEM, NULL, 0)) < 0)
		r = identity_tls_error(err, r, key_path);
	gnutls_memset(key, 0, strlen(key));
	return r;
}

/* As the hosts file takes names; it is a part of the names of files. */
static bool valid_name(const char *name)
{
	static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_:";

	return *name && !name[strspn(name, allowed)];
}

int authority_make_node(const char *directory, const char *name, struct validity validity, bool force,
                        struct error *err)
{
	_cleanup_(gnutls_x509_privkey_deinitp) gnutls_x509_privkey_t key = NULL;
	_cleanup_(gnutls_x509_crt_deinitp) gnutls_x509_crt_t crt = NULL;
	_cleanup_free_ char *nodes = str_path_join(directory, "nodes");
	_cleanup_(authority_release) struct authority a = {0};
	int r;

	if (!nodes)
		return error_oom(err);
	if (!valid_name(name))
		return error_set(err, -EINVAL, "\"%.300s\" is not the name of a host", name);
	if (strlen(name) > NODE_NAME_MAX)
		return error_set(err, -EINVAL,
		                 "%.32s...: a name of %zu bytes; the names of its files leave %d", name,
		                 strlen(name), NODE_NAME_MAX);
	if ((r = load_authority(directory, &a, err)) < 0 || (r = file_mkdirs(nodes, 0700, err)) < 0)
		return r;
	if ((r = generate(&key, &crt)) < 0 || (r = make_node(crt, key, &a, name, validity)) < 0)
		return identity_tls_error(err, r, "cannot make a certificate");
	return write_both(nodes, name, key, crt, force, err);
}
