-- What the operator decided about senders, and what he did. None of it follows from the leaves, and a rebuild leaves it as it is.

-- A sender is a DID, a domain with those below it, or a network in CIDR notation. `blocked`: why nothing is taken from it; null when
-- something is. `factor`: of its quota; null for the usual one.
create table senders (
  sender text collate "C" primary key,
  blocked text,
  factor float8,
  since timestamptz not null default now(),
  caller text not null
);

create table operator_acts (
  number bigint generated always as identity primary key,
  at timestamptz not null default now(),
  command text collate "C" not null,
  detail text not null,
  caller text not null,
  uid bigint not null
);
create index operator_acts_command on operator_acts (command, number);
