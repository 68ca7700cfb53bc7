/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages as data: a table of fields says name, type, place in a plain struct, range and presence of each
 * field of a message. Encoding, decoding and release of every message of wire/ go by such a table, and every
 * error names the message and the field: "start request: ranks[1].slot: missing".
 *
 * Services of several versions work together while a cluster is upgraded, node by node. Therefore a field
 * that is added to a message is FIELD_OPTIONAL or FIELD_NULL, and a service that sends a field which the
 * receiver does not know is not refused for that, unless both are of the same version (enum
 * message_strictness).
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "base/error.h"

struct message;

enum field_type {
	FIELD_STRING,  /* char *; min and max: its length in bytes, max 0: any */
	FIELD_INT,     /* int64_t; min and max: its range, both 0: any */
	FIELD_COUNT,   /* the same; older services send a list instead, whose length it is */
	FIELD_NUMBER,  /* double; integers are fine in the source */
	FIELD_BOOL,    /* bool */
	FIELD_ENUM,    /* an enum; its words are `names` */
	FIELD_INTS,    /* int64_t * and a count; min and max: the range of each */
	FIELD_STRINGS, /* char ** that ends with NULL; "" stands for null */
	FIELD_STRUCT,  /* a pointer to the struct of `message`; NULL: absent */
	FIELD_STRUCTS, /* an array of such structs and a count; max: how many, 0: any */
	/* the same as FIELD_STRUCT, but the fields of `message` are members of the very object that this
	 * field is in; they are there where the first of them is */
	FIELD_MEMBERS,
	FIELD_CODED,  /* a pointer that `codec` makes of an object; NULL: absent */
	FIELD_OBJECT, /* json_t *: an object whose members the message does not define */
};

/* What makes an object of a member and the other way, for a type that message.c does not know. So what links
 * message.c alone needs the libraries of no such type. */
struct field_codec {
	json_t *(*encode)(const void *member); /* a new reference; NULL: out of memory */
	/* `where` names the field in errors; lenient: unknown fields are left out. */
	int (*decode)(const json_t *json, const char *where, bool lenient, void **member, struct error *err);
	void (*release)(void *member); /* takes NULL */
};

enum field_presence {
	FIELD_REQUIRED,
	FIELD_OPTIONAL, /* left out where it is absent */
	FIELD_NULL,     /* null where it is absent; it may be left out, too */
	FIELD_DEFAULT,  /* always sent; where it is missing it is what is absent */
};

/* `absent` of a FIELD_NUMBER that is NaN where it is absent: it may be any number otherwise. */
#define FIELD_NAN INT64_MIN

/* An absent field is, in the struct: NULL (strings, structs, lists), false, or the integer `absent`. A list
 * without elements is absent, too, unless it is FIELD_REQUIRED. A number that is not finite is absent. */
struct field {
	const char *name;
	enum field_type type;
	enum field_presence presence;
	size_t offset;
	size_t count_offset;             /* FIELD_INTS, FIELD_STRUCTS: of a size_t */
	int64_t min, max;                /* see enum field_type */
	int64_t absent;                  /* FIELD_INT, FIELD_COUNT, FIELD_NUMBER, FIELD_ENUM */
	const char *const *names;        /* FIELD_ENUM: ends with NULL */
	int other;                       /* FIELD_ENUM: another word in a MESSAGE_OPEN; 0: that is an error */
	const struct message *message;   /* FIELD_STRUCT, FIELD_STRUCTS, FIELD_MEMBERS */
	const struct field_codec *codec; /* FIELD_CODED */
	bool varies;                     /* message_digest leaves it out */
};

/* An entry of a table: of a member that has the name of the field. */
#define MESSAGE_FIELD(STRUCT, MEMBER, TYPE, PRESENCE, ...)                                                   \
	{                                                                                                    \
		.name = #MEMBER, .type = TYPE, .presence = PRESENCE,                                         \
		.offset = offsetof(struct STRUCT, MEMBER), ##__VA_ARGS__                                     \
	}

enum message_strictness {
	/* Between services: "version", which encoding adds where the table has no such field, is that of the
	 * sender. An unknown field is an error where that is our own version, and is left out otherwise. */
	MESSAGE_VERSIONED,
	MESSAGE_STRICT, /* from users: an unknown field is an error */
	/* Answers: unknown fields are left out, and unknown words are field.other, since the controller may
	 * be a newer one. */
	MESSAGE_OPEN,
};

struct message {
	const char *name; /* in errors */
	size_t size;      /* of the struct */
	const struct field *fields;
	size_t count;
	enum message_strictness strictness; /* of a message inside of another, that of the other counts */
};

/* A new reference; NULL: out of memory, or a string is not UTF-8. */
json_t *message_encode(const struct message *message, const void *value);
/* Fills the whole struct; to be released where it succeeds. Where it fails all of it is zero. */
int message_decode(const struct message *message, const json_t *json, void *value, struct error *err);
/* Frees what the struct owns, and sets all of it to zero. */
void message_release(const struct message *message, void *value);
/* An array of such messages. *list is the caller's: message_free_list. */
json_t *message_encode_list(const struct message *message, const void *list, size_t count);
int message_decode_list(const struct message *message, const json_t *json, void **list, size_t *count,
                        struct error *err);
void message_free_list(const struct message *message, void *list, size_t count);
/* Two values of a message with the same digest have the same fields, those that vary apart. (Among 2^64
 * digests two may be equal by chance.) */
uint64_t message_digest(const struct message *message, const void *value);
/* Index of a word in names, which ends with NULL; -1: it is none of them. */
int message_word(const char *const *names, const char *word);

/* Declares the three functions of a message: struct NAME with NAME_encode, NAME_decode and NAME_release. */
#define MESSAGE_DECLARE(NAME)                                                                                \
	extern const struct message NAME##_message;                                                          \
	static inline json_t *NAME##_encode(const struct NAME *value)                                        \
	{                                                                                                    \
		return message_encode(&NAME##_message, value);                                               \
	}                                                                                                    \
	int NAME##_decode(const json_t *json, struct NAME *value, struct error *err);                        \
	static inline void NAME##_release(struct NAME *value)                                                \
	{                                                                                                    \
		message_release(&NAME##_message, value);                                                     \
	}

/* Defines NAME_decode of a message whose table says all that there is to check. */
#define MESSAGE_DEFINE_DECODE(NAME)                                                                          \
	int NAME##_decode(const json_t *json, struct NAME *value, struct error *err)                         \
	{                                                                                                    \
		return message_decode(&NAME##_message, json, value, err);                                    \
	}
