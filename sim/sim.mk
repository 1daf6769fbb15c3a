# SPDX-License-Identifier: Apache-2.0
# The simulator as a program of its own, from the pure files of the rooms it runs, and the same with
# planted faults: see docs/simulation.md.

SIM_SOURCES := $(filter-out %/client_os.c %/mail_os.c,$(foreach r,base wire lease outer,$(wildcard src/$r/*.c))) \
  $(filter-out %_os.c,$(wildcard src/object/*.c src/hub/*.c src/site/*.c)) src/cli/cli.c $(wildcard sim/*.c)

$(B)/sim: $(SIM_SOURCES:%.c=$(B)/obj/%.o) $(B)/obj/sim-many.o
	@echo "  LINK    $@"
	@$(CC) $(LDFLAGS_ALL) $^ $(LIBS) -o $@.$$$$.tmp && mv -f $@.$$$$.tmp $@

# The same with room for a thousand sites, all names but one hidden, for the program and for $(B)/sim.
SIM_MANY_OBJECTS := $(patsubst sim/%.c,$(B)/obj/sim-many/%.o,$(filter-out sim/main.c,$(wildcard sim/*.c)))
$(B)/obj/sim-many/%.o: sim/%.c $(B)/flags
	@mkdir -p $(@D)
	@echo "  CC      $< (many)"
	@$(CC) $(CFLAGS_ALL) $(WARNINGS) $(WERROR_FLAG) $(CPPFLAGS_ALL) $(PC_CFLAGS) -DSIM_MANY $(FLAGS_$<) \
	  -MMD -MP -MT $@ -MF $(@:.o=.d) -c $< -o $@.$$$$.tmp && mv -f $@.$$$$.tmp $@
SIM_MANY_OBJECT := $(B)/obj/sim-many.o
$(SIM_MANY_OBJECT): $(SIM_MANY_OBJECTS)
	@ld -r $^ -o $@.$$$$.tmp && objcopy --keep-global-symbol=cmd_sim_many $@.$$$$.tmp && mv -f $@.$$$$.tmp $@
-include $(SIM_MANY_OBJECTS:.o=.d)

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
