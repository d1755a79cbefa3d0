/* Numbers for readers that are programs of their own: pins the map, and writes once a line comes on standard input. As root.
 * Arguments: numbers.bpf.o PATH. */

#include "common.h"

int main(int argc, char **argv)
{
	char line[16];

	CHECK(argc == 3);
	load(argv[1]);
	unlink(argv[2]);
	CHECK(!bpf_obj_pin(map("events"), argv[2]));
	puts("pinned");
	fflush(stdout);
	/* Now the reader is there. */
	CHECK(fgets(line, sizeof(line), stdin));
	begin(PERF);
	emit(500);
	/* Numbers that are not written, bytes that are no record. */
	begin(PERF | SKIP);
	emit(50);
	begin(PERF | DAMAGE);
	emit(2);
	puts("half");
	fflush(stdout);
	/* Now the reader stands still: more than the rings hold. */
	CHECK(fgets(line, sizeof(line), stdin));
	begin(PERF);
	emit(20000);
	CHECK(!unlink(argv[2]));
	puts("written");
	return 0;
}
