# The trainer's tests need no hub, site or network.
ROOMS_test/train = base data store outer train
ROOMS_fuzz/config = base data store outer train
ROOMS_fuzz/memory = base data store outer train
