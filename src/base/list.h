/* SPDX-License-Identifier: Apache-2.0 */
/* Doubly linked lists through two members of their elements, prev and next. Of a list itself there is a
 * pointer to its first element, NULL where it is empty; it owns nothing. */
#pragma once

#include <stddef.h>

/* Puts an element that is in no list before the first one. */
#define list_push(first, element)                                                                            \
	do {                                                                                                 \
		__typeof__(first) *first_ = &(first);                                                        \
		__typeof__(element) element_ = (element);                                                    \
		element_->prev = NULL;                                                                       \
		element_->next = *first_;                                                                    \
		if (element_->next)                                                                          \
			element_->next->prev = element_;                                                     \
		*first_ = element_;                                                                          \
	} while (0)

/* The element is in this list; its own prev and next stay as they are. */
#define list_remove(first, element)                                                                          \
	do {                                                                                                 \
		__typeof__(element) element_ = (element);                                                    \
		if (element_->prev)                                                                          \
			element_->prev->next = element_->next;                                               \
		else                                                                                         \
			(first) = element_->next;                                                            \
		if (element_->next)                                                                          \
			element_->next->prev = element_->prev;                                               \
	} while (0)
