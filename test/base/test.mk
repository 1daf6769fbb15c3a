ROOMS_test/base = base
ROOMS_fuzz/check = base object wire lease outer store place hub
