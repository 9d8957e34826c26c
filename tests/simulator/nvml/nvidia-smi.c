#include <stdio.h>
int main(void) { puts("not yet"); return 9; }
