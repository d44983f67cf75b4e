-- The catalogue: views of the log for readers. All of it is derived from `leaves` and the blobs they name, and `rebuild` puts
-- it right. Digests are 32 raw bytes; `index` is the leaf a row comes from, `statement` that leaf's id.

-- Leaf 0.
create table genesis (
  operator text primary key,
  trusted_root bytea not null
);

-- The operator's statements that set the log's clock, forward only: `issued` is Unix seconds, and grows with `index`.
create table clock (
  index bigint primary key,
  issued bigint not null
);

create table parameters (
  index bigint primary key,
  statement bytea not null,
  electorate text not null,
  rule text not null
);

-- Every identity of a DID, oldest first by index. `keys`: DID URL → Multikey.
create table identities (
  did text collate "C" not null,
  index bigint not null,
  statement bytea not null,
  document bytea not null,
  tenure bigint not null,
  keys jsonb not null,
  primary key (did, index)
);

create table grants (
  namespace text collate "C" not null,
  grantee text collate "C" not null,
  owner text not null,
  index bigint not null,
  primary key (namespace, grantee)
);

-- Published versions. `title`, `summary`, `tags`, `licence` are the card's, `agora` is SHA-1 of the document; they are empty once those
-- bytes were withdrawn. `state` and `successor` are the newest status. `terms`: see the module `search`.
create table protocols (
  uri text collate "C" primary key,
  namespace text collate "C" not null,
  name text collate "C" not null,
  version text not null,
  topic text collate "C" not null,
  origin text not null,
  document bytea not null,
  size bigint not null,
  card bytea not null,
  base text collate "C",
  aliases text[] not null,
  publisher text collate "C" not null,
  statement bytea not null,
  index bigint not null unique,
  title text not null,
  summary text not null,
  tags text[] not null,
  licence text not null,
  agora bytea,
  terms tsvector not null,
  state text not null default 'active',
  successor text
);
create index protocols_name on protocols (namespace, name);
create index protocols_topic on protocols (topic, index);
create index protocols_document on protocols (document);
create index protocols_card on protocols (card);
create index protocols_agora on protocols (agora);
create index protocols_aliases on protocols using gin (aliases);
create index protocols_terms on protocols using gin (terms);

-- What is served of a version: its record (resources.Record) as JSON, written anew whenever one of the tables it is made of changes.
create table records (
  uri text collate "C" primary key,
  document bytea not null,
  record bytea not null
) with (toast_tuple_target = 8160); -- in one piece as long as it fits a page
alter table records alter column record set storage external;

-- Attached handlers; `state` is the newest status their publisher gave the wheel.
create table handlers (
  uri text collate "C" not null,
  publisher text collate "C" not null,
  wheel bytea not null,
  filename text not null,
  size bigint not null,
  entry_point text not null,
  bundle bytea not null,
  statement bytea not null,
  index bigint not null,
  state text not null default 'active',
  primary key (uri, publisher, wheel)
);
create index handlers_publisher on handlers (uri, publisher, index);
create index handlers_index on handlers (uri, index);

-- Every status, for proofs. `wheel` is null for the protocol's own.
create table statuses (
  index bigint primary key,
  uri text collate "C" not null,
  publisher text collate "C" not null,
  wheel bytea,
  state text not null,
  successor text
);
create index statuses_uri on statuses (uri, index);

create table withdrawals (
  index bigint primary key,
  sha256 bytea not null,
  reason text not null
);

-- How many reports agreed on a document in a topic. A number for readers: which of them count is for the election.
create table tallies (
  topic text collate "C" not null,
  document bytea not null,
  agreed bigint not null,
  primary key (topic, document)
);

create table decisions (
  topic text collate "C" not null,
  index bigint not null,
  statement bytea not null,
  epoch bigint not null,
  transcript bytea not null,
  parameters bytea not null,
  consensus bytea,
  primary key (topic, index)
);

-- What the newest decision of a topic says of each document.
create table elections (
  topic text collate "C" not null,
  document bytea not null,
  state text not null,
  epoch bigint not null,
  decision bytea not null,
  primary key (topic, document)
);
