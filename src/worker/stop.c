/* SPDX-License-Identifier: Apache-2.0 */
/* Signals that ask the worker to stop: at once before the first step, between two steps afterwards. */
#include "worker/stop.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

/* These have to be global: a handler receives nothing but the number of the signal. */
static volatile sig_atomic_t received, deferred;

static void on_signal(int number)
{
	static const char words[] = "stopped before the first step\n";

	received = number;
	if (!deferred) {
		/* The exit status says it as well, in case the log is full or gone. */
		if (write(STDOUT_FILENO, words, sizeof(words) - 1) < 0)
			_exit(128 + number);
		_exit(128 + number);
	}
}

void stop_init(void)
{
	struct sigaction sa = {.sa_handler = on_signal, .sa_flags = SA_RESTART};

	sigemptyset(&sa.sa_mask);
	sigaction(SIGTERM, &sa, NULL);
	sigaction(SIGINT, &sa, NULL);
	signal(SIGPIPE, SIG_IGN);
	signal(SIGXFSZ, SIG_IGN); /* then writing fails with an error message */
}

void stop_defer(bool defer)
{
	deferred = defer;
	/* A signal that arrived between two instructions of the caller. */
	if (!defer && received)
		_exit(128 + received);
}

int stop_signal(void)
{
	return received;
}

int stop_exit_status(void)
{
	/* Another rank may have received the signal instead. */
	return 128 + (received ? received : SIGTERM);
}

bool stop_requested(void *none)
{
	return received != 0;
}
