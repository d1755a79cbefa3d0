// Steps that tools of others trace: handed to and fro by two threads, or one.    work STEPS
#include "common.h"

int main(int words, char **word)
{
	CHECK(words == 2 && dup2(memfd_create("steps", 0), FD) == FD);
	handover(atol(word[1]));
	handed_over();
	return 0;
}
