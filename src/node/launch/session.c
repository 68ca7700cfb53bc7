/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions of PAM, by functions of libpam that are looked up when they are needed. */
#include "node/launch/session.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>

#include "base/file.h"
#include "base/str.h"

/* The interface of libpam.so.0, which is fixed. */
enum { PAM_SUCCESS = 0, PAM_CONV_ERR = 19, PAM_SILENT = 0x8000 };

struct pam_message;
struct pam_response;

struct pam_conversation {
	int (*ask)(int count, const struct pam_message **messages, struct pam_response **answers,
	           void *context);
	void *context;
};

struct session {
	void *library, *handle;
	int (*start)(const char *service, const char *user, const struct pam_conversation *,
	             const char *directory, void **handle);
	int (*account)(void *handle, int flags);
	int (*open)(void *handle, int flags);
	int (*close)(void *handle, int flags);
	int (*end)(void *handle, int status);
	const char *(*error)(void *handle, int code);
};

static const char SERVICE[] = "dtrain", DIRECTORY[] = "/etc/pam.d";

/* There is no terminal on which a question could be answered. */
static int refuse(int count, const struct pam_message **messages, struct pam_response **answers,
                  void *context)
{
	return PAM_CONV_ERR;
}

static int load(struct session *s, struct error *err)
{
	const struct {
		void *function;
		const char *name;
	} symbols[] = {
	    {&s->start, "pam_start_confdir"}, {&s->account, "pam_acct_mgmt"}, {&s->open, "pam_open_session"},
	    {&s->close, "pam_close_session"}, {&s->end, "pam_end"},           {&s->error, "pam_strerror"},
	};

	s->library = dlopen("libpam.so.0", RTLD_NOW | RTLD_LOCAL);
	if (!s->library)
		return error_set(err, -ENOENT, "%s/%s is there, but libpam cannot be loaded: %s", DIRECTORY,
		                 SERVICE, dlerror());
	for (size_t i = 0; i < ARRAY_SIZE(symbols); i++) {
		*(void **)symbols[i].function = dlsym(s->library, symbols[i].name);
		if (!*(void **)symbols[i].function)
			return error_set(err, -ENOENT, "libpam has no %s: Linux-PAM 1.4 or newer is needed",
			                 symbols[i].name);
	}
	return 0;
}

static int fail(struct session *s, int code, const char *user, struct error *err)
{
	return error_set(err, -EACCES, "PAM opens no session for %s, as %s/%s has it: %s", user, DIRECTORY,
	                 SERVICE, s->error(s->handle, code));
}

int session_open(const char *directory, const char *user, struct session **out, struct error *err)
{
	static const struct pam_conversation conversation = {refuse, NULL};
	_cleanup_free_ char *file = str_path_join(directory ? directory : DIRECTORY, SERVICE);
	_cleanup_(session_closep) struct session *s = NULL;
	int r;

	*out = NULL;
	if (!file)
		return error_oom(err);
	if (!file_exists(file))
		return 0;
	s = calloc(1, sizeof(*s));
	if (!s)
		return error_oom(err);
	r = load(s, err);
	if (r < 0)
		return r;
	r = s->start(SERVICE, user, &conversation, directory, &s->handle);
	if (r != PAM_SUCCESS) {
		s->handle = NULL;
		return error_set(err, -EACCES, "PAM cannot be used, as %s has it (status %d)", file, r);
	}
	if ((r = s->account(s->handle, PAM_SILENT)) != PAM_SUCCESS ||
	    (r = s->open(s->handle, PAM_SILENT)) != PAM_SUCCESS) {
		r = fail(s, r, user, err);
		s->end(s->handle, PAM_SUCCESS);
		s->handle = NULL;
		return r;
	}
	*out = steal_pointer(s);
	return 0;
}

void session_close(struct session *s)
{
	if (!s)
		return;
	if (s->handle) {
		s->close(s->handle, PAM_SILENT);
		s->end(s->handle, PAM_SUCCESS);
	}
	/* Modules of PAM may have started threads: the library stays loaded. */
	free(s);
}
