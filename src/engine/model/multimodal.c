/* SPDX-License-Identifier: Apache-2.0 */
/* The table of multimodal models, and how files name the parameters of their language models. */
#include "engine/model/multimodal.h"

#include <stdio.h>
#include <string.h>

#include "base/str.h"

#define HEAD  "lm_head.weight"
#define OWN   "model."
#define WHOLE "model.language_model."

static const struct multimodal models[] = {
    {"gemma3", "gemma3_text", NULL, "Gemma3ForConditionalGeneration", MULTIMODAL_LLAVA, false},
    {"mistral3", NULL, "mistral", "Mistral3ForConditionalGeneration", MULTIMODAL_LLAVA, false},
    {"llava", NULL, "llama", "LlavaForConditionalGeneration", MULTIMODAL_LLAVA, true},
    {"internvl", NULL, "qwen2", "InternVLForConditionalGeneration", MULTIMODAL_LLAVA, false},
    {"qwen2_vl", "qwen2_vl_text", NULL, "Qwen2VLForConditionalGeneration", MULTIMODAL_QWEN2_VL, true},
    {"qwen2_5_vl", "qwen2_vl_text", NULL, "Qwen2_5_VLForConditionalGeneration", MULTIMODAL_QWEN2_VL, true},
    {"qwen3_5", "qwen3_5_text", NULL, "Qwen3_5ForConditionalGeneration", MULTIMODAL_QWEN3_VL, false},
    {"qwen3_vl", "qwen3_vl_text", NULL, "Qwen3VLForConditionalGeneration", MULTIMODAL_QWEN3_VL, false},
};

/* What files have in place of WHOLE and HEAD. */
static const struct {
	const char *prefix, *head;
} forms[] = {
    [MULTIMODAL_LLAVA] = {"language_model.model.", "language_model." HEAD},
    [MULTIMODAL_QWEN2_VL] = {OWN, HEAD},
    [MULTIMODAL_QWEN3_VL] = {WHOLE, HEAD},
};

const struct multimodal *multimodal_find(const char *model_type)
{
	for (size_t i = 0; i < ARRAY_SIZE(models); i++)
		if (str_eq(models[i].name, model_type))
			return &models[i];
	return NULL;
}

void multimodal_name(const char *name, char *buf, size_t size)
{
	if (str_starts(name, OWN))
		snprintf(buf, size, WHOLE "%s", name + strlen(OWN));
	else
		snprintf(buf, size, "%s", name);
}

void multimodal_saved_name(enum model_multimodal naming, const char *name, char *buf, size_t size)
{
	if (str_starts(name, OWN))
		snprintf(buf, size, "%s%s", forms[naming].prefix, name + strlen(OWN));
	else
		snprintf(buf, size, "%s", str_eq(name, HEAD) ? forms[naming].head : name);
}

bool multimodal_is_named(const char *name)
{
	return str_starts(name, WHOLE);
}

bool multimodal_other_name(const char *name, int i, char *buf, size_t size)
{
	bool head = str_eq(name, HEAD);

	if ((!head && !multimodal_is_named(name)) || i >= (int)(head ? 1 : ARRAY_SIZE(forms) - 1))
		return false;
	/* MULTIMODAL_NONE has no form; that of MULTIMODAL_QWEN3_VL is the name itself. */
	if (head)
		snprintf(buf, size, "%s", forms[MULTIMODAL_LLAVA].head);
	else
		snprintf(buf, size, "%s%s", forms[i + 1].prefix, name + strlen(WHOLE));
	return true;
}

bool multimodal_parameter_name(const char *tensor, char *buf, size_t size)
{
	static const char *const own[] = {OWN "layers.", OWN "embed_tokens.", OWN "norm."};

	if (str_eq(tensor, HEAD) || str_eq(tensor, forms[MULTIMODAL_LLAVA].head)) {
		snprintf(buf, size, "%s", HEAD);
		return true;
	}
	for (size_t i = 0; i < ARRAY_SIZE(own); i++)
		if (str_starts(tensor, own[i])) {
			multimodal_name(tensor, buf, size);
			return true;
		}
	for (size_t i = 1; i < ARRAY_SIZE(forms); i++)
		if (i != MULTIMODAL_QWEN2_VL && str_starts(tensor, forms[i].prefix)) {
			snprintf(buf, size, WHOLE "%s", tensor + strlen(forms[i].prefix));
			return true;
		}
	return false;
}
