// Steps as tracepoints of LTTng-UST.
#undef LTTNG_UST_TRACEPOINT_PROVIDER
#define LTTNG_UST_TRACEPOINT_PROVIDER trial

#undef LTTNG_UST_TRACEPOINT_INCLUDE
#define LTTNG_UST_TRACEPOINT_INCLUDE "./provider.h"

#if !defined(TRIAL_PROVIDER_H) || defined(LTTNG_UST_TRACEPOINT_HEADER_MULTI_READ)
#define TRIAL_PROVIDER_H

#include <lttng/tracepoint.h>

LTTNG_UST_TRACEPOINT_EVENT(trial, step, LTTNG_UST_TP_ARGS(unsigned int, number), LTTNG_UST_TP_FIELDS(lttng_ust_field_integer(unsigned int, number, number)))

#endif

#include <lttng/tracepoint-event.h>
