/* The next definition of `who`; and names that only look like the driver's. */
int who(void) { return 2; }
int cudnnCreate(void) { return 0; }
int cuMemAlloc_v2(void) { return -1; }
