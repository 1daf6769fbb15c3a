/* SPDX-License-Identifier: Apache-2.0 */
/* common.pml - what both models of DARL share: the state of the store, the choices of the
 * adversary, and the invariants that every transaction must leave true.
 *
 * A slot of the lease table is DEAD (never granted, reclaimed, returned, rejected or fenced: all of
 * them answer a late COMMIT with a rejection that changes nothing, so one state stands for all),
 * ACTIVE, STAGED or MERGED. A slot is given out again once nothing can be asked of it any more, so
 * NT bounds the leases that are alive at one time, not those ever granted; crashes and rollbacks
 * are not bounded at all. A real token is never used twice; a message for a token whose slot was
 * given out again finds no row and changes nothing, and is no move of the model. */
#define ALL ((1 << NB) - 1)
#define DEAD 0
#define ACTIVE 1
#define STAGED 2
#define MERGED 3

byte avail = ALL, merged = 0;   /* durable: sets of blocks, one bit each */
byte lst[NT], lext[NT];         /* durable: lease state; extent, the manifest once it is staged */
byte cnt[NB];                   /* ghost: how often the head's model contains block b */
byte plan = 0;                  /* volatile: leases of the merge that is being computed */
byte old = 0;                   /* ghost: live leases from before a rollback or a load */
#ifdef REACH
bit scene = 0;                  /* ghost: the scene REACH was seen */
#define SEE(n) if :: n == REACH -> scene = 1 :: else -> skip fi
#else
#define SEE(n) skip             /* kept out of the state, which it would multiply */
#endif
byte t_, u_, m_, g_, acc_;      /* scratch within one transaction, 0 between two */

inline pick_lease(t) { t = 0; do :: t < NT - 1 -> t++ :: break od }
/* any subset of set, the empty one too */
inline pick_subset(set) {
    m_ = 0; g_ = 0;
    do
    :: g_ < NB -> if
                  :: ((set) >> g_) & 1 -> if :: m_ = m_ | (1 << g_) :: skip fi
                  :: else -> skip
                  fi; g_++
    :: else -> break
    od
}
inline model_add(set) { d_step {
    g_ = 0; do :: g_ < NB -> cnt[g_] = cnt[g_] + (((set) >> g_) & 1); g_++ :: else -> break od; g_ = 0 } }
inline model_sub(set) { d_step {
    g_ = 0; do :: g_ < NB -> cnt[g_] = cnt[g_] - (((set) >> g_) & 1); g_++ :: else -> break od; g_ = 0 } }

/* I1, I2, I4, I5, I8 and I9, at every transaction boundary */
inline check() { d_step {
    g_ = 0;
    do
    :: g_ < NB -> assert(cnt[g_] <= 1);                           /* never twice in the model */
                  assert((cnt[g_] == 1) == ((merged >> g_) & 1)); /* I5: the ledger is the model */
                  g_++
    :: else -> break
    od;
    assert((avail & merged) == 0);
    g_ = 0; acc_ = avail | merged;
    do
    :: g_ < NT -> if
                  :: lst[g_] == ACTIVE || lst[g_] == STAGED ->
                      assert((acc_ & lext[g_]) == 0);             /* I1, I2, I4: one owner */
                      acc_ = acc_ | lext[g_]
                  :: else -> skip
                  fi; g_++
    :: else -> break
    od;
    assert(acc_ == ALL);                                          /* I8: nothing is lost */
#ifdef EPOCHS
    assert(!(sealed & 1) || (merged & E0) == E0);                 /* I9, for each epoch */
    assert(!(sealed & 2) || (merged & E1) == E1);
#endif
    g_ = 0; acc_ = 0; t_ = 0; u_ = 0; m_ = 0 } }
