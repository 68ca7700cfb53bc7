/* SPDX-License-Identifier: Apache-2.0 */
/* The key and the certificate of the cluster in one PEM file: how it is made and checked. */
#include "http/identity.h"

#include <errno.h>
#include <fcntl.h>
#include <gnutls/abstract.h>
#include <gnutls/crypto.h>
#include <gnutls/gnutls.h>
#include <gnutls/x509.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/str.h"

DEFINE_CLEANUP(gnutls_x509_privkey_t, gnutls_x509_privkey_deinit)
DEFINE_CLEANUP(gnutls_x509_crt_t, gnutls_x509_crt_deinit)
DEFINE_CLEANUP(gnutls_pubkey_t, gnutls_pubkey_deinit)

static void datum_free(gnutls_datum_t *d)
{
	gnutls_free(d->data);
}

#define _cleanup_datum_ _cleanup_(datum_free)

int identity_tls_error(struct error *err, int code, const char *what)
{
	return error_set(err, code == GNUTLS_E_MEMORY_ERROR ? -ENOMEM : -EINVAL, "%s: %s", what,
	                 gnutls_strerror(code));
}

/* The certificate carries no names that matter: peers compare it whole. */
static int self_sign(gnutls_x509_crt_t crt, gnutls_x509_privkey_t key)
{
	static const char name[] = "dtrain cluster";
	unsigned char serial[16];
	int r;

	r = gnutls_rnd(GNUTLS_RND_NONCE, serial, sizeof(serial));
	if (r < 0)
		return r;
	serial[0] &= 0x7f; /* a serial number is positive */
	if ((r = gnutls_x509_crt_set_version(crt, 3)) < 0 ||
	    (r = gnutls_x509_crt_set_serial(crt, serial, sizeof(serial))) < 0 ||
	    (r = gnutls_x509_crt_set_dn_by_oid(crt, GNUTLS_OID_X520_COMMON_NAME, 0, name, sizeof(name) - 1)) <
	        0 ||
	    /* Clocks of nodes differ, and the file is replaced by hand: a wide time of validity. */
	    (r = gnutls_x509_crt_set_activation_time(crt, time(NULL) - 86400)) < 0 ||
	    (r = gnutls_x509_crt_set_expiration_time(crt, GNUTLS_X509_NO_WELL_DEFINED_EXPIRATION)) < 0 ||
	    (r = gnutls_x509_crt_set_basic_constraints(crt, 1, 0)) < 0 ||
	    (r = gnutls_x509_crt_set_key_usage(crt, GNUTLS_KEY_DIGITAL_SIGNATURE |
	                                                GNUTLS_KEY_KEY_CERT_SIGN)) < 0 ||
	    (r = gnutls_x509_crt_set_key(crt, key)) < 0)
		return r;
	return gnutls_x509_crt_sign2(crt, crt, key, GNUTLS_DIG_SHA256, 0);
}

static int make_pem(struct strbuf *out, struct error *err)
{
	_cleanup_(gnutls_x509_privkey_deinitp) gnutls_x509_privkey_t key = NULL;
	_cleanup_(gnutls_x509_crt_deinitp) gnutls_x509_crt_t crt = NULL;
	_cleanup_datum_ gnutls_datum_t key_pem = {NULL, 0}, crt_pem = {NULL, 0};
	int r;

	if ((r = gnutls_x509_privkey_init(&key)) < 0 || (r = gnutls_x509_crt_init(&crt)) < 0 ||
	    (r = gnutls_x509_privkey_generate(key, GNUTLS_PK_ECDSA,
	                                      GNUTLS_CURVE_TO_BITS(GNUTLS_ECC_CURVE_SECP256R1), 0)) < 0 ||
	    (r = self_sign(crt, key)) < 0 ||
	    (r = gnutls_x509_privkey_export2_pkcs8(key, GNUTLS_X509_FMT_PEM, NULL, 0, &key_pem)) < 0 ||
	    (r = gnutls_x509_crt_export2(crt, GNUTLS_X509_FMT_PEM, &crt_pem)) < 0)
		return identity_tls_error(err, r, "cannot make a cluster key");
	strbuf_add(out, key_pem.data, key_pem.size);
	strbuf_add(out, crt_pem.data, crt_pem.size);
	gnutls_memset(key_pem.data, 0, key_pem.size);
	return out->failed ? error_oom(err) : 0;
}

int identity_make(const char *path, bool force, struct error *err)
{
	_cleanup_strbuf_ struct strbuf pem = {0};
	_cleanup_close_ int fd = -1;
	int r;

	if (!force && file_exists(path))
		return error_set(err, -EEXIST,
		                 "%s exists: a new key would lock out the nodes that hold the old "
		                 "one; give --force to replace it",
		                 path);
	r = make_pem(&pem, err);
	if (r < 0)
		return r;
	if (force)
		return file_write_atomic(path, pem.data, pem.len, 0600, err);
	/* O_EXCL: of two that make it at once, one says so. */
	fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0)
		return error_errno(err, -errno, "cannot write %s", path);
	r = file_write_all(fd, pem.data, pem.len, err);
	if (r == 0 && fsync(fd) < 0)
		r = error_errno(err, -errno, "cannot write %s", path);
	if (r < 0)
		unlink(path);
	return r;
}

/* *out: the first PEM block whose label ends in `label`, the caller's; left as it is where there is none. 0,
 * or -ENOMEM. */
static int pem_block(const char *pem, const char *label, char **out)
{
	_cleanup_free_ char *tail = str_printf("%s-----\n", label);
	const char *p = pem, *end, *line_end;

	if (!tail)
		return -ENOMEM;
	while ((p = strstr(p, "-----BEGIN "))) {
		line_end = strchr(p, '\n');
		if (!line_end)
			return 0;
		end = strstr(line_end, "-----END ");
		end = end ? strchr(end, '\n') : NULL;
		if (!end)
			return 0;
		if ((size_t)(line_end + 1 - p) > strlen(tail) &&
		    strncmp(line_end + 1 - strlen(tail), tail, strlen(tail)) == 0) {
			*out = strndup(p, end + 1 - p);
			return *out ? 0 : -ENOMEM;
		}
		p = end;
	}
	return 0;
}

static int make_pin(gnutls_x509_crt_t crt, char **pin)
{
	_cleanup_(gnutls_pubkey_deinitp) gnutls_pubkey_t pubkey = NULL;
	_cleanup_datum_ gnutls_datum_t der = {NULL, 0}, base64 = {NULL, 0};
	unsigned char digest[32];
	int r;

	if ((r = gnutls_pubkey_init(&pubkey)) < 0 || (r = gnutls_pubkey_import_x509(pubkey, crt, 0)) < 0 ||
	    (r = gnutls_pubkey_export2(pubkey, GNUTLS_X509_FMT_DER, &der)) < 0 ||
	    (r = gnutls_hash_fast(GNUTLS_DIG_SHA256, der.data, der.size, digest)) < 0 ||
	    (r = gnutls_base64_encode2(&(gnutls_datum_t){digest, sizeof(digest)}, &base64)) < 0)
		return r;
	*pin = str_printf("sha256//%.*s", (int)base64.size, (const char *)base64.data);
	return *pin ? 0 : GNUTLS_E_MEMORY_ERROR;
}

/* Both blocks parse and belong together: said here, not by the first handshake that fails. */
static int identity_parse(struct identity *id, const char *path, struct error *err)
{
	_cleanup_(gnutls_x509_privkey_deinitp) gnutls_x509_privkey_t key = NULL;
	_cleanup_(gnutls_x509_crt_deinitp) gnutls_x509_crt_t crt = NULL;
	_cleanup_datum_ gnutls_datum_t der = {NULL, 0};
	gnutls_datum_t key_pem = {(unsigned char *)id->key, strlen(id->key)};
	gnutls_datum_t crt_pem = {(unsigned char *)id->certificate, strlen(id->certificate)};
	unsigned char key_id[2][64];
	size_t len[2] = {sizeof(key_id[0]), sizeof(key_id[1])};
	int r;

	if ((r = gnutls_x509_privkey_init(&key)) < 0 || (r = gnutls_x509_crt_init(&crt)) < 0 ||
	    (r = gnutls_x509_privkey_import2(key, &key_pem, GNUTLS_X509_FMT_PEM, NULL, 0)) < 0 ||
	    (r = gnutls_x509_crt_import(crt, &crt_pem, GNUTLS_X509_FMT_PEM)) < 0 ||
	    (r = gnutls_x509_privkey_get_key_id(key, 0, key_id[0], &len[0])) < 0 ||
	    (r = gnutls_x509_crt_get_key_id(crt, 0, key_id[1], &len[1])) < 0 ||
	    (r = gnutls_x509_crt_export2(crt, GNUTLS_X509_FMT_DER, &der)) < 0 ||
	    (r = make_pin(crt, &id->pin)) < 0)
		return identity_tls_error(err, r, path);
	if (len[0] != len[1] || memcmp(key_id[0], key_id[1], len[0]) != 0)
		return error_set(err, -EINVAL, "%s: the key and the certificate do not belong together",
		                 path);
	id->certificate_der = malloc(der.size);
	if (!id->certificate_der)
		return error_oom(err);
	memcpy(id->certificate_der, der.data, der.size);
	id->certificate_der_len = der.size;
	return 0;
}

int identity_load(const char *path, struct identity **out, struct error *err)
{
	_cleanup_(identity_freep) struct identity *id = NULL;
	_cleanup_free_ char *pem = NULL;
	struct stat st;
	int r;

	if (stat(path, &st) < 0)
		return error_errno(err, -errno, "cannot read the cluster key %s", path);
	if (st.st_mode & 077)
		return error_set(err, -EPERM,
		                 "%s can be read by other users (mode %04o): chmod 600 %s, and if "
		                 "others had a look, make a new one with dtrain keygen --force",
		                 path, st.st_mode & 07777, path);
	r = file_read(path, 1 << 20, &pem, NULL, err);
	if (r < 0)
		return r;
	id = calloc(1, sizeof(*id));
	if (!id || pem_block(pem, "PRIVATE KEY", &id->key) < 0 ||
	    pem_block(pem, "CERTIFICATE", &id->certificate) < 0)
		return error_oom(err);
	if (!id->key || !id->certificate)
		return error_set(err, -EINVAL,
		                 "%s: needs a private key and a certificate in PEM, as dtrain keygen "
		                 "writes them",
		                 path);
	r = identity_parse(id, path, err);
	if (r < 0)
		return r;
	*out = steal_pointer(id);
	return 0;
}

bool identity_is_shared(const struct identity *id)
{
	return !id->authorities;
}

bool identity_equal(const struct identity *a, const struct identity *b)
{
	return str_eq(a->certificate, b->certificate) && str_eq(a->key, b->key) && str_eq(a->trust, b->trust);
}

void identity_free(struct identity *id)
{
	if (!id)
		return;
	if (id->key)
		gnutls_memset(id->key, 0, strlen(id->key));
	free(id->key);
	free(id->certificate);
	free(id->certificate_der);
	free(id->pin);
	free(id->trust);
	if (id->authorities)
		gnutls_x509_trust_list_deinit(id->authorities, 1);
	free(id);
}
