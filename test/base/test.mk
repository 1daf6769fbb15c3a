ROOMS_test/base = base
ROOMS_fuzz/check = base wire lease outer store place hub
