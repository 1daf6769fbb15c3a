/* SPDX-License-Identifier: Apache-2.0 */
/* mutant.h - faults that are planted on purpose, to find out whether the tests would see them.
 *
 *   if (done > a->count && !MUTANT(NO_CONTAINMENT)) return LEASE_TOO_LONG;
 *
 * In every build but one MUTANT() is the constant false and leaves no code behind. `make mutants`
 * builds the simulator with BRG_MUTANTS, where one fault at a time is switched on; each must be
 * found, see docs/simulation.md, which has the list and what each breaks. */
#ifndef BASE_MUTANT_H
#define BASE_MUTANT_H

#ifdef BRG_MUTANTS /* sim/mutants.h, which has the list, comes with that build's flags */
#define MUTANT(name) (mutant_now == MUTANT_##name)
#else
#define MUTANT(name) (0)
#endif

#endif
