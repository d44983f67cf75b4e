-- The log and what follows from it. Only `leaves` and `spent_tokens` cannot be rebuilt; `rebuild` derives the rest from `leaves`.
-- Digests are 32 raw bytes.

-- Leaf `index` of the log. `statement`: the statement's id, null for a Sigstore leaf. Append only.
create table leaves (
  index bigint primary key check (index >= 0),
  leaf bytea not null,
  statement bytea unique
);
alter table leaves alter column leaf set storage external; -- base64 of signed bytes barely compresses

-- Full hash tiles (C2SP tlog-tiles): 256 hashes. Rows never change; the partial tile of each level follows from what is below it.
create table tiles (
  level smallint not null,
  index bigint not null,
  hashes bytea not null,
  primary key (level, index)
);
alter table tiles alter column hashes set storage external;

-- The one head. A commit updates it `where size = … and root = …`, so a leader that was replaced changes nothing.
create table head (
  single boolean primary key default true check (single),
  size bigint not null,
  root bytea not null
);
insert into head (size, root) values (0, '\xe3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855');

-- The state that `admit` judges by: treaty_consensus.facts, `fact` as its JSON.
create table facts (
  key text primary key,
  fact bytea not null
);

-- Blobs that logged statements name: the first leaf that did, and the leaf of the withdrawal if there is one.
create table blobs (
  sha256 bytea primary key,
  size bigint not null,
  index bigint not null,
  withdrawn bigint
);

-- Uploads that no logged statement names yet; never served, deleted after `expires`.
create table pending_blobs (
  sha256 bytea primary key,
  size bigint not null,
  expires timestamptz not null
);
create index pending_blobs_expires on pending_blobs (expires);

-- Single-use identifiers (`jti`) of tokens that the Sigstore services accepted, kept until the token has expired.
create table spent_tokens (
  token bytea primary key,
  expires timestamptz not null
);
create index spent_tokens_expires on spent_tokens (expires);
