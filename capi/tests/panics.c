/* A panic in each function of the library ends at its border, as an error. As root. Argument: numbers.bpf.o. The library is built with
 * --cfg perfweave_panics. */

#include "common.h"
#include <linux/perf_event.h>

/* 1: in each function, before it does anything. 2: in each call on a buffer. */
extern int perfweave_panics;

static int broken(int got)
{
	return got == -ENOTRECOVERABLE && errno == ENOTRECOVERABLE;
}

static int nothing_made(void *made)
{
	return !made && errno == ENOTRECOVERABLE;
}

static int on_event(void *ctx, void *data, size_t size)
{
	(void)ctx, (void)data, (void)size;
	return 0;
}

/* Every function of the header. */
static void each_function(struct pw_buffer *buffer, struct pw_ring_buffer *rings, struct pw_handle *handle)
{
	struct pw_event event = { .kind = PW_GAP, .cpu = -1 };
	struct pw_stats stats;
	struct pw_account account;
	struct perf_event_attr attr = { .size = sizeof(attr) };
	int event_fd = 0;
	void *base;
	size_t size;

	CHECK(pw_version() && pw_last_error());
	CHECK(nothing_made(pw_buffer__new(map("events"), 0, NULL, NULL, NULL, NULL)));
	CHECK(nothing_made(pw_ring_buffer__new(map("ring"), NULL, NULL, NULL)));
	CHECK(nothing_made(pw_buffer__handle(buffer)));
	CHECK(broken(pw_buffer__poll(buffer, 0)) && broken(pw_buffer__consume(buffer)) && broken(pw_buffer__epoll_fd(buffer)));
	CHECK(broken(pw_buffer__timeout(buffer)) && broken(pw_buffer__next(buffer, 0, &event, sizeof(event))));
	CHECK(broken(pw_buffer__batch(buffer, 0, &event, sizeof(event), 1)) && broken(pw_buffer__flush(buffer)));
	CHECK(broken(pw_buffer__stats(buffer, &stats, sizeof(stats))));
	CHECK(broken(pw_buffer__ledger(buffer, &account, sizeof(account), 1)));
	CHECK(nothing_made(pw_buffer__adopt(&event_fd, 4096, &attr, NULL, NULL, NULL, NULL)) && broken(pw_buffer__pin(buffer, "none")));
	CHECK(broken(pw_buffer__consume_buffer(buffer, 0)) && broken(pw_buffer__drain_unordered(buffer)) && broken(pw_buffer__readable(buffer)));
	CHECK(broken(pw_buffer__buffer(buffer, 0, &base, &size)) && broken(pw_buffer__buffer_fd(buffer, 0)) && broken(pw_buffer__buffer_cnt(buffer)));
	CHECK(broken(pw_ring_buffer__poll(rings, 0)) && broken(pw_ring_buffer__consume(rings)));
	CHECK(broken(pw_ring_buffer__epoll_fd(rings)) && broken(pw_ring_buffer__add(rings, map("other"), NULL, NULL)));
	CHECK(pw_ring_buffer__buffer(rings) == (void *)rings);
	CHECK(broken(pw_handle__flush(handle)) && broken(pw_handle__close(handle)) && broken(pw_handle__set_deadline(handle, -1)));
	CHECK(broken(pw_handle__pause(handle, PW_PAUSE_OUTPUT)) && broken(pw_handle__pause(handle, 9)) && broken(pw_handle__resume(handle)));
	errno = 0;
	pw_print_notice(NULL, &event);
	CHECK(errno == ENOTRECOVERABLE);
	errno = 0;
	pw_buffer__free(NULL);
	CHECK(errno == ENOTRECOVERABLE);
	errno = 0;
	pw_ring_buffer__free(NULL);
	CHECK(errno == ENOTRECOVERABLE);
	errno = 0;
	pw_handle__free(NULL);
	CHECK(errno == ENOTRECOVERABLE);
}

int main(int argc, char **argv)
{
	struct pw_buffer *buffer;
	struct pw_ring_buffer *rings;
	struct pw_handle *handle;
	struct pw_stats stats;

	CHECK(argc == 2);
	load(argv[1]);
	buffer = pw_buffer__new(map("events"), 0, NULL, NULL, NULL, NULL);
	rings = pw_ring_buffer__new(map("ring"), on_event, NULL, NULL);
	handle = buffer ? pw_buffer__handle(buffer) : NULL;
	CHECK(handle && rings);
	perfweave_panics = 1;
	each_function(buffer, rings, handle);
	perfweave_panics = 0;
	CHECK(strstr(pw_last_error(), "a fault of the library: asked for"));
	/* No call got as far as the buffers. */
	CHECK(pw_buffer__poll(buffer, 0) >= 0 && pw_ring_buffer__poll(rings, 0) >= 0);

	/* In a call: nobody knows what it left half done, and each later call says so. */
	perfweave_panics = 2;
	CHECK(broken(pw_buffer__poll(buffer, 0)) && broken(pw_ring_buffer__poll(rings, 0)));
	perfweave_panics = 0;
	CHECK(broken(pw_buffer__consume(buffer)) && strstr(pw_last_error(), "free it"));
	CHECK(broken(pw_buffer__stats(pw_ring_buffer__buffer(rings), &stats, sizeof(stats))));
	CHECK(!pw_handle__flush(handle));
	pw_handle__free(handle);
	pw_buffer__free(buffer);
	pw_ring_buffer__free(rings);
	/* Others can be made. */
	buffer = pw_buffer__new(map("events"), 0, NULL, NULL, NULL, NULL);
	CHECK(buffer && pw_buffer__poll(buffer, 0) >= 0);
	pw_buffer__free(buffer);
	puts("panics: each is an error");
	return 0;
}
