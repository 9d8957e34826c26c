int nvmlInit_v2(void); int nvmlInit_v2(void) { return 9; }
