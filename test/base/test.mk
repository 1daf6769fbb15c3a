ROOMS_test/base = base
