/* The protocol, for the model checker SPIN: every interleaving of three acquisitions.
 *
 * Each client is one acquisition: the lock service grants it a token of its own choosing, it is
 * admitted, reads and writes in one or two transactions, and may stop for ever between any two
 * statements. The lock service is the worst there can be: it grants everybody, and hands out
 * tokens in any order, the same one as often as it likes. What must keep the data right is
 * PostgreSQL alone.
 *
 * What stands for what:
 *   token, holder, exists   the row of the table fencing.fence, as committed
 *   floor                   what pruning has left of it
 *   exclusive, shared       the resource's advisory lock: of an admission; of transactions
 *   kept                    FOR SHARE locks on the row, of guards
 *   value, writing          the guarded row: how often it was written, as committed; its row lock
 *
 * A step of a process is what PostgreSQL does at one moment. A lock that another has is waited
 * for. READ COMMITTED sees what is committed at each statement, REPEATABLE READ what was committed
 * when the first statement began, and fails (40001) where it should lock or write what has changed
 * since; SERIALIZABLE refuses more, never less. Locks that are taken one after the other, with
 * nothing in between, are taken in one step unless one has to be waited for: taking one earlier
 * than that only keeps others from what they could have done before.
 *
 * What is left out: more than one transaction of a holder at a time, connections that are used
 * again, eviction and limits (a process stops, and its connection is closed then), several
 * databases, crashes of the server, and what the lock service itself does to keep order.
 *
 * Define one of the mutants below to see it violate an invariant: tests/model/test_model.py does.
 *   ANY_TOKEN        an admission accepts a token below the mark
 *   LOWER_TOKEN      ... one that nobody was admitted under
 *   EQUAL_TOKEN      an admission accepts the mark's own token from another holder
 *   NO_FOR_SHARE     the guard reads the fence without locking it
 *   NO_COMPARISON    the guard asks only whether the transaction presented a lease
 *   FIRST_ONLY       an UPDATE that moves a row is checked under its lower resource only
 *   LAST_ONLY        ... under its higher resource only
 *   NEW_TOKEN        a lease that was admitted is given another token
 *   LATE_ENTRY       a lease is presented in a transaction that has read before its admission
 *   HELD_MEANWHILE   a transaction under one lease is open while the other is admitted
 *   EARLY_FLOOR      an admission reads the floor before it has the lock
 */

#define CLIENTS 3
#define RESOURCES 2
#ifndef TOKENS
#define TOKENS 3
#endif
#define PRUNER (CLIENTS + 1)
#define BIT(x) (1 << (x))
#define HAS(set, r) ((set) & BIT(r))

byte token[RESOURCES], holder[RESOURCES], floor[RESOURCES];
bool exists[RESOURCES];
byte exclusive[RESOURCES], shared[RESOURCES], kept[RESOURCES];
byte value[RESOURCES], writing[RESOURCES];

/* For the invariants: the token of the last accepted write, and whose each token is. */
byte newest[RESOURCES];
typedef Holders { byte who[TOKENS + 1] };
Holders admitted[RESOURCES];

/* Assertions have names, since SPIN reports what is between the parentheses. */
bool I1_tokens_never_decrease, I2_none_after_a_newer_admission, I3_no_update_is_lost;
bool I4_reads_see_what_was_accepted, I5_one_holder_a_token, I6_none_without_a_lease;

/* In one moment, as all that is in an atomic. */
inline take_snapshot() {
  s_token[0] = token[0]; s_holder[0] = holder[0]; s_exists[0] = exists[0]; s_value[0] = value[0];
  s_token[1] = token[1]; s_holder[1] = holder[1]; s_exists[1] = exists[1]; s_value[1] = value[1];
}

/* What is not needed any more is forgotten: states that differ in it only are the same. */
inline forget_snapshot() {
  s_token[0] = 0; s_holder[0] = 0; s_exists[0] = 0; s_value[0] = 0;
  s_token[1] = 0; s_holder[1] = 0; s_exists[1] = 0; s_value[1] = 0;
  repeatable = false
}

#define PRESENTED(r) (exists[r] && token[r] == mine[r] && holder[r] == me)
#define PRESENTED_THEN(r) (s_exists[r] && s_token[r] == mine[r] && s_holder[r] == me)
#define CHANGED(r) (exists[r] != s_exists[r] || token[r] != s_token[r] || holder[r] != s_holder[r])

inline end_transaction() {
  shared[0] = shared[0] & ~BIT(me); kept[0] = kept[0] & ~BIT(me);
  shared[1] = shared[1] & ~BIT(me); kept[1] = kept[1] & ~BIT(me);
  if :: writing[0] == me -> writing[0] = 0 :: else fi;
  if :: writing[1] == me -> writing[1] = 0 :: else fi;
  forget_snapshot()
}

inline some_token(which, least) {
  mine[which] = least;
  do
  :: mine[which] < TOKENS -> mine[which] = mine[which] + 1
  :: break
  od
}

#ifdef EARLY_FLOOR
#define FLOOR(r) seen_floor
#define SEE_FLOOR(r) seen_floor = floor[r]
#else
#define FLOOR(r) floor[r]
#define SEE_FLOOR(r) skip
#endif
#define MARK(r) (exists[r] -> token[r] : FLOOR(r))

/* Admission: the exclusive lock, the comparison, the change, its commit. Nobody else changes the
 * row between the comparison and the change, as all who change it have the lock. */
inline admission(r) {
  do
  :: atomic { HAS(leases, r) -> SEE_FLOOR(r) };
    atomic {
      exclusive[r] == 0 && (shared[r] & ~BIT(me)) == 0;
      mark = MARK(r);
      if
#ifdef ANY_TOKEN
      :: mine[r] < mark
#endif
#ifdef LOWER_TOKEN
      :: mine[r] < mark && admitted[r].who[mine[r]] == 0
#endif
#ifdef EQUAL_TOKEN
      :: mine[r] == mark
#endif
      :: mine[r] > mark
      :: mine[r] <= mark && mark < TOKENS ->
        /* Healed: the lock service raises the token of a lease that was never admitted. */
        mark = mark + 1;
        some_token(r, mark)
      :: mine[r] <= mark -> goto stopped
      fi;
      mark = 0;
      exclusive[r] = me
    };
    atomic {
      kept[r] == 0;                       /* who keeps the row shares the lock, too */
      token[r] = mine[r]; holder[r] = me; exists[r] = true; exclusive[r] = 0;
      before[r] = value[r];
      I5_one_holder_a_token = admitted[r].who[mine[r]] == 0 || admitted[r].who[mine[r]] == me;
#ifndef LOWER_TOKEN                          /* which breaks this one, too */
      assert(I5_one_holder_a_token);
#endif
      admitted[r].who[mine[r]] = me;
      break
    }
  :: !HAS(leases, r) -> break
  od
}

/* Entry, for one lease: the lock that admissions wait for. */
inline share(r) {
  if
  :: !HAS(leases, r)
  :: HAS(leases, r) && exclusive[r] == 0 -> shared[r] = shared[r] | BIT(me)
  fi
}

/* An UPDATE of the row of one resource; its trigger comes when the statement is done. */
inline write(r) {
  if
  :: !HAS(writes, r)
  :: HAS(writes, r) && (writing[r] == 0 || writing[r] == me) ->
    if
    :: repeatable && value[r] != s_value[r] -> goto stopped     /* 40001 */
    :: else -> writing[r] = me
    fi
  fi
}

#if defined(NO_COMPARISON)
#define REFUSED(r) false
#define KEEP(r) skip
#elif defined(NO_FOR_SHARE)
#define REFUSED(r) !(repeatable -> PRESENTED_THEN(r) : PRESENTED(r))
#define KEEP(r) skip
#else
#define REFUSED(r) ((repeatable && CHANGED(r)) || !PRESENTED(r))  /* 40001, or ours */
#define KEEP(r) kept[r] = kept[r] | BIT(me)
#endif

#if defined(FIRST_ONLY)
#define CHECKED(r) (HAS(writes, r) && (r == 0 || writes != 3))
#elif defined(LAST_ONLY)
#define CHECKED(r) (HAS(writes, r) && (r == 1 || writes != 3))
#else
#define CHECKED(r) HAS(writes, r)
#endif

inline guard(r) {
  if
  :: !CHECKED(r)
  :: CHECKED(r) && !HAS(leases, r) -> goto stopped               /* nothing presented for it */
  :: CHECKED(r) && HAS(leases, r) ->
    if
    :: REFUSED(r) -> goto stopped
    :: else -> KEEP(r)
    fi
  fi
}

/* Both resources: what was read is at least what had been accepted when the lease was admitted. */
inline check_reads() {
  I4_reads_see_what_was_accepted =
    (!HAS(leases, 0) || read[0] >= before[0]) && (!HAS(leases, 1) || read[1] >= before[1]);
  assert(I4_reads_see_what_was_accepted);
  before[0] = 0; before[1] = 0
}

inline accept(r) {
  if
  :: HAS(writes, r) ->
    I6_none_without_a_lease = HAS(leases, r) != 0;
    assert(I6_none_without_a_lease);
    I1_tokens_never_decrease = mine[r] >= newest[r];
    assert(I1_tokens_never_decrease);
    I2_none_after_a_newer_admission = PRESENTED(r);
    assert(I2_none_after_a_newer_admission);
    I3_no_update_is_lost = value[r] == read[r];
    assert(I3_no_update_is_lost);
    newest[r] = mine[r];
    value[r] = read[r] + 1
  :: else
  fi
}

proctype Client(byte me; byte leases; byte writes) {
  byte mine[RESOURCES], read[RESOURCES], before[RESOURCES], mark;
  byte s_token[RESOURCES], s_holder[RESOURCES], s_value[RESOURCES];
  bool s_exists[RESOURCES];
  bool repeatable, has_read;
#ifdef EARLY_FLOOR
  byte seen_floor;
#endif

  atomic {
    if :: HAS(leases, 0) -> some_token(0, 1) :: else fi;
    if :: HAS(leases, 1) -> some_token(1, 1) :: else fi;
#ifdef LATE_ENTRY
    read[0] = value[0]; read[1] = value[1]; has_read = true
#endif
  }
#ifdef HELD_MEANWHILE
  if
  :: me == 1 -> admission(0); atomic { share(0) }; admission(1)
  :: else -> admission(1); atomic { share(1) }; admission(0)
  fi;
#else
  admission(0);
  admission(1);
#endif

begin:
  atomic {
    if
    :: take_snapshot(); repeatable = true
    :: true                               /* READ COMMITTED */
    :: goto stopped
    fi
  }
  atomic { share(0); share(1) };
  atomic {
    if
    :: HAS(leases, 0) && !(repeatable -> PRESENTED_THEN(0) : PRESENTED(0)) -> goto stopped
    :: HAS(leases, 1) && !(repeatable -> PRESENTED_THEN(1) : PRESENTED(1)) -> goto stopped
    :: else
    fi
  }
  if
  :: atomic {
      !has_read ->
      read[0] = (repeatable -> s_value[0] : value[0]);
      read[1] = (repeatable -> s_value[1] : value[1]);
      has_read = true;
      check_reads()
    };
    if
    :: atomic {
        /* What was read may be written by the next transaction under the same leases. */
        end_transaction();
#ifdef NEW_TOKEN
        if
        :: HAS(leases, 0) && shared[0] == 0 && exclusive[0] == 0 && token[0] < TOKENS ->
          mark = token[0] + 1; some_token(0, mark); mark = 0;
          token[0] = mine[0]; holder[0] = me; exists[0] = true
        :: skip
        fi;
#endif
        goto begin
      }
    :: skip
    fi
  :: atomic { has_read; check_reads() }
  fi;

  atomic { write(0); write(1) };
  atomic { guard(0); guard(1) };
  /* It may stop before COMMIT; or while it waits for the answer, which changes nothing here. */
  atomic {
    if
    :: goto stopped
    :: accept(0); accept(1)
    fi
  }
  /* Stopped for ever: sooner or later its connection is closed. */
stopped:
  atomic {
    end_transaction();
    leases = 0; writes = 0; mine[0] = 0; mine[1] = 0; read[0] = 0; read[1] = 0;
    before[0] = 0; before[1] = 0; mark = 0; has_read = false
  }
}

/* Removes a fence that nobody uses at the moment, and keeps its mark. */
proctype Pruner(byte r) {
  atomic {
    if
    :: exists[r] && exclusive[r] == 0 && shared[r] == 0 -> exclusive[r] = PRUNER
    :: goto done
    fi
  }
  atomic {
    kept[r] == 0;
    if :: token[r] > floor[r] -> floor[r] = token[r] :: else fi;
    exists[r] = false; token[r] = 0; holder[r] = 0; exclusive[r] = 0
  }
done:
  skip
}

init {
  atomic {
    run Client(1, LEASES_1, WRITES_1);
    run Client(2, LEASES_2, LEASES_2);
    run Client(3, LEASES_3, LEASES_3);
#ifdef PRUNE
    run Pruner(0)
#endif
  }
}
