/* The write path of the registry: sequencer, leader and fence on one PostgreSQL. See test_write_path.py.

   Two processes with data directories of their own log three statements. Faults, at most FAULTS of them: a process is killed or its
   connection breaks before any step; the answer to a commit is lost, with or without its effect; the commit takes effect after its
   process has given up; the database fails over; the lock is lost while the connection lives. With RESTORE one process runs, and an old
   backup of the database is restored. With SHARED both processes are nodes with one record. With REPLICA commits wait for a
   synchronous replica, which a failover may promote; a writer that gives up waiting leaves a commit that is seen and not replicated.

   The row of the leadership (leadership.py) appears as its commit, which a take-over waits for. That later writes of the row only
   publish what is signed already, and that a leader whose term is over resigns, is a matter of the simulation (tests/simulation).

   A root is the history itself: three statements in base 4. So equal roots are equal histories. */

#ifndef FAULTS
#define FAULTS 2
#endif
#ifdef RESTORE
#define NODES 1
#else
#define NODES 2
#endif
byte db_size, db_root;              /* table `head` */
byte db_at[4];                      /* table `leaves`: the statement (1..3) at an index */
byte lock;                          /* pg_try_advisory_lock: the process (1..2) that holds it */
byte row;                           /* row lock of `head`: the process whose transaction has updated it */
byte flight[3];                     /* a COMMIT that has been sent and not been executed: its statement */
bool broken[3];                     /* the server has closed the session */
bool gone[3];                       /* the process has closed its end; the server does not know it yet */
#ifdef SHARED
#define RECORD 0
#else
#define RECORD me
#endif
byte fence_size[3], fence_root[3];  /* the record: DATA/head of each process, or one that both share */
byte rep_size;                      /* REPLICA: how many leaves the replica has */
byte waits[3];                      /* REPLICA: a commit in the primary's log that the replica lacks: its statement */
byte old_size, old_root;            /* a backup */
bool restored;
byte acked[4];                      /* the index that the author of a statement was told, plus one */
byte shown[4];                     /* the root that was signed for a size, plus one */
byte faults = FAULTS;

#ifdef SMALL
#define ALL_ACKED (acked[1] && acked[2])
#else
#define ALL_ACKED (acked[1] && acked[2] && acked[3])
#endif
#define PREFIX(root, size, of) ((root) >> (2 * ((size) - (of))))

/* Before each step a process may be killed (it forgets everything but its fence) or lose its connection. */
#define STEP if :: true :: atomic { faults > 0 -> faults--; goto killed } :: atomic { faults > 0 -> faults--; goto lost } fi
/* A statement to a session that the server has closed fails. */
#define ASK if :: broken[me] -> goto lost :: else fi

/* leader.py, Leader._release: CheckpointSigner.sign. */
inline sign(size, root) {
  d_step {
#ifndef RESTORE
    assert(size <= db_size && PREFIX(db_root, db_size, size) == root);  /* signed only after the commit */
#endif
#ifdef REPLICA
    assert(size <= rep_size);                                         /* a promotion cannot lose it */
#endif
    assert(shown[size] == 0 || shown[size] == root + 1);              /* no fork */
    shown[size] = root + 1
  }
}

/* leader.py, Leader._release: Fence.advance. fence.py, advanced: refuses a smaller head, or another of the same size. With SHARED it
   also refuses when the record is not the one that this process has read (fence.py, Fence.advance; stored_fence.py: If-Match). */
inline record(size, root) {
#ifdef SKIP_FENCE
  skip
#else
  d_step {
    if
    :: size < seen_size || (size == seen_size && root != seen_root) -> refused = true
#if defined(SHARED) && !defined(NO_COMPARE)
    :: !(size < seen_size || (size == seen_size && root != seen_root)) &&
       (seen_size != fence_size[RECORD] || seen_root != fence_root[RECORD]) -> refused = true
#endif
    :: else ->
       assert(size >= fence_size[RECORD]);  /* the record never goes back */
       fence_size[RECORD] = size; fence_root[RECORD] = root; seen_size = size; seen_root = root
    fi
  }
#endif
}

inline execute(who, statement) {
#ifndef RESTORE
  assert(db_at[db_size] == 0);  /* append only: no statement loses its index */
#endif
  db_at[db_size] = statement; db_size = db_size + 1; db_root = db_root * 4 + statement;
  row = 0
}

proctype Node(byte me) {
  byte size, root, s, at, seen_size, seen_root;
  bool known, refused;

take_over: skip;
  /* sequencer.py, Sequencer._lead; leader.py, Leader.take_over; storage/postgres.py, lead. The old session must be gone first: its
     lock is free only then. */
  atomic { !gone[me] && lock == 0 -> broken[me] = false; lock = me }
  STEP; ASK;
  /* leader.py, Leader.take_over: HeadRecord.reread. */
  d_step { seen_size = fence_size[RECORD]; seen_root = fence_root[RECORD] };
#ifdef SHARED
  STEP; ASK;
#endif
#ifdef TAKE_FIRST
  if :: !broken[me] && rep_size >= db_size :: broken[me] -> goto lost fi;
  STEP; ASK;
#endif
  /* leader.py, Leader._verified_edge: read the head, compare it with the fence. */
#ifdef STALE_HEAD
  if :: known -> goto release :: else fi;
#endif
  d_step { size = db_size; root = db_root; known = true; refused = false };
  if
#ifndef SKIP_FENCE
  :: size < seen_size || PREFIX(root, size, seen_size) != seen_root -> goto lost
#endif
  :: else
  fi;
#ifdef REPLICA
  STEP; ASK;
  /* leadership.py, take: its commit is confirmed when the replica has everything before it. */
#if !defined(NO_TAKE) && !defined(TAKE_FIRST)
  if
  :: !broken[me] && rep_size >= size
  :: broken[me] -> goto lost
  :: atomic { faults > 0 -> faults--; goto lost }
  fi;
#endif
#endif
release: skip;
  STEP;
  record(size, root);
  if :: refused -> goto lost :: else fi;
  STEP;
  sign(size, root);

leading:
  if
  :: ALL_ACKED -> goto done
  :: acked[1] == 0 -> s = 1
  :: acked[2] == 0 -> s = 2
#ifndef SMALL
  :: acked[3] == 0 -> s = 3
#endif
  fi;
  STEP; ASK;
  /* sequencer.py, Sequencer._judge; tables.py, look_up: is the statement logged already? */
  d_step {
    at = 0;
    do :: at < db_size && db_at[at] != s -> at++ :: else -> break od
  }
  if
  :: at < db_size && at >= size -> goto lost   /* another process wrote it: superseded */
  :: at < db_size && at < size -> goto answer
  :: else
  fi;
#ifdef ACK_FIRST
  at = size;
  goto answer;
#endif
#ifdef SIGN_FIRST
  sign(size + 1, root * 4 + s);
#endif
  STEP; ASK;
  /* leader.py, Leader.commit; tables.py, _APPEND: update head … where size = … and root = …. It waits for the row. */
  if
  :: atomic { row == 0 && !broken[me] ->
#ifndef NO_CONDITION
       if :: size != db_size || root != db_root -> goto lost :: else fi;
#else
       if :: size != db_size || root != db_root -> db_size = size; db_root = root :: else fi;
#endif
       row = me }
  :: broken[me] -> goto lost
  fi;
  STEP;
  /* COMMIT. */
#ifdef REPLICA
  if
  :: atomic { !broken[me] -> waits[me] = s }
  :: broken[me] -> goto lost
  fi;
  if
  :: broken[me] -> goto lost
  :: !broken[me] && waits[me] == 0
  :: atomic { faults > 0 -> faults--; goto lost }  /* the process gives up waiting */
  fi;
#else
  if
  :: atomic { !broken[me] -> execute(me, s) }
  :: atomic { !broken[me] && faults > 0 -> faults--; execute(me, s); goto lost }
  :: atomic { !broken[me] && faults > 0 -> faults--; flight[me] = s; goto lost }
  :: broken[me] -> goto lost
  fi;
#endif
  d_step { at = size; root = root * 4 + s; size = size + 1 };
  STEP;
  record(size, root);
  if :: refused -> goto lost :: else fi;
  STEP;
  sign(size, root);
answer:
  /* sequencer.py, Sequencer._commit: the author gets the index; the answer may be lost on the way. */
  if
#ifdef RESTORE
  :: acked[s] = at + 1
#else
  :: d_step { assert(at < db_size && db_at[at] == s); acked[s] = at + 1 }
#endif
  :: atomic { faults > 0 -> faults-- }
  fi;
  goto leading;

killed: skip;
  d_step { known = false; size = 0; root = 0; seen_size = 0; seen_root = 0 };
lost: skip;
  /* leader.py, Leader._fail and resign: the connection is closed, and with it, some time later, the lock. */
  d_step { gone[me] = true; at = 0; s = 0 };
retry:
  goto take_over;
done: skip;
  d_step { gone[me] = true }
}

/* A commit that was sent, or that waits for the replica, takes effect although its process is gone. */
#ifdef REPLICA
#define SHOW(n) if :: waits[n] -> execute(n, waits[n]); waits[n] = 0 :: else fi
#else
#define SHOW(n) if :: flight[n] && row == n -> execute(n, flight[n]) :: else fi
#endif

/* The server: it executes a commit that was sent, rolls back and frees the locks when it learns that a client is gone. */
active proctype Server() {
  byte n;
end:
  do
  :: d_step { gone[1] -> n = 1;
       SHOW(n);
       flight[n] = 0; if :: row == n -> row = 0 :: else fi; if :: lock == n -> lock = 0 :: else fi; gone[n] = false; broken[n] = true }
  :: d_step { gone[2] -> n = 2;
       SHOW(n);
       flight[n] = 0; if :: row == n -> row = 0 :: else fi; if :: lock == n -> lock = 0 :: else fi; gone[n] = false; broken[n] = true }
#ifdef REPLICA
  /* The replica receives what the primary has written, in that order. Then the writer is told, and others see it. */
  :: d_step { rep_size < db_size -> rep_size++ }
  :: d_step { rep_size == db_size && waits[1] -> execute(1, waits[1]); rep_size = db_size; waits[1] = 0 }
  :: d_step { rep_size == db_size && waits[2] -> execute(2, waits[2]); rep_size = db_size; waits[2] = 0 }
#endif
  od
}

/* What people and machines do to the database. */
active proctype World() {
end:
  do
#ifdef REPLICA
  :: d_step { faults > 0 -> faults--; SHOW(1); SHOW(2);  /* the primary starts again */
       lock = 0; row = 0; broken[1] = true; broken[2] = true }
  :: d_step { faults > 0 -> faults--;                    /* the replica is promoted */
       db_root = PREFIX(db_root, db_size, rep_size);
       if :: rep_size < 3 -> db_at[2] = 0 :: else fi; if :: rep_size < 2 -> db_at[1] = 0 :: else fi;
       if :: rep_size < 1 -> db_at[0] = 0 :: else fi;
       db_size = rep_size; waits[1] = 0; waits[2] = 0; lock = 0; row = 0; broken[1] = true; broken[2] = true }
#else
  :: d_step { faults > 0 -> faults--; lock = 0; row = 0; flight[1] = 0; flight[2] = 0; broken[1] = true; broken[2] = true }  /* failover */
#endif
#ifndef RESTORE
  :: d_step { faults > 0 && lock != 0 -> faults--; lock = 0 }  /* a pooler loses the lock; the connection lives */
#else
  :: d_step { !restored && db_size == old_size + 1 && old_size == 0 -> old_size = db_size; old_root = db_root }  /* a backup */
  :: d_step { !restored && old_size > 0 && db_size > old_size -> restored = true;
       lock = 0; row = 0; flight[1] = 0; broken[1] = true; db_size = old_size; db_root = old_root;
       db_at[2] = 0; if :: old_size < 2 -> db_at[1] = 0 :: else fi }
#endif
  od
}

init {
  atomic {
    shown[0] = 1;
    run Node(1);
#if NODES == 2
    run Node(2);
#endif
  }
}

/* Progress: when no fault is left, every statement is logged and its author told. */
#ifdef PROGRESS
ltl all_logged { <> ALL_ACKED }
#endif
