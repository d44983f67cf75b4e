-- Who speaks a protocol, and what that is worth. Derived like 0002; `index` is the leaf a row comes from, digests are 32 raw bytes.

-- With how many reports a DID has said that it agreed on a document in a topic; `epoch` and `index` are those of the newest. A
-- number for readers: which of them count is for the election.
create table speakers (
  topic text collate "C" not null,
  document bytea not null,
  did text collate "C" not null,
  reports bigint not null,
  epoch bigint not null,
  index bigint not null,
  primary key (topic, document, did)
);
create index speakers_document on speakers (document, index);
create index speakers_topic on speakers (topic, index);

-- The roll of each epoch (treaty_consensus.election.roll): the first decision that named it, and under which parameters.
create table rolls (
  epoch bigint primary key,
  index bigint not null,
  roll bytea not null,
  parameters bytea not null
);
create index rolls_roll on rolls (roll);

-- The newest roll: everybody who weighs something. Amounts are in units of 2^-32. Empty once its bytes were withdrawn.
create table principals (
  principal text collate "C" primary key,
  cluster text not null,
  trust bigint not null,
  weight bigint not null,
  age bigint not null,
  standing bigint not null
);

-- Every credit that a roll says was earned, `place` being its place there and `index` the report.
create table credits (
  epoch bigint not null,
  place bigint not null,
  principal text collate "C" not null,
  amount bigint not null,
  reason text not null,
  topic text not null,
  document bytea not null,
  corroborator text not null,
  index bigint not null,
  shared bigint not null,
  earlier bigint not null,
  primary key (epoch, place)
);
create index credits_principal on credits (principal, epoch, place);

-- For which principal a DID speaks: see the module `standing`.
create index grants_grantee on grants (grantee, index);
