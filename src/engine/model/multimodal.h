/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Multimodal models, of which the language model is trained, and read, alone: its configuration is
 * text_config in that of the whole, and its parameters lie among those of the other parts, such as a vision
 * tower. What transformers calls them is model.language_model.…; files have one of several names.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "engine/model/model_config.h"

struct multimodal {
	const char *name;   /* model_type of the whole */
	const char *family; /* of text_config; NULL: its own model_type says so, or where it has none: */
	const char *default_family;
	const char *architecture; /* the class that transformers loads */
	enum model_multimodal naming;
	bool ties_either; /* the head is tied where text_config or the whole says so */
};

/* NULL: a model_type that is none of these. */
const struct multimodal *multimodal_find(const char *model_type);

/* The name of a parameter of the language model as that of the whole, and in the files that are written, from
 * its name in a model of its own: "model.language_model.layers.0…" and "language_model.model.layers.0…". A
 * name that is neither the head's nor begins with "model." stays. */
void multimodal_name(const char *name, char *buf, size_t size);
void multimodal_saved_name(enum model_multimodal naming, const char *name, char *buf, size_t size);

/* Whether a parameter has the name that multimodal_name makes. */
bool multimodal_is_named(const char *name);
/* The i-th other name under which files may have a parameter of that name; false: there are no more. The head
 * has such names, too, whatever the model. */
bool multimodal_other_name(const char *name, int i, char *buf, size_t size);
/* The name as multimodal_name makes it of a tensor's in a file of a multimodal model; false: it is one of
 * another part. */
bool multimodal_parameter_name(const char *tensor, char *buf, size_t size);
