/* gate.h for Fortran. */
#include "gate.h"

void reach(const char *name, int rank) { gate_reach(name, rank); }
