-- What people read of an agent and of a topic's voters. Derived like 0002; `index` is the leaf a row comes from, digests are 32 raw
-- bytes. The election reads none of these tables.

-- Who signed which leaf, and its kind (treaty_consensus.kinds.KINDS).
create table authors (
  did text collate "C" not null,
  index bigint not null,
  kind text not null,
  primary key (did, index)
);
create index authors_kind on authors (did, kind, index);

-- Every ballot. `tiers`: as it was signed, in JSON. `ended`: the leaf that ended it, null while it stands: the next ballot of the
-- DID in the topic, or its own leaf if it withdraws.
create table ballots (
  topic text collate "C" not null,
  did text collate "C" not null,
  index bigint not null,
  statement bytea not null,
  tiers text not null,
  ended bigint,
  primary key (topic, did, index)
);
create index ballots_standing on ballots (did, index) where ended is null;

-- The pairs of DIDs that agreed on a document in a topic, `first` before `second`; `epoch` and `index` are those of the newest report.
create table pairs (
  topic text collate "C" not null,
  document bytea not null,
  first text collate "C" not null,
  second text collate "C" not null,
  epoch bigint not null,
  index bigint not null,
  primary key (topic, document, first, second)
);

-- The document of a topic that a DID reported last.
create table spoken (
  topic text collate "C" not null,
  did text collate "C" not null,
  document bytea not null,
  index bigint not null,
  primary key (topic, did)
);

-- What a DID speaks.
create index speakers_did on speakers (did, index);
