/* SPDX-License-Identifier: Apache-2.0 */
/* hubs.pml - more than one life of the hub: safety, for every order of events.
 *
 * TERM    A hub was frozen or cut off, a new one took over on the same store, and the old one still
 *         runs on its stale memory (f_*) with its stale merge plan. Every transaction compares the
 *         durable term with the hub's own, in the same transaction: the old hub's next one fails, and
 *         it ends. The guard is TERM_OK(); each mutant lets one kind of transaction pass.
 * BEHIND  The store is restored from an older backup while sites still hold checkpoints (n_*) and
 *         leases of the lost life. A HELLO that shows a checkpoint outside the head's ancestry puts
 *         the hub on hold: no grant, no merge, until the operator loads that checkpoint, whose
 *         embedded ledger is then the truth, or declares a rollback. Until such a HELLO the hub
 *         cannot know; what it does meanwhile must be safe on its own branch, no more.
 *
 * Sites, network, time and crashes as in darl.pml; one lease a delta. REACH, M_*: as there. */
#ifndef NB
#define NB 3
#endif
#ifndef NT
#define NT 3
#endif
#include "common.pml"

#define FREE(t) (lst[t] == DEAD || lst[t] == MERGED)

inline kill(t) { lst[t] = DEAD; lext[t] = 0; old = old & ~(1 << t) }
inline release(t) { avail = avail | lext[t]; kill(t) }
inline stage(t, set) { avail = (avail | lext[t]) & ~(set); lst[t] = STAGED; lext[t] = set }
inline fence_all() {
    t_ = 0;
    do
    :: t_ < NT -> if :: lst[t_] == ACTIVE || lst[t_] == STAGED -> release(t_) :: else -> kill(t_) fi; t_++
    :: else -> break
    od
}

#ifdef TERM
bit frozen = 0;                  /* an old hub still runs */
byte f_avail, f_plan;            /* its memory, as it was when it was superseded */
byte f_lst[NT], f_lext[NT];
bit moved = 0;                   /* the head moved since then: its "head = r" fails as well */
#if defined(M_TERM_VOLATILE)     /* the new hub did not make its term durable: both have the same */
#define TERM_OK(kind) true
#elif defined(M_TERM)            /* no check in one kind of transaction */
#define TERM_OK(kind) (kind == M_TERM)
#else
#define TERM_OK(kind) false
#endif
#ifdef M_NO_HEAD_CHECK
#define HEAD_OK true
#else
#define HEAD_OK !moved
#endif
#define GRANT 1
#define STAGE 2
#define RECLAIM 3
#define MERGE 4
#define DISCARD 5
inline forget() { d_step {
    frozen = 0; f_avail = 0; f_plan = 0; moved = 0; g_ = 0;
    do :: g_ < NT -> f_lst[g_] = 0; f_lext[g_] = 0; g_++ :: else -> break od; g_ = 0 } }
inline freeze() { d_step {
    frozen = 1; f_avail = avail; f_plan = plan; moved = 0; g_ = 0;
    do :: g_ < NT -> f_lst[g_] = lst[g_]; f_lext[g_] = lext[g_]; g_++ :: else -> break od; g_ = 0 } }
#endif

#ifdef BEHIND
byte head = 0;                   /* rounds below the head */
byte b_avail = ALL, b_merged, b_head; /* the backup */
byte b_lst[NT], b_lext[NT];
bit fork = 0;                    /* ghost: some site holds a checkpoint that the head does not descend from */
byte n_head, n_merged;           /* that checkpoint, with its ledger */
bit hold = 0;                    /* durable: such a checkpoint was shown, nothing is granted or merged */
bit known = 0;                   /* ghost: the same, whatever the hub has forgotten */
#ifdef M_NONCE
byte z_ext[NT];                  /* what a site of the lost life still trains under token t */
#endif
inline backup() { d_step {
    b_avail = avail; b_merged = merged; b_head = head; g_ = 0;
    do :: g_ < NT -> b_lst[g_] = lst[g_]; b_lext[g_] = lext[g_]; g_++ :: else -> break od; g_ = 0 } }
/* The head's model is now one whose ledger is set: each block once, for so check() proved it. */
inline model_is(set) { d_step {
    g_ = 0; do :: g_ < NB -> cnt[g_] = ((set) >> g_) & 1; g_++ :: else -> break od; g_ = 0 } }
inline restore() { d_step {
    if
    :: !fork && (head != b_head || merged != b_merged) -> fork = 1; n_head = head; n_merged = merged
    :: else -> skip
    fi;
    avail = b_avail; merged = b_merged; head = b_head; plan = 0; hold = 0; known = 0; g_ = 0;
    do
    :: g_ < NT ->
#ifdef M_NONCE
        if :: lst[g_] == ACTIVE && !(b_lst[g_] == ACTIVE && b_lext[g_] == lext[g_]) -> z_ext[g_] = lext[g_]
           :: else -> skip fi;
#endif
        lst[g_] = b_lst[g_]; lext[g_] = b_lext[g_]; g_++
    :: else -> break
    od; g_ = 0; model_is(merged) } }
#endif

#if !defined(BEHIND) || defined(M_BEHIND_GRANTS)
#define MAY_GRANT true
#else
#define MAY_GRANT !hold
#endif
#if !defined(BEHIND) || defined(M_BEHIND_MERGES)
#define MAY_PLAN true
#define MAY_FLIP true
#else
#define MAY_PLAN !hold
#ifdef M_HOLD_AT_PLAN_ONLY
#define MAY_FLIP true
#else
#define MAY_FLIP !hold
#endif
#endif

inline merge(set_plan) {
    t_ = 0;
    do
    :: t_ < NT ->
        if
        :: (set_plan >> t_) & 1 ->
            assert(!((old >> t_) & 1));   /* its base is in the head's ancestry */
            model_add(lext[t_]); merged = merged | lext[t_]; lst[t_] = MERGED; lext[t_] = 0
        :: else -> skip
        fi; t_++
    :: else -> break
    od;
    set_plan = 0; if :: merged == ALL -> SEE(1) :: else -> skip fi
}

active proctype world() {
    do
    :: atomic { avail != 0 && MAY_GRANT -> pick_lease(t_);
        if
        :: FREE(t_) -> pick_subset(avail);
            if
            :: m_ != 0 -> avail = avail & ~m_; kill(t_); lst[t_] = ACTIVE; lext[t_] = m_;
#ifdef BEHIND
                assert(!known);           /* nothing is granted that a known newer head may contain */
#endif
            :: else -> skip
            fi
        :: else -> skip
        fi; check() }
    :: atomic { pick_lease(t_); if :: lst[t_] == ACTIVE -> release(t_) :: else -> skip fi; check() }
    :: atomic { pick_lease(t_); pick_subset(ALL);
        if
        :: lst[t_] == ACTIVE && m_ != 0 && (m_ & ~lext[t_]) == 0 -> stage(t_, m_)
        :: lst[t_] == ACTIVE && (m_ == 0 || (m_ & ~lext[t_]) != 0) -> release(t_)
        :: else -> skip
        fi; check() }
    :: atomic { plan == 0 && MAY_PLAN -> t_ = 0;
        do
        :: t_ < NT -> if :: lst[t_] == STAGED -> if :: plan = plan | (1 << t_) :: skip fi :: else -> skip fi; t_++
        :: else -> break
        od; t_ = 0 }
    /* The hold is asked again in the transaction that flips: a plan may be older than the HELLO. */
    :: atomic { plan != 0 ->
        if
        :: MAY_FLIP ->
#ifdef BEHIND
            assert(!known); head++;       /* a round that is known to be published is not made again */
#endif
            merge(plan)
#ifdef TERM
            ; moved = frozen
#endif
        :: else -> plan = 0
        fi; check() }
    :: atomic { pick_lease(t_); if :: lst[t_] == STAGED && !((plan >> t_) & 1) -> release(t_) :: else -> skip fi; check() }
    /* crash and start of the only hub */
    :: atomic { plan = 0;
#ifdef M_HOLD_VOLATILE
        hold = 0;
#endif
        check() }

#ifdef TERM
    /* A second hub starts while the first still runs: term + 1, durable, before anything else. Of
     * two old hubs one is modelled; either may be the one. */
    :: atomic { if :: freeze() :: frozen -> skip :: !frozen -> skip fi; plan = 0; check() }
    /* The old hub tries a transaction, decided on its stale memory. */
    :: atomic { frozen -> pick_lease(t_);
        if
        :: !TERM_OK(GRANT) || !TERM_OK(STAGE) || !TERM_OK(RECLAIM) || !TERM_OK(MERGE) || !TERM_OK(DISCARD) ->
            SEE(2); forget()              /* the term differs: nothing is written, the process ends */
        :: TERM_OK(GRANT) && FREE(t_) -> pick_subset(f_avail);
            if :: m_ != 0 -> avail = avail & ~m_; lst[t_] = ACTIVE; lext[t_] = m_; f_avail = f_avail & ~m_
               :: else -> skip fi
        :: TERM_OK(STAGE) && f_lst[t_] == ACTIVE -> pick_subset(f_lext[t_]);
            if :: m_ != 0 -> lext[t_] = f_lext[t_]; stage(t_, m_); f_lst[t_] = STAGED; f_lext[t_] = m_
               :: else -> skip fi
        :: TERM_OK(RECLAIM) && f_lst[t_] == ACTIVE -> avail = avail | f_lext[t_]; kill(t_); f_lst[t_] = DEAD
        :: TERM_OK(DISCARD) && f_lst[t_] == STAGED -> avail = avail | f_lext[t_]; kill(t_); f_lst[t_] = DEAD
        :: TERM_OK(MERGE) && f_plan != 0 && HEAD_OK -> t_ = 0;
            do
            :: t_ < NT ->
                if :: (f_plan >> t_) & 1 -> model_add(f_lext[t_]); merged = merged | f_lext[t_]; lst[t_] = MERGED; lext[t_] = 0
                   :: else -> skip fi; t_++
            :: else -> break
            od; f_plan = 0
        :: else -> skip
        fi; check() }
#endif

#ifdef BEHIND
    :: atomic { backup(); check() }
    :: atomic { restore(); check() }
    /* A site shows its newest checkpoint: by hash, for the number alone may be reached again. */
    :: atomic { fork && !known ->
#ifdef M_HELLO_NUMBER
        if :: n_head > head -> hold = 1; known = 1
           :: else -> assert(false)       /* the site is let in on a head that is not its own */
        fi;
#else
        hold = 1; known = 1;
#endif
        SEE(3); check() }
    /* The operator loads the newer checkpoint: model and ledger are one object; all leases of
     * this life are fenced, all staged go. */
    :: atomic { hold ->
        SEE(4); plan = 0; t_ = 0;
#ifdef M_LOAD_KEEPS_STAGED
        do :: t_ < NT -> if :: lst[t_] == ACTIVE -> release(t_) :: else -> skip fi; t_++ :: else -> break od;
        avail = ALL & ~n_merged; t_ = 0;
        do :: t_ < NT -> if :: lst[t_] == STAGED -> avail = avail & ~lext[t_] :: else -> skip fi; t_++ :: else -> break od;
#elif defined(M_LOAD_KEEPS_LEASES)
        do :: t_ < NT -> if :: lst[t_] == STAGED -> release(t_) :: else -> skip fi; t_++ :: else -> break od;
        avail = ALL & ~n_merged; t_ = 0;
        do :: t_ < NT -> if :: lst[t_] == ACTIVE -> avail = avail & ~lext[t_] :: else -> skip fi; t_++ :: else -> break od;
#else
        fence_all(); avail = ALL & ~n_merged;
#endif
        model_is(n_merged); head = n_head;
#ifdef M_LOAD_NO_LEDGER
        avail = ALL & ~merged;
#else
        merged = n_merged;
#endif
        fork = 0; hold = 0; known = 0; n_head = 0; n_merged = 0; check() }
    /* Or declares that the older head goes on, as a new branch. */
    :: atomic { hold ->
        SEE(5); plan = 0;
#ifdef M_DECLARE_KEEPS_STAGED
        t_ = 0;
        do
        :: t_ < NT -> if :: lst[t_] == STAGED -> old = old | (1 << t_) :: lst[t_] == ACTIVE -> release(t_)
                         :: else -> kill(t_) fi; t_++
        :: else -> break
        od;
#else
        fence_all();
#endif
        fork = 0; hold = 0; known = 0; n_head = 0; n_merged = 0; check() }
#ifdef M_NONCE
    /* A site of the lost life commits under a token that was issued again: the hub books the
     * prefix of the new extent, the delta holds the old one. */
    :: atomic { pick_lease(t_);
        if :: lst[t_] == ACTIVE && z_ext[t_] != 0 && z_ext[t_] != lext[t_] ->
            model_add(z_ext[t_]); merged = merged | lext[t_]; lst[t_] = MERGED; lext[t_] = 0; z_ext[t_] = 0
           :: else -> skip fi; check() }
#endif
#endif
#ifdef REACH
    :: scene -> assert(false)
#endif
    od
}
