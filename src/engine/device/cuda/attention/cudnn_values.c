/* SPDX-License-Identifier: Apache-2.0 */
/* Where cuDNN's headers are at hand, what cudnn.h says of them is compared with what they say. */
#if __has_include(<cudnn_graph.h>)
#include <cudnn_graph.h>
#include <cudnn_version.h>
#endif

#include "engine/device/cuda/attention/cudnn.h"

/* An older header lacks some of them. */
#if defined(CUDNN_MAJOR) && CUDNN_MAJOR == 9 && CUDNN_MINOR >= 26
#define SAME(name, value) _Static_assert((name) == (value), #name);
CUDNN_VALUES(SAME)
#endif
