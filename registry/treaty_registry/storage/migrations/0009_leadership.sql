-- Who leads the log, and the head that was released last. Nodes that do not lead serve this head, and send proposals to `url`.
-- Nothing here follows from the leaves: it is overwritten by each take-over, and may be lost.
create table leadership (
  single boolean primary key default true check (single),
  term bigint not null,       -- the number of take-overs
  url text not null,          -- where other nodes reach the leader; empty when it is the only process
  backend integer not null,   -- the process of PostgreSQL whose connection holds the leader's lock
  beat timestamptz not null,  -- when the leader last wrote this row
  note bytea not null,        -- the signed note of the newest released head; empty before the first one
  witnessed bytea not null    -- the note of the newest head with cosignatures of witnesses; may be empty
);
insert into leadership values (true, 0, '', 0, 'epoch', '', '');
