/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the certificate, the key and the authorities of a node, and checks the certificates of others. */
#include "http/certificates.h"

#include <arpa/inet.h>
#include <errno.h>
#include <gnutls/x509.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/str.h"

enum { CHAIN_MAX = 8, FILE_MAX = 1 << 20, NAMES_MAX = 100 };

DEFINE_CLEANUP(gnutls_x509_privkey_t, gnutls_x509_privkey_deinit)
DEFINE_CLEANUP(gnutls_x509_crt_t, gnutls_x509_crt_deinit)

struct chain {
	gnutls_x509_crt_t list[CHAIN_MAX];
	unsigned count;
};

static void chain_release(struct chain *c)
{
	for (unsigned i = 0; i < c->count; i++)
		gnutls_x509_crt_deinit(c->list[i]);
}

static gnutls_datum_t datum_of(const char *text)
{
	return (gnutls_datum_t){(unsigned char *)text, strlen(text)};
}

static int read_chain(const gnutls_datum_t *der, unsigned count, struct chain *out, struct error *err)
{
	int r;

	if (count == 0 || count > CHAIN_MAX)
		return error_set(err, -EINVAL, "%u certificates: 1 to %d are possible", count, CHAIN_MAX);
	while (out->count < count) {
		if ((r = gnutls_x509_crt_init(&out->list[out->count])) < 0)
			return identity_tls_error(err, r, "certificate");
		out->count++;
		if ((r = gnutls_x509_crt_import(out->list[out->count - 1], &der[out->count - 1],
		                                GNUTLS_X509_FMT_DER)) < 0)
			return identity_tls_error(err, r, "certificate");
	}
	return 0;
}

static int not_accepted(unsigned status, struct error *err)
{
	const char *why = status & GNUTLS_CERT_EXPIRED              ? "it has expired"
	                  : status & GNUTLS_CERT_NOT_ACTIVATED      ? "it is not valid yet"
	                  : status & GNUTLS_CERT_SIGNER_NOT_FOUND   ? "no authority of ca_file has signed it"
	                  : status & GNUTLS_CERT_SIGNER_NOT_CA      ? "its signer is no authority"
	                  : status & GNUTLS_CERT_PURPOSE_MISMATCH   ? "it is for another purpose"
	                  : status & GNUTLS_CERT_INSECURE_ALGORITHM ? "its signature is of a weak kind"
	                                                            : "its signature is not valid";

	return error_set(err, -EACCES, "the certificate is not accepted: %s", why);
}

static int verify(const struct identity *id, struct chain *chain, bool client, time_t *expires,
                  struct error *err)
{
	gnutls_typed_vdata_st purpose = {
	    GNUTLS_DT_KEY_PURPOSE_OID,
	    (unsigned char *)(client ? GNUTLS_KP_TLS_WWW_CLIENT : GNUTLS_KP_TLS_WWW_SERVER), 0};
	unsigned status = 0;
	int r = gnutls_x509_trust_list_verify_crt2(id->authorities, chain->list, chain->count, &purpose, 1, 0,
	                                           &status, NULL);

	if (r < 0)
		return identity_tls_error(err, r, "the certificate cannot be checked");
	if (status != 0)
		return not_accepted(status, err);
	*expires = gnutls_x509_crt_get_expiration_time(chain->list[0]);
	for (unsigned i = 1; i < chain->count; i++)
		*expires = MIN(*expires, gnutls_x509_crt_get_expiration_time(chain->list[i]));
	return 0;
}

int certificates_verify(const struct identity *id, const gnutls_datum_t *der, unsigned count, bool client,
                        time_t *expires, struct error *err)
{
	_cleanup_(chain_release) struct chain chain = {.count = 0};
	int r = read_chain(der, count, &chain, err);

	return r < 0 ? r : verify(id, &chain, client, expires, err);
}

/* *out: the name as text, or NULL where it is not one that a node may have. 0, or -ENOMEM. */
static int name_of(int type, const unsigned char *data, size_t len, char **out)
{
	char text[INET6_ADDRSTRLEN];

	*out = NULL;
	if (type == GNUTLS_SAN_IPADDRESS && (len == 4 || len == 16))
		*out = strdup(inet_ntop(len == 4 ? AF_INET : AF_INET6, data, text, sizeof(text)));
	/* A NUL byte within a name would end it for us, but not for who has signed it. */
	else if (type == GNUTLS_SAN_DNSNAME && len > 0 && !memchr(data, '\0', len))
		*out = strndup((const char *)data, len);
	else
		return 0;
	return *out ? 0 : -ENOMEM;
}

static int read_names(gnutls_x509_crt_t crt, struct certificate_names *out, struct error *err)
{
	_cleanup_free_ unsigned char *data = malloc(FILE_MAX);
	char **list;

	out->list = calloc(NAMES_MAX, sizeof(*list));
	if (!data || !out->list)
		return error_oom(err);
	for (unsigned i = 0; out->count < NAMES_MAX; i++) {
		size_t len = FILE_MAX;
		int type = gnutls_x509_crt_get_subject_alt_name(crt, i, data, &len, NULL);
		char *name;

		if (type == GNUTLS_E_REQUESTED_DATA_NOT_AVAILABLE)
			return 0;
		if (type < 0)
			return identity_tls_error(err, type, "names of a certificate");
		if (name_of(type, data, len, &name) < 0)
			return error_oom(err);
		if (name)
			out->list[out->count++] = name;
	}
	return error_set(err, -EINVAL, "the certificate has more than %d names", NAMES_MAX - 1);
}

void certificate_names_release(struct certificate_names *names)
{
	for (size_t i = 0; i < names->count; i++)
		free(names->list[i]);
	free(names->list);
	*names = (struct certificate_names){0};
}

int certificate_names_read(const gnutls_datum_t *der, struct certificate_names *out, struct error *err)
{
	_cleanup_(gnutls_x509_crt_deinitp) gnutls_x509_crt_t crt = NULL;
	int r;

	*out = (struct certificate_names){0};
	if ((r = gnutls_x509_crt_init(&crt)) < 0 ||
	    (r = gnutls_x509_crt_import(crt, der, GNUTLS_X509_FMT_DER)) < 0)
		return identity_tls_error(err, r, "certificate");
	r = read_names(crt, out, err);
	if (r < 0)
		certificate_names_release(out);
	return r;
}

bool certificates_are_of(const struct identity *id, const char *node)
{
	_cleanup_(certificate_names_release) struct certificate_names names = {0};
	gnutls_datum_t der = {id->certificate_der, id->certificate_der_len};

	if (certificate_names_read(&der, &names, NULL) < 0)
		return false;
	for (size_t i = 0; i < names.count; i++)
		if (str_eq_host(names.list[i], node))
			return true;
	return false;
}

static int read_key(const char *path, char **out, struct error *err)
{
	struct stat st;

	if (stat(path, &st) < 0)
		return error_errno(err, -errno, "cannot read the key %s", path);
	if (st.st_mode & 077)
		return error_set(err, -EPERM, "%s can be read by other users (mode %04o): chmod 600 %s", path,
		                 st.st_mode & 07777, path);
	return file_read(path, FILE_MAX, out, NULL, err);
}

static int check_key(const struct identity *id, gnutls_x509_crt_t crt, const struct certificate_files *files,
                     struct error *err)
{
	_cleanup_(gnutls_x509_privkey_deinitp) gnutls_x509_privkey_t key = NULL;
	gnutls_datum_t pem = datum_of(id->key);
	unsigned char ids[2][64];
	size_t len[2] = {sizeof(ids[0]), sizeof(ids[1])};
	int r;

	if ((r = gnutls_x509_privkey_init(&key)) < 0 ||
	    (r = gnutls_x509_privkey_import2(key, &pem, GNUTLS_X509_FMT_PEM, NULL, 0)) < 0 ||
	    (r = gnutls_x509_privkey_get_key_id(key, 0, ids[0], &len[0])) < 0)
		return identity_tls_error(err, r, files->key);
	if ((r = gnutls_x509_crt_get_key_id(crt, 0, ids[1], &len[1])) < 0)
		return identity_tls_error(err, r, files->certificate);
	if (len[0] != len[1] || memcmp(ids[0], ids[1], len[0]) != 0)
		return error_set(err, -EINVAL, "%s is not the key of the certificate %s", files->key,
		                 files->certificate);
	return 0;
}

static int read_authorities(struct identity *id, const char *path, struct error *err)
{
	gnutls_datum_t ca = datum_of(id->trust);
	gnutls_x509_trust_list_t list;
	int r = gnutls_x509_trust_list_init(&list, 0);

	if (r < 0)
		return identity_tls_error(err, r, path);
	id->authorities = list;
	r = gnutls_x509_trust_list_add_trust_mem(list, &ca, NULL, GNUTLS_X509_FMT_PEM, 0, 0);
	if (r < 0)
		return identity_tls_error(err, r, path);
	return r > 0 ? 0 : error_set(err, -EINVAL, "%s: there is no certificate in it", path);
}

/* The certificate in DER, the authorities, and that all belong together. */
static int parse(struct identity *id, const struct certificate_files *files, struct error *err)
{
	_cleanup_(chain_release) struct chain chain = {.count = CHAIN_MAX};
	gnutls_datum_t pem = datum_of(id->certificate), der = {NULL, 0};
	struct error why = ERROR_INIT;
	time_t expires;
	int r;

	r = gnutls_x509_crt_list_import(chain.list, &chain.count, &pem, GNUTLS_X509_FMT_PEM,
	                                GNUTLS_X509_CRT_LIST_IMPORT_FAIL_IF_EXCEED);
	if (r < 0)
		chain.count = 0;
	if (r < 0)
		return identity_tls_error(err, r, files->certificate);
	if ((r = read_authorities(id, files->ca, err)) < 0 ||
	    (r = check_key(id, chain.list[0], files, err)) < 0)
		return r;
	/* The same certificate is shown to those that call, and to those that are called. */
	if (verify(id, &chain, true, &expires, &why) < 0 || verify(id, &chain, false, &expires, &why) < 0)
		return error_set(err, why.code == -EACCES ? -EINVAL : why.code, "%s: %s", files->certificate,
		                 why.message);
	if ((r = gnutls_x509_crt_export2(chain.list[0], GNUTLS_X509_FMT_DER, &der)) < 0)
		return identity_tls_error(err, r, files->certificate);
	id->certificate_der = malloc(der.size);
	if (id->certificate_der)
		memcpy(id->certificate_der, der.data, der.size);
	id->certificate_der_len = der.size;
	id->expires = expires;
	gnutls_free(der.data);
	return id->certificate_der ? 0 : error_oom(err);
}

int certificates_load(const struct certificate_files *files, struct identity **out, struct error *err)
{
	_cleanup_(identity_freep) struct identity *id = calloc(1, sizeof(*id));
	int r;

	if (!id)
		return error_oom(err);
	if ((r = file_read(files->certificate, FILE_MAX, &id->certificate, NULL, err)) < 0 ||
	    (r = read_key(files->key, &id->key, err)) < 0 ||
	    (r = file_read(files->ca, FILE_MAX, &id->trust, NULL, err)) < 0 ||
	    (r = parse(id, files, err)) < 0)
		return r;
	*out = steal_pointer(id);
	return 0;
}

int certificates_load_clients(const struct identity *own, const char *ca, struct identity **out,
                              struct error *err)
{
	_cleanup_(identity_freep) struct identity *id = calloc(1, sizeof(*id));
	int r;

	if (!id)
		return error_oom(err);
	id->certificate = strdup(own->certificate);
	id->key = strdup(own->key);
	if (!id->certificate || !id->key)
		return error_oom(err);
	if ((r = file_read(ca, FILE_MAX, &id->trust, NULL, err)) < 0 ||
	    (r = read_authorities(id, ca, err)) < 0)
		return r;
	*out = steal_pointer(id);
	return 0;
}
