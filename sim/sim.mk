# SPDX-License-Identifier: Apache-2.0
# The simulator as a program of its own, from the pure files of the rooms it runs, and the same with
# planted faults: see docs/simulation.md.

SIM_ROOMS := base wire lease outer hub site
SIM_SOURCES := $(filter-out %/client_os.c,$(foreach r,base wire lease outer,$(wildcard src/$r/*.c))) \
  $(filter-out %_os.c,$(wildcard src/hub/*.c src/site/*.c)) src/cli/cli.c $(wildcard sim/*.c)

$(B)/sim: $(SIM_SOURCES:%.c=$(B)/obj/%.o)
	@echo "  LINK    $@"
	@$(CC) $(LDFLAGS_ALL) $^ $(LIBS) -o $@.$$$$.tmp && mv -f $@.$$$$.tmp $@

# Every file again, with the switch; objects and program lie apart from all others.
MUTANT_OBJECTS := $(SIM_SOURCES:%.c=build/mutants/obj/%.o)
build/mutants/obj/%.o: %.c $(B)/flags
	@mkdir -p $(@D)
	@$(CC) $(CFLAGS_ALL) $(WARNINGS) $(WERROR_FLAG) $(CPPFLAGS_ALL) $(PC_CFLAGS) -DBRG_MUTANTS \
	  -include sim/mutants.h $(FLAGS_$<) -MMD -MP -c $< -o $@
build/mutants/sim: $(MUTANT_OBJECTS)
	@echo "  LINK    $@"
	@$(CC) $(LDFLAGS_ALL) $^ $(LIBS) -o $@
-include $(MUTANT_OBJECTS:.o=.d)

.PHONY: mutants
mutants: build/mutants/sim
	@build/mutants/sim --mutants $(MUTANT_ARGS)
